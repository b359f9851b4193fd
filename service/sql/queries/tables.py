"""Read the FROM of a SELECT: the block of its inputs, and the names of their columns."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NoReturn

from sqlglot import exp

from service.domain.errors import Invalid, NotFound
from service.protocol.stage import JoinKind
from service.sql.queries.blocks import Block, Output, attached, chained, filtered, merged, padded, single
from service.sql.queries.nodes import column, conjuncts, operand
from service.sql.queries.outer import full_join, kept
from service.sql.queries.scope import Names, Scope
from service.sql.statements.views import CONSTANTS
from service.sql.text.cursor import SCHEMA
from service.sql.text.tree import given, identifier

if TYPE_CHECKING:
    from service.sql.queries.planner import Planner

_EXTRA: Final = {
    "sample": "TABLESAMPLE is not supported in a view: it gives other rows each time",
    "only": "ONLY is not supported in a view: no table here has heirs",
    "ordinality": "WITH ORDINALITY is not supported in a view",
}


def read_from(planner: "Planner", select: exp.Select, scope: Scope) -> tuple[Block, Scope]:
    """Return the block of a FROM and the scope of its names. Raises Invalid and NotFound."""
    clause = select.args.get("from_")
    if clause is None:
        place = scope.tree.position(select)
        raise Invalid(f"FROM is missing: {CONSTANTS}", position=place)
    laterals = select.args.get("laterals") or []
    if laterals:
        _refuse_lateral(scope, laterals[0])
    block, names = _joined(planner, clause.this, select.args.get("joins") or [], scope)
    return block, scope.within(names)


def _joined(planner: "Planner", first: exp.Expr, joins: Sequence[exp.Expr], scope: Scope) -> tuple[Block, Names]:
    """Return the block of some items and joins. A JOIN binds more than a comma."""
    items = [_item(planner, first, scope)]
    for join in (*(first.args.get("joins") or []), *joins):
        if _is_comma(join):
            items.append(_joined(planner, join.this, [], scope))
        else:
            items[-1] = _join(planner, join, items[-1], scope)
    block, names = items[0]
    for other, others in items[1:]:
        block, names = merged(block, other), _united(names, others, (), "INNER")
    return block, names


def _is_comma(join: exp.Expr) -> bool:
    """Whether the parser means a comma: every JOIN says how it joins."""
    return isinstance(join, exp.Join) and not given(join) - {"this"}


def _item(planner: "Planner", node: exp.Expr, scope: Scope) -> tuple[Block, Names]:
    match node:
        case exp.Table() if isinstance(node.this, exp.Identifier):
            _check_extra(scope, node, {"this", "db", "alias", "joins"})
            return _table(planner, node, scope)
        case exp.Subquery() if _is_item(node.this):
            _check_extra(scope, node, {"this", "alias", "joins"})
            block, names = _joined(planner, node.this, [], scope)
            alias = node.args.get("alias")
            return (block, names) if alias is None else _aliased(replace(block, outputs=names.columns), alias, None)
        case exp.Subquery():
            _check_extra(scope, node, {"this", "alias", "with_", "joins"})
            block = planner.query(node.this, scope.inner())
            return _aliased(block, node.args.get("alias"), None)
        case exp.Lateral():
            return _refuse_lateral(scope, node)
        case _:
            message = f"a function or a list of values in FROM is not supported here: {CONSTANTS}"
            raise Invalid(message, position=scope.tree.position(node))


def _is_item(node: exp.Expr) -> bool:
    """Whether what stands in parentheses is an item of a FROM, with its joins, and not a query."""
    if isinstance(node, exp.Subquery):
        return bool(node.args.get("alias") or node.args.get("joins")) or _is_item(node.this)
    return isinstance(node, exp.Table)


def _refuse_lateral(scope: Scope, node: exp.Expr) -> NoReturn:
    message = (
        "LATERAL is not supported in a view: join a subquery on columns. The first rows for each row are those of "
        "row_number() over (partition by ..) in a subquery"
    )
    raise Invalid(message, position=scope.tree.position(node))


def _check_extra(scope: Scope, node: exp.Expr, known: set[str]) -> None:
    for name in sorted(given(node) - known):
        message = _EXTRA.get(name, f"{name.upper()} is not supported in a view")
        raise Invalid(message, position=scope.tree.position(node))


def _table(planner: "Planner", node: exp.Table, scope: Scope) -> tuple[Block, Names]:
    name, schema = identifier(node.this), node.args.get("db")
    place = scope.tree.position(node)
    alias = node.args.get("alias")
    common = scope.found_common(name) if schema is None else None
    if common is not None:
        return _aliased(planner.common(common), alias, name)
    if schema is not None and identifier(schema) != SCHEMA:
        raise NotFound(f'relation "{identifier(schema)}.{name}" does not exist', kind="relation", position=place)
    if name in planner.relations:
        one = planner.made.occurrence(planner.shape(name))
        outputs = tuple(Output(each, column(one.alias, each), place) for each in one.shape.columns)
        return _aliased(replace(single(one), outputs=outputs), alias, name)
    if name in planner.views:
        return _aliased(planner.view(name, place), alias, name)
    raise NotFound(f'relation "{name}" does not exist', kind="relation", position=place)


def _aliased(block: Block, alias: exp.Expr | None, name: str | None) -> tuple[Block, Names]:
    """Return a block and the names of its outputs under an alias, which can rename the first columns."""
    outputs = block.outputs
    if alias is not None:
        if alias.this is not None:
            name = identifier(alias.this)
        given_names = [identifier(one) for one in alias.args.get("columns") or []]
        outputs = tuple(
            replace(one, name=given_names[at]) if at < len(given_names) else one for at, one in enumerate(outputs)
        )
    columns = tuple(replace(one, value=operand(one.value)) for one in outputs)
    return replace(block, outputs=()), Names(columns, {} if name is None else {name: columns})


def _join(planner: "Planner", join: exp.Expr, left: tuple[Block, Names], scope: Scope) -> tuple[Block, Names]:
    side = str(join.args.get("side") or "").upper()
    method = str(join.args.get("method") or "").upper()
    kind = str(join.args.get("kind") or "").upper()
    if not isinstance(join, exp.Join) or kind not in {"", "INNER", "OUTER", "CROSS"} or method not in {"", "NATURAL"}:
        word = method or kind or side
        raise Invalid(f"{word} JOIN is not supported in a view", position=scope.tree.position(join))
    right = _item(planner, join.this, scope)
    for further in join.this.args.get("joins") or []:
        right = _join(planner, further, right, scope)
    names = _using_names(scope, join, method, left[1], right[1])
    if side == "RIGHT":
        block, names_right, names_left = _outer(planner, right, left, _on(planner, scope, join, names, left, right))
        return block, _united(names_left, names_right, names, "RIGHT")
    if side == "LEFT":
        block, names_left, names_right = _outer(planner, left, right, _on(planner, scope, join, names, left, right))
        return block, _united(names_left, names_right, names, "LEFT")
    if side == "FULL":
        condition = _on(planner, scope, join, names, left, right)
        block, names_left, names_right = full_join(planner, left, right, condition)
        return block, _united(names_left, names_right, names, "FULL")
    block = merged(left[0], right[0])
    for condition in _pairs(left[1], right[1], names):
        block = filtered(block, condition)
    found = _united(left[1], right[1], names, "INNER")
    if join.args.get("on") is not None:
        block = planner.where(block, join.args["on"], scope.within(left[1] + right[1]))
    return block, found


def _using_names(scope: Scope, join: exp.Expr, method: str, left: Names, right: Names) -> tuple[str, ...]:
    """Return the columns that USING or NATURAL equates."""
    if method == "NATURAL":
        mine = {one.name for one in right.columns}
        return tuple(one.name for one in left.columns if one.name in mine)
    found: list[str] = []
    for node in join.args.get("using") or []:
        inner = node.this if isinstance(node, exp.Column) else node
        if not isinstance(inner, exp.Identifier):
            raise Invalid("USING takes names of columns", position=scope.tree.position(join))
        found.append(identifier(inner))
    return tuple(found)


def _value(names: Names, name: str) -> exp.Expr:
    return next(one.value for one in names.columns if one.name == name)


def _pairs(left: Names, right: Names, names: Sequence[str]) -> list[exp.Expr]:
    return [exp.EQ(this=operand(_value(left, one)), expression=operand(_value(right, one))) for one in names]


def _on(
    planner: "Planner",
    scope: Scope,
    join: exp.Expr,
    names: Sequence[str],
    left: tuple[Block, Names],
    right: tuple[Block, Names],
) -> exp.Expr:
    """Return the condition of an outer join as one expression."""
    conditions = _pairs(left[1], right[1], names)
    on = join.args.get("on")
    if on is not None:
        conditions.append(planner.plain(on, scope.within(left[1] + right[1])))
    whole: exp.Expr = exp.Boolean(this=True)
    for one in conditions:
        whole = one if isinstance(whole, exp.Boolean) else exp.And(this=operand(whole), expression=operand(one))
    return whole


def _outer(
    planner: "Planner", left: tuple[Block, Names], right: tuple[Block, Names], condition: exp.Expr
) -> tuple[Block, Names, Names]:
    """Return `left LEFT JOIN right` and the names of both sides."""
    block, names = right
    linked = None
    if not block.simple:
        linked = chained(left[0], block, condition)
        if linked is None:
            block, names, condition = kept(planner, block, names, condition)
    wrapped = _padded_names(block, names)
    if wrapped is None:
        block, names, condition = kept(planner, block, names, condition)
        linked, wrapped = None, _padded_names(block, names)
        assert wrapped is not None
    if linked is None:
        linked = attached(left[0], JoinKind.LEFT, block, conjuncts(condition))
    return linked, left[1], wrapped


def _padded_names(block: Block, names: Names) -> Names | None:
    if any(padded(block, one.value) is None for one in names.values):
        return None
    return names.changed(lambda value: padded(block, value) or value)


def _united(left: Names, right: Names, names: Sequence[str], side: str) -> Names:
    """Return the names of a join. A column of USING comes first, once."""
    every = left + right
    if not names:
        return every

    def value(name: str) -> exp.Expr:
        mine, other = _value(left, name), _value(right, name)
        if side == "FULL":
            return exp.Anonymous(this="coalesce", expressions=[mine.copy(), other.copy()])
        return other if side == "RIGHT" else mine

    shared = tuple(Output(name, value(name)) for name in names)
    return Names((*shared, *(one for one in every.columns if one.name not in names)), every.items)
