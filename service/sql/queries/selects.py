"""Read one SELECT: its FROM and WHERE, then what stands above them, in the order in which Postgres evaluates it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from sqlglot import exp

from service.domain.errors import Invalid
from service.sql.queries import aggregates, windows
from service.sql.queries.blocks import Block, Output
from service.sql.queries.nodes import bare, conjuncts, printed
from service.sql.queries.scope import Scope
from service.sql.queries.selected import EMPTY, Selected
from service.sql.queries.tables import read_from
from service.sql.text.labels import label
from service.sql.text.tree import given, identifier

if TYPE_CHECKING:
    from service.sql.queries.planner import Planner

_KNOWN: Final = frozenset(
    "expressions from_ joins where group having distinct order limit offset fetch with_ windows laterals".split()  # noqa: SIM905 - a list of words reads best as words
)
_CLAUSES: Final[Mapping[str, str]] = {
    "qualify": "QUALIFY is not supported in a view: filter in an outer SELECT",
    "locks": "FOR UPDATE/SHARE is not supported in a view",
    "into": "SELECT INTO is not supported in a view",
    "sample": "TABLESAMPLE is not supported in a view: it gives other rows each time",
}


def read_select(planner: "Planner", select: exp.Select, scope: Scope) -> Block:
    """Return the block of a SELECT. `scope` has the names of the outer query. Raises Invalid and NotFound."""
    _check_clauses(select, scope)
    inner = planner.with_common(select, Scope(scope.tree, outer=scope, common=scope.common))
    block, inner = read_from(planner, select, inner)
    where = select.args.get("where")
    if where is not None:
        block = planner.where(block, where.this, inner)
    selected = _Reader(planner, select, block, inner).selected
    planner.made.place = scope.tree.position(select)
    if aggregates.is_grouped(select):
        selected = aggregates.grouped(planner, select, selected, inner)
    if windows.has_windows(selected):
        selected = windows.windowed(planner, selected, scope.tree.position(select))
    distinct = select.args.get("distinct")
    if selected.distinct_on:
        selected = windows.distinct_on(planner, selected)
        return windows.limited(planner, select, selected, inner)
    if distinct is not None:
        made = aggregates.distinct(planner, replace(selected.block, outputs=selected.outputs))
        selected = _over_outputs(selected, made, scope.tree.position(select))
    return windows.limited(planner, select, selected, inner)


def _over_outputs(selected: Selected, block: Block, place: int) -> Selected:
    """Return the SELECT over a relation of its outputs. ORDER BY of a DISTINCT can only name these. Raises Invalid."""
    places = {printed(bare(one.value)): at for at, one in enumerate(selected.outputs)}
    order: list[exp.Ordered] = []
    for one in selected.order:
        at = places.get(printed(bare(one.this)))
        if at is None:
            message = "ORDER BY of a SELECT DISTINCT takes a column's name or number in a view"
            raise Invalid(message, position=place)
        order.append(exp.Ordered(**{**one.args, "this": block.outputs[at].value}))
    return Selected(replace(block, outputs=()), block.outputs, order=tuple(order))


def limited_query(planner: "Planner", node: exp.Subquery, scope: Scope) -> Block:
    """Return the block of a query in parentheses, which can have ORDER BY and LIMIT of its own."""
    scope = planner.with_common(node, scope)
    block = planner.query(node.this, scope)
    return ordered_query(planner, node, block, scope)


def ordered_query(planner: "Planner", node: exp.Expr, block: Block, scope: Scope) -> Block:
    """Return the block of a query with the ORDER BY and LIMIT that stand behind it."""
    if not any(node.args.get(name) for name in ("limit", "offset", "fetch")):
        return block
    order: list[exp.Ordered] = []
    clause = node.args.get("order")
    for one in clause.expressions if clause is not None else []:
        at = named_output(one.this, block.outputs)
        if at is None:
            message = "ORDER BY behind a set operation takes a column's name or number"
            raise Invalid(message, position=scope.tree.position(one))
        order.append(exp.Ordered(**{**one.args, "this": block.outputs[at].value}))
    selected = Selected(replace(block, outputs=()), block.outputs, order=tuple(order))
    return windows.limited(planner, node, selected, scope)


def _check_clauses(select: exp.Select, scope: Scope) -> None:
    for clause in sorted(given(select) - _KNOWN):
        part = select.args[clause]
        part = part[0] if isinstance(part, list) else part
        place = scope.tree.position(part) if isinstance(part, exp.Expr) else scope.tree.position(select)
        message = _CLAUSES.get(clause, f"{clause.strip('_').upper()} is not supported in a view")
        raise Invalid(message, position=place)


class _Reader:
    """Resolve the SELECT list, HAVING, ORDER BY and DISTINCT ON of a SELECT."""

    def __init__(self, planner: "Planner", select: exp.Select, block: Block, scope: Scope) -> None:
        self._planner, self._select, self._scope = planner, select, scope
        self._grouped = aggregates.is_grouped(select)
        self._blocks = [block, EMPTY]
        self._windows = {identifier(one.this): one for one in select.args.get("windows") or []}
        outputs = tuple(self._outputs())
        having = select.args.get("having")
        conditions = tuple(self._value(one) for one in conjuncts(having.this)) if having is not None else ()
        distinct = select.args.get("distinct")
        on = distinct.args.get("on") if distinct is not None else None
        keys = on.expressions if isinstance(on, exp.Tuple) else [on] if on is not None else []
        limits = any(select.args.get(name) for name in ("limit", "offset", "fetch"))
        clause = select.args.get("order") if limits or on is not None else None
        order = [
            exp.Ordered(**{**one.args, "this": self._sorted_by(one.this, outputs)})
            for one in (clause.expressions if clause is not None else [])
        ]
        self.selected = Selected(
            self._blocks[0],
            outputs,
            having=conditions,
            order=tuple(order),
            distinct_on=tuple(self._sorted_by(one, outputs) for one in keys),
            after=self._blocks[1],
        )

    def _outputs(self) -> Iterator[Output]:
        for number, node in enumerate(self._select.expressions):
            starred = self._scope.starred(node)
            if starred is not None:
                yield from starred
                continue
            inner = node.this if isinstance(node, exp.Alias) else node
            yield Output(_label(node, number), self._value(inner), self._scope.tree.position(node))

    def _value(self, node: exp.Expr) -> exp.Expr:
        node = windows.with_named(node, self._windows, self._scope)
        if self._grouped:
            return self._planner.grouped_value(self._blocks, node, self._scope)
        self._blocks[0], value = self._planner.value(self._blocks[0], node, self._scope)
        return value

    def _sorted_by(self, node: exp.Expr, outputs: Sequence[Output]) -> exp.Expr:
        """Resolve an expression of ORDER BY or DISTINCT ON: an output's name or number, or an expression."""
        at = named_output(node, outputs)
        return self._value(node) if at is None else outputs[at].value


def _label(node: exp.Expr, number: int) -> str:
    if isinstance(node, exp.Alias):
        return identifier(node.args["alias"])
    return label(node) or f"column{number + 1}"


def named_output(node: exp.Expr, outputs: Sequence[Output]) -> int | None:
    """Return the place of the output that an expression of ORDER BY names, or None."""
    if isinstance(node, exp.Literal) and not node.args.get("is_string"):
        return int(node.name) - 1 if node.name.isdigit() and 0 < int(node.name) <= len(outputs) else None
    if isinstance(node, exp.Column) and given(node) == frozenset({"this"}):
        name = identifier(node.this)
        return next((at for at, one in enumerate(outputs) if one.name == name), None)
    return None
