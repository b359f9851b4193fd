"""Plan the subqueries of conditions and expressions.

EXISTS and IN become SEMI groups, their negations ANTI groups. A scalar subquery becomes an input with at most one row.
A subquery may name columns of the outer query; then it is *correlated*.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NoReturn

from sqlglot import exp

from service.domain.errors import Invalid
from service.protocol.columns import KeyColumn
from service.protocol.stage import JoinKind
from service.sql.expressions.allowed import called_name
from service.sql.queries.blocks import Block, Output, attached, filtered, foreign, merged, never_null, padded
from service.sql.queries.keys import at_most_one
from service.sql.queries.nodes import aliases_of, bare, built, column, operand, printed
from service.sql.queries.outer import kept
from service.sql.queries.parts import PART, stored_input
from service.sql.queries.relations import NAMELESS, ONE, Grouped, Parted
from service.sql.queries.scope import Names, Scope

if TYPE_CHECKING:
    from service.sql.queries.planner import Planner

_COMPARISONS: Final = (exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE)
_NEGATED: Final[Mapping[type[exp.Expr], type[exp.Binary]]] = {
    exp.EQ: exp.NEQ, exp.NEQ: exp.EQ, exp.LT: exp.GTE, exp.GTE: exp.LT, exp.GT: exp.LTE, exp.LTE: exp.GT,
}  # fmt: skip


def condition(planner: "Planner", block: Block, node: exp.Expr, scope: Scope) -> Block:
    """Return the block with one condition of a WHERE, ON or HAVING. Raises Invalid and NotFound."""
    inner = bare(node)
    negated = isinstance(inner, exp.Not)
    tested = bare(inner.this) if isinstance(inner, exp.Not) else inner
    if isinstance(tested, exp.Exists):
        kind = JoinKind.ANTI if negated else JoinKind.SEMI
        inner = _query(planner, _unlimited(tested.this), scope)
        return _matched(planner, block, inner, kind, [], _place(scope, tested))
    if isinstance(tested, exp.In) and tested.args.get("query") is not None:
        return _in(planner, block, tested, tested.args["query"], scope, negated=negated)
    if isinstance(tested, _COMPARISONS) and isinstance(bare(tested.expression), exp.Any | exp.All):
        quantified = bare(tested.expression)
        every, query = isinstance(quantified, exp.All), _queried(quantified.this)
        if query is not None and _row(tested.this) is not None and isinstance(tested, exp.NEQ if every else exp.EQ):
            return _in(planner, block, tested, query, scope, negated=negated is not every)
        if query is not None:
            return _quantified(planner, block, tested, quantified, scope, negated=negated)
    block, value = planner.value(block, inner, scope)
    return filtered(block, value)


def _place(scope: Scope, node: exp.Expr) -> int:
    return scope.tree.position(node)


def _queried(node: exp.Expr) -> exp.Expr | None:
    """Return the query in parentheses, or None."""
    inner = node
    while isinstance(inner, exp.Paren):
        inner = inner.this
    if isinstance(inner, exp.Subquery) and isinstance(inner.this, exp.Query):
        return inner
    return inner if isinstance(inner, exp.Select | exp.SetOperation) else None


def _unlimited(node: exp.Expr) -> exp.Expr:
    """Return the query of an EXISTS without a LIMIT of at least one row, which does not matter there."""
    limit = node.args.get("limit")
    count = limit.expression if isinstance(limit, exp.Limit) else None
    if not isinstance(count, exp.Literal) or not count.name.isdigit() or int(count.name) < 1 or node.args.get("offset"):
        return node
    copied = node.copy()
    copied.set("limit", None)
    return copied


def _query(planner: "Planner", node: exp.Expr, scope: Scope) -> Block:
    return planner.query(node, scope)


def _row(node: exp.Expr) -> list[exp.Expr] | None:
    """Return the values of a row in parentheses or of ROW(..), or None for another expression."""
    inner = bare(node)
    if isinstance(inner, exp.Tuple) or (isinstance(inner, exp.Anonymous) and called_name(inner) == "row"):
        return list(inner.expressions)
    return None


def _in(planner: "Planner", block: Block, node: exp.Expr, query: exp.Expr, scope: Scope, *, negated: bool) -> Block:
    """Plan `value IN (query)`, and its equals `= ANY` and, negated, `<> ALL`."""
    place = _place(scope, node)
    values: list[exp.Expr] = []
    for one in _row(node.this) or [node.this]:
        block, value = planner.value(block, one, scope)
        values.append(value)
    inner = _query(planner, query, scope)
    _check_width(inner, len(values), place)
    pairs: list[exp.Expr] = [
        exp.EQ(this=operand(value), expression=operand(one.value))
        for value, one in zip(values, inner.outputs, strict=True)
    ]
    if not negated:
        return _matched(planner, block, inner, JoinKind.SEMI, pairs, place)
    nulls = _nulls_compared(block, values, inner, place)
    block = _matched(planner, block, inner, JoinKind.ANTI, pairs, place)
    for one in nulls:
        # A comparison with NULL is unknown, which excludes the row. Each cause is looked up by itself.
        inner = _query(planner, query, scope)
        null = exp.Is(this=operand(inner.outputs[0].value if one is None else one), expression=exp.Null())
        block = _matched(planner, block, inner, JoinKind.ANTI, [null], place)
    return block


def _check_width(inner: Block, width: int, place: int) -> None:
    if len(inner.outputs) != width:
        raise Invalid("the subquery has another number of columns than what it is compared with", position=place)


def _nulls_compared(block: Block, values: Sequence[exp.Expr], inner: Block, place: int) -> tuple[exp.Expr | None, ...]:
    """Return what can be NULL in a NOT IN: the value itself, and None for that of the subquery. Refuse rows of such."""
    mine = tuple(value for value in values if not _sure(value, block))
    theirs = () if all(_sure(one.value, inner) for one in inner.outputs) else (None,)
    if (mine or theirs) and len(values) > 1:
        message = (
            "a row before NOT IN (subquery) is not supported in a view where a value can be NULL: write NOT EXISTS, "
            "or add IS NOT NULL to both sides"
        )
        raise Invalid(message, position=place)
    return (*mine, *theirs)


def _sure(value: exp.Expr, block: Block) -> bool:
    checked = {printed(bare(bare(one.this).this)) for one in block.core.on if _is_not_null(one)}
    return never_null(value, block.core.inputs) or printed(bare(value)) in checked


def _is_not_null(node: exp.Expr) -> bool:
    inner = bare(node)
    if not isinstance(inner, exp.Not):
        return False
    tested = bare(inner.this)
    return isinstance(tested, exp.Is) and isinstance(tested.expression, exp.Null)


def _quantified(
    planner: "Planner", block: Block, node: exp.Expr, quantified: exp.Expr, scope: Scope, *, negated: bool
) -> Block:
    """Plan `value op ANY (query)` and `value op ALL (query)`."""
    place = _place(scope, node)
    if _row(node.this) is not None:
        message = (
            "a row before ANY or ALL of a subquery is supported in a view with = ANY and <> ALL only: write EXISTS"
        )
        raise Invalid(message, position=place)
    block, value = planner.value(block, node.this, scope)
    inner = _query(planner, _queried(quantified.this) or quantified.this, scope)
    _check_width(inner, 1, place)
    every = isinstance(quantified, exp.All) is not negated
    opposite = _NEGATED[type(node)]
    operator, opposite = (opposite, _NEGATED[opposite]) if negated else (_NEGATED[opposite], opposite)
    compared: exp.Expr = operator(this=operand(value), expression=operand(inner.outputs[0].value))
    if not every:
        return _matched(planner, block, inner, JoinKind.SEMI, [compared], place)
    if _sure(value, block) and _sure(inner.outputs[0].value, inner):
        compared = opposite(this=operand(value), expression=operand(inner.outputs[0].value))
    else:
        # No row is found for which the comparison is false or unknown.
        compared = exp.Not(this=exp.Is(this=operand(compared), expression=exp.Boolean(this=True)))
    return _matched(planner, block, inner, JoinKind.ANTI, [compared], place)


def _matched(
    planner: "Planner", block: Block, inner: Block, kind: JoinKind, pairs: Sequence[exp.Expr], place: int
) -> Block:
    """Return the block with a SEMI or ANTI group. `pairs` are conditions in addition to those of the subquery."""
    if inner.total:
        message = (
            "EXISTS and IN over an aggregate that names the outer query are not supported in a view: "
            "compare with the subquery as a value"
        )
        raise Invalid(message, position=place)
    inner, pairs = simplified(planner, inner, pairs, place)
    return attached(block, kind, inner, pairs)


def simplified(planner: "Planner", inner: Block, pairs: Sequence[exp.Expr], place: int) -> tuple[Block, list[exp.Expr]]:
    """Return a subquery's block as one whose inputs are all joined inner, keeping a hidden relation if needed."""
    inner = _without_unread(inner, pairs)
    if inner.simple:
        return replace(inner, outputs=()), list(pairs)
    own = {one.alias for group in inner.groups for one in group.inputs}
    correlated = [one for one in (*inner.core.on, *inner.where) if aliases_of(one) - own]
    core = replace(inner.core, on=tuple(one for one in inner.core.on if one not in correlated))
    rest = replace(
        inner, groups=(core, *inner.groups[1:]), where=tuple(one for one in inner.where if one not in correlated)
    )
    if any(aliases_of(one) - own for one in rest.conditions):
        message = "a subquery within a subquery that names the outermost query is not supported in a view"
        raise Invalid(message, position=place)
    whole: exp.Expr = exp.Tuple(expressions=[one.copy() for one in (*correlated, *pairs)])
    simple, _, changed = kept(planner, rest, Names(), whole)
    return simple, list(changed.expressions)


