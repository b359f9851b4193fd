"""Compare a statement of a project with the definition that a service holds.

Definitions are compared as parsed: the form of names, keywords, space and comments does not matter. The place of a
Delta table may have a number, because a table that is built anew has a place of its own.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from sqlglot import exp

from service.domain.errors import Invalid
from service.domain.pipelines import numbered
from service.sql.parse import parse
from service.sql.statements.logical_views import CreateView, query_reads
from service.sql.statements.sinks import CreateSink
from service.sql.statements.target import Target
from service.sql.statements.views import CreateMaterializedView
from service.sql.text.tree import Tree, identifier

_LOCATION = "location"


@dataclass(frozen=True, slots=True)
class Shape:
    """What a definition says. `location` is where its Delta table is, None if it has none."""

    kind: str
    query: exp.Expr
    columns: tuple[str, ...]
    options: Mapping[str, str]
    location: str | None
    reads: frozenset[str]

    def is_like(self, other: "Shape", base: str | None) -> bool:
        """Whether both define the same, with this one at `base` or at a place that a number makes of it."""
        placed = (self.location is None) if base is None else numbered(self.location or "", base) is not None
        mine, its = ((one.kind, one.query, one.columns, one.options) for one in (self, other))
        return placed and mine == its


def shape_of(definition: str) -> Shape | None:
    """Return what a definition says, None if it is of no view and no sink. Raises Invalid if it cannot be parsed."""
    match parse(definition):
        case CreateMaterializedView() as view:
            return _shape("materialized view", view.query, view.options, view.target)
        case CreateSink(view, target):
            return _shape("sink", view.query, {}, target)
        case CreateView() as view:
            return _shape("view", view.query, {}, None)
        case _:
            return None


def reads_of(definition: str, names: Collection[str]) -> frozenset[str]:
    """Return which of `names` a definition reads. One that cannot be parsed reads none of them."""
    lower = definition.lower()
    if not any(name.lower() in lower for name in names):
        # Parsing takes a thousand times as long.
        return frozenset()
    try:
        shape = shape_of(definition)
    except Invalid:
        return frozenset()
    return frozenset() if shape is None else shape.reads.intersection(names)


def _shape(kind: str, query: Tree, options: Mapping[str, str], target: Target | None) -> Shape:
    placed = (
        {} if target is None else {**target.options, **{name: f"secret {it}" for name, it in target.secrets.items()}}
    )
    every = {**options, **placed}
    location = every.pop(_LOCATION, None)
    return Shape(kind, _normal(query.root), query.columns, every, location, query_reads(query))


def _normal(root: exp.Expr) -> exp.Expr:
    """Return the tree with all names folded and quoted."""

    def folded(node: exp.Expr) -> exp.Expr:
        return exp.to_identifier(identifier(node), quoted=True) if isinstance(node, exp.Identifier) else node

    return root.transform(folded)
