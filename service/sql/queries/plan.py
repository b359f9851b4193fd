"""Plan the query of a view as stages."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from sqlglot import exp

from service.domain.errors import Invalid
from service.protocol.relation import Relation
from service.sql.expressions.allowed import called_name
from service.sql.queries.allowed import AGGREGATES
from service.sql.queries.drafting import drafts_of
from service.sql.queries.drafts import Draft
from service.sql.queries.planner import planned
from service.sql.queries.relations import Rows, absorbed
from service.sql.statements.select import named_relations
from service.sql.text.tree import Tree, identifier

_CLAUSES = ("joins", "group", "having", "distinct", "order", "limit", "offset", "fetch", "with_", "windows")


def needs_stages(tree: Tree, views: Mapping[str, Tree]) -> bool:
    """Whether a query is more than a projection and filter of one relation, or a UNION ALL of such.

    A logical view that it reads counts as its query.
    """
    seen: set[str] = set()
    left = [tree]
    while left:
        one = left.pop()
        if _is_complex(one.root):
            return True
        for table in named_relations(one.root):
            name = identifier(table.this)
            if name in views and name not in seen:
                seen.add(name)
                left.append(views[name])
    return False


def _is_complex(node: exp.Expr) -> bool:
    match node:
        case exp.Union() if not node.args.get("distinct"):
            return (
                any(node.args.get(name) for name in _CLAUSES) or _is_complex(node.this) or _is_complex(node.expression)
            )
        case exp.Subquery() if isinstance(node.this, exp.Query):
            return any(node.args.get(name) for name in _CLAUSES) or _is_complex(node.this)
        case exp.Select():
            return any(node.args.get(name) for name in _CLAUSES) or any(_is_stateful(node, one) for one in node.walk())
        case _:
            return True


def _is_stateful(select: exp.Select, node: exp.Expr) -> bool:
    if isinstance(node, exp.Anonymous):
        return called_name(node) in AGGREGATES
    return node is not select and isinstance(node, exp.Query | exp.Window | exp.Exists | exp.WithinGroup)


def plan_query(
    tree: Tree, relations: Mapping[str, Relation], views: Mapping[str, Tree], names: Sequence[str]
) -> tuple[Draft, ...]:
    """Return the drafts of a query's stages, the view's own last. Raises Invalid and NotFound.

    `names` are the view's columns as Postgres names them. Postgres has accepted the query.
    """
    try:
        planner, block = planned(tree, relations, views)
    except RecursionError:
        raise Invalid("the query is nested too deeply", position=tree.start + 1) from None
    if len(names) != len(block.outputs):
        raise Invalid("the columns of the query are not those that Postgres gives it", position=tree.start + 1)
    outputs = tuple(replace(one, name=name) for one, name in zip(block.outputs, names, strict=True))
    for at, one in enumerate(outputs):
        if one.name in names[:at]:
            raise Invalid(f'column "{one.name}" specified more than once', position=one.place)
    block = replace(block, outputs=outputs)
    view = absorbed(block) or planner.made.add(Rows((block,)))
    drafts = drafts_of(view, planner.made.pending)
    last = drafts[-1].target
    return tuple(replace(one, final=one.target == last) for one in drafts)