def _without_unread(inner: Block, pairs: Sequence[exp.Expr]) -> Block:
    """Return a block without LEFT groups that nothing reads, because they cannot change whether there is a row."""
    groups = list(inner.groups)
    for at in range(len(groups) - 1, 0, -1):
        group = groups[at]
        others = [one for place, other in enumerate(groups) if place != at for one in other.on]
        read = {alias for one in (*others, *inner.where, *pairs) for alias in aliases_of(one)}
        if group.kind is JoinKind.LEFT and not read & group.aliases:
            del groups[at]
    return replace(inner, groups=tuple(groups))


def scalar(planner: "Planner", block: Block, node: exp.Expr, scope: Scope) -> tuple[Block, exp.Expr] | None:
    """Return the value of a subquery in an expression, and the block that has its input. None for other nodes."""
    if isinstance(node, exp.Exists):
        return _truth(planner, block, _query(planner, _unlimited(node.this), scope), [], _place(scope, node))
    if isinstance(node, exp.In) and node.args.get("query") is not None:
        return _in_value(planner, block, node, node.args["query"], scope)
    if isinstance(node, exp.EQ) and isinstance(any_of := bare(node.expression), exp.Any):
        query = _queried(any_of.this)
        if query is not None:
            return _in_value(planner, block, node, query, scope)
    if isinstance(node, exp.Any | exp.All) and _queried(node.this) is not None:
        message = (
            "ANY and ALL of a subquery are supported in a view only as a condition that AND joins to the others: "
            "write EXISTS"
        )
        raise Invalid(message, position=_place(scope, node))
    if not isinstance(node, exp.Query):
        return None
    return _value(planner, block, _query(planner, node, scope), _place(scope, node))


def _value(planner: "Planner", block: Block, inner: Block, place: int) -> tuple[Block, exp.Expr]:
    """Return the value of a subquery, and the block that has its input."""
    if len(inner.outputs) != 1:
        # Postgres accepts several columns only beside a row.
        message = (
            "a row that is compared with a row of a subquery is not supported in a view: write IN or EXISTS, or "
            "compare each value with a subquery of its own"
        )
        raise Invalid(message, position=place)
    value = inner.outputs[0].value
    only = inner.only
    pending = only.shape.pending if only is not None else None
    if pending is not None and pending.always and not inner.conditions:
        return merged(block, replace(inner, outputs=())), operand(value)
    if inner.simple and at_most_one(inner, foreign(inner)):
        return _joined(block, inner, value)
    if foreign(inner):
        _refuse_several(place)
    return _checked(planner, block, inner)


def _refuse_several(place: int) -> NoReturn:
    message = (
        "a subquery as a value that names the outer query and can have several rows is not supported in a view: "
        "use an aggregate of it, such as max(..), or join it"
    )
    raise Invalid(message, position=place)


def _joined(block: Block, inner: Block, value: exp.Expr) -> tuple[Block, exp.Expr]:
    """Return the value of a subquery that has at most one row, as the right side of a LEFT JOIN."""
    if inner.total:
        return attached(block, JoinKind.LEFT, replace(inner, outputs=()), []), operand(value)
    pad = padded(inner, value)
    assert pad is not None, "an input with a key has a column that is not NULL"
    return attached(block, JoinKind.LEFT, replace(inner, outputs=()), []), operand(pad)


def _checked(planner: "Planner", block: Block, inner: Block) -> tuple[Block, exp.Expr]:
    """Return the value of a subquery that should have at most one row. Postgres raises its error if it has more."""
    value = inner.outputs[0].value
    source = stored_input(planner, replace(inner, outputs=()), (), [value])
    whole = source.over_part(value)
    body = Parted(
        source=source.one,
        where=source.where,
        columns=(),
        query=built(f'SELECT 1::smallint AS "{ONE}", (SELECT {{0}} FROM "{PART}") AS "value"', whole),
        reads=frozenset(one.name for one in source.one.shape.key) | frozenset(source.one.shape.columns),
        key=(KeyColumn(name=ONE),),
        outputs=(Output("value", column(NAMELESS, "value")),),
        single=True,
        not_null=frozenset({ONE}),
    )
    reading = planner.made.reading(planner.made.add(body))
    # Nothing has been computed yet for an input that never had a row.
    return attached(block, JoinKind.LEFT, replace(reading, outputs=()), []), reading.outputs[0].value


def _in_value(
    planner: "Planner", block: Block, node: exp.Expr, query: exp.Expr, scope: Scope
) -> tuple[Block, exp.Expr]:
    place = _place(scope, node)
    if _row(node.this) is not None:
        message = (
            "a row before IN (subquery) is supported in a view only as a condition that AND joins to the others: "
            "write EXISTS"
        )
        raise Invalid(message, position=place)
    block, value = planner.value(block, node.this, scope)
    inner = _query(planner, query, scope)
    _check_width(inner, 1, place)
    other = inner.outputs[0].value
    if not _is_filter(node) and not (_sure(value, block) and _sure(other, inner)):
        message = (
            "IN (subquery) is not supported in a view here where a value can be NULL: write it as a condition of "
            "WHERE, or use EXISTS"
        )
        raise Invalid(message, position=place)
    return _truth(planner, block, inner, [exp.EQ(this=operand(other), expression=operand(value))], place)


def _is_filter(node: exp.Expr) -> bool:
    """Whether only AND and OR stand between a node and its WHERE, so that NULL counts as false."""
    at = node.parent
    while isinstance(at, exp.Paren | exp.And | exp.Or):
        at = at.parent
    return isinstance(at, exp.Where | exp.Having)


def _truth(
    planner: "Planner", block: Block, inner: Block, pairs: Sequence[exp.Expr], place: int
) -> tuple[Block, exp.Expr]:
    """Return whether a subquery has a row, as a value: through a distinct relation of what it is compared with."""
    if inner.total:
        _refuse_several(place)
    own = {one.alias for group in inner.groups for one in group.inputs}
    correlated, rest = split_correlated(replace(inner, outputs=()), [*pairs], own, place)
    keys = tuple(Output(f"k{at}", mine) for at, (mine, _) in enumerate(correlated))
    outputs = tuple(Output(f"k{at}", column(NAMELESS, f"k{at}")) for at in range(len(keys)))
    count = ("c0", built("count(*)"))
    outputs += (Output("c0", column(NAMELESS, "c0")),)
    body = Grouped(rest, keys, (count,), outputs, (tuple(range(len(keys))),))
    reading = planner.made.reading(planner.made.add(body))
    found = exp.Paren(
        this=exp.GT(
            this=exp.Anonymous(this="coalesce", expressions=[reading.outputs[-1].value, built("0")]),
            expression=built("0"),
        )
    )
    on = [
        exp.EQ(this=one.value, expression=operand(theirs))
        for one, (_, theirs) in zip(reading.outputs, correlated, strict=False)
    ]
    return attached(block, JoinKind.LEFT, replace(reading, outputs=()), on), found


def split_correlated(
    inner: Block, pairs: Sequence[exp.Expr], own: set[str], place: int
) -> tuple[list[tuple[exp.Expr, exp.Expr]], Block]:
    """Return the equalities of own and outer expressions, and the block without them. Raises Invalid."""
    correlated: list[tuple[exp.Expr, exp.Expr]] = []
    kept_on: list[exp.Expr] = []
    for one in (*inner.core.on, *pairs):
        if one not in pairs and not aliases_of(one) - own:
            kept_on.append(one)
            continue
        correlated.append(_sides(one, own, place))
    rest = replace(inner, groups=(replace(inner.core, on=tuple(kept_on)), *inner.groups[1:]))
    if foreign(rest):
        _refuse_correlation(place)
    return correlated, rest


def _sides(node: exp.Expr, own: set[str], place: int) -> tuple[exp.Expr, exp.Expr]:
    inner = bare(node)
    if isinstance(inner, exp.EQ):
        for mine, theirs in ((inner.this, inner.expression), (inner.expression, inner.this)):
            if aliases_of(mine) <= own and not aliases_of(theirs) & own:
                return bare(mine), bare(theirs)
    return _refuse_correlation(place)


def _refuse_correlation(place: int) -> NoReturn:
    message = (
        "a subquery that names the outer query can be a value in a view only if equalities link the two: "
        "write it as a join, or as EXISTS in WHERE"
    )
    raise Invalid(message, position=place)
