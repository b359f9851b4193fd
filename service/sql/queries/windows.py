"""Plan window functions, DISTINCT ON and ORDER BY with LIMIT: each part of one stored input is computed as a whole.

Every order is made total by the input's key where that cannot change the result that Postgres defines. Rows that
Postgres could return in any order have therefore one result here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from sqlglot import exp

from service.domain.errors import Invalid
from service.protocol.columns import KeyColumn
from service.protocol.relation import TRAVEL_PREFIX
from service.sql.expressions.allowed import called_name
from service.sql.queries.blocks import Block, Output, filtered, foreign
from service.sql.queries.nodes import bare, built, column, columns_of, named, operand, printed, rewritten
from service.sql.queries.parts import PART, Source, sorting_columns, stored_input
from service.sql.queries.relations import NAMELESS, Parted, Ranked, shown_by, uniquely_named
from service.sql.queries.scope import Scope
from service.sql.queries.selected import Selected
from service.sql.queries.subqueries import split_correlated
from service.sql.text.tree import identifier

if TYPE_CHECKING:
    from service.sql.queries.planner import Planner

_PART: Final = built(f'SELECT 1 FROM "{PART}"')
_BY_ROW: Final = frozenset({"row_number", "ntile", "lag", "lead"})
"""Functions whose result depends on the order of all rows, whatever the frame."""
_BY_PEERS: Final = frozenset({"rank", "dense_rank", "percent_rank", "cume_dist"})
_PLACES: Final = frozenset({"row_number", "rank"})
"""Functions that give a row its place in the order of its part."""
_FROM_ONE: Final = frozenset({"ntile", "nth_value"})
_AT_THE_END: Final = frozenset({"last_value", "nth_value"})


def with_named(node: exp.Expr, windows: Mapping[str, exp.Expr], scope: Scope) -> exp.Expr:
    """Return an expression whose `OVER name` have the definition from the WINDOW clause."""
    for one in list(node.find_all(exp.Window)):
        alias = one.args.get("alias")
        if alias is None:
            continue
        name = identifier(alias)
        if name not in windows:
            raise Invalid(f'window "{name}" does not exist', position=scope.tree.position(one))
        one.set("alias", None)
        for part in ("partition_by", "order", "spec"):
            found = windows[name].args.get(part)
            if found and not one.args.get(part):
                one.set(part, [each.copy() for each in found] if isinstance(found, list) else found.copy())
        with_named(one, windows, scope)
    return node


def has_windows(selected: Selected) -> bool:
    """Whether a SELECT has window functions."""
    return any(one.find(exp.Window) is not None for one in _values(selected))


def _values(selected: Selected) -> list[exp.Expr]:
    return [*(one.value for one in selected.outputs), *(one.this for one in selected.order), *selected.distinct_on]


def windowed(planner: "Planner", selected: Selected, place: int) -> Selected:
    """Return the SELECT over a relation that has the values of its window functions."""
    values = _values(selected)
    found = [one for value in values for one in value.find_all(exp.Window)]
    common = _common([one.args.get("partition_by") or [] for one in found])
    source = stored_input(planner, selected.block, common, values)
    made = _Parting(source, values, names_of(selected))
    made.values = [rewritten(one, lambda part: _total(part, source, place)) for one in made.values]
    orders = [window.args.get("order") for one in made.values for window in one.find_all(exp.Window)]
    order = next((one.expressions for one in orders if one is not None), ())
    reading = made.reading(planner, _PART, order=order, ranked=made.ranked())
    return _over(selected, reading)


def names_of(selected: Selected) -> list[str]:
    """Return the names of a SELECT's outputs."""
    return [one.name for one in selected.outputs]


def _common(partitions: Sequence[Sequence[exp.Expr]]) -> list[exp.Expr]:
    """Return the expressions by which all windows partition."""
    texts = [{printed(bare(one)) for one in each} for each in partitions]
    first = {printed(bare(one)): bare(one) for one in partitions[0]}
    return [one for text, one in first.items() if all(text in each for each in texts)]


def _over(selected: Selected, reading: Block) -> Selected:
    """Return the SELECT with the values of `reading` in place of its own.

    An expression of ORDER BY that was equal to an output still is.
    """
    values = [one.value for one in reading.outputs]
    outputs = tuple(replace(one, value=value) for one, value in zip(selected.outputs, values, strict=False))
    shown = {printed(bare(before.value)): one.value for before, one in zip(selected.outputs, outputs, strict=True)}
    others = iter(values[len(outputs) :])

    def changed(before: exp.Expr) -> exp.Expr:
        value = next(others)
        return shown.get(printed(bare(before)), value)

    order = tuple(exp.Ordered(**{**one.args, "this": changed(one.this)}) for one in selected.order)
    keys = tuple(map(changed, selected.distinct_on))
    return Selected(replace(reading, outputs=()), outputs, order=order, distinct_on=keys)


class _Parting:
    """A query over `part` that gives the input's key and some values."""

    def __init__(self, source: Source, values: Sequence[exp.Expr], names: Sequence[str]) -> None:
        """`names` are those of the first values."""
        self._source = source
        self._names = [*names, *(f"value_{at}" for at in range(len(values) - len(names)))]
        self.values = [source.over_part(one) for one in values]

    def reading(
        self,
        planner: "Planner",
        query: exp.Expr,
        key: Sequence[KeyColumn] | None = None,
        *,
        order: Sequence[exp.Ordered],
        ranked: Ranked | None = None,
        single: bool = False,
    ) -> Block:
        """Return the block that reads the query's result, with all values as outputs.

        `query` has another SELECT list, and sorts a part by `order`. The result has the input's key, or `key`.
        """
        key = self._source.one.shape.key if key is None else key
        keys = [part.name for part in key]
        shown = [Output(name, column(PART, name)) for name in keys]
        outputs: list[Output] = []
        for number, value in enumerate(self.values):
            inner = bare(value)
            if isinstance(inner, exp.Column) and named(inner)[1] in keys:
                outputs.append(Output(self._names[number], column(NAMELESS, named(inner)[1])))
                continue
            shown.append(Output(f"{TRAVEL_PREFIX}{number}", value))
            outputs.append(Output(self._names[number], column(NAMELESS, shown[-1].name)))
        body = Parted(
            source=self._source.one,
            where=self._source.where,
            columns=tuple(dict.fromkeys(self._source.columns)),
            query=shown_by(query, shown),
            reads=frozenset({*keys, *self._source.columns, *self._reads(query)}),
            key=tuple(key),
            outputs=uniquely_named(outputs),
            single=single,
            not_null=frozenset(name for name in keys if name in self._source.one.shape.not_null),
            order=sorting_columns(order),
            ranked=ranked,
        )
        return planner.made.reading(planner.made.add(body))

    def ranked(self) -> Ranked | None:
        """Return the order by which the only window of the values numbers the rows of the whole part, if it does so."""
        found = [
            (number, value, window) for number, value in enumerate(self.values) for window in value.find_all(exp.Window)
        ]
        if len(found) != 1:
            return None
        ((number, value, window),) = found
        name, order = (
            called_name(window.this) if isinstance(window.this, exp.Anonymous) else "",
            window.args.get("order"),
        )
        by = {named(one)[1] for one in map(bare, window.args.get("partition_by") or []) if isinstance(one, exp.Column)}
        if bare(value) is not window or name not in _PLACES or order is None or by != set(self._source.columns):
            return None
        return Ranked(tuple(order.expressions), f"{TRAVEL_PREFIX}{number}", ties=name == "rank")

    def _reads(self, query: exp.Expr) -> set[str]:
        return {name for value in (*self.values, query) for _, name in columns_of(value)}


def _check(window: exp.Window, place: int) -> None:
    """Refuse an argument with which Postgres could compute no row, so that every epoch would fail."""
    inner = window.this.this if isinstance(window.this, exp.Filter) else window.this
    name = called_name(inner) if isinstance(inner, exp.Anonymous) else ""
    if name in _FROM_ONE and not _is_above_zero(inner.expressions[-1:]):
        raise Invalid(f"{name} takes a whole number above 0", position=place)
    spec = window.args.get("spec")
    bounds = (
        () if spec is None else (bare(one) for key in ("start", "end") if isinstance(one := spec.args[key], exp.Expr))
    )
    if any(isinstance(one, exp.Neg) for one in bounds):
        raise Invalid("a window begins and ends at a number of rows that is not below 0", position=place)


def _is_above_zero(given: Sequence[exp.Expr]) -> bool:
    values = [bare(one) for one in given]
    return all(isinstance(one, exp.Literal) and one.is_int and int(one.this) > 0 for one in values)


def _total(node: exp.Expr, source: Source, place: int) -> exp.Expr | None:
    """Return a window function whose result does not depend on the order of equal rows, or None for another node.

    The input's key is appended to its ORDER BY where that is needed.
    """
    if not isinstance(node, exp.Window):
        return None
    _check(node, place)
    inner = node.this.this if isinstance(node.this, exp.Filter) else node.this
    name = called_name(inner) if isinstance(inner, exp.Anonymous) else ""
    spec, order = node.args.get("spec"), node.args.get("order")
    kind = str(spec.args.get("kind") or "").upper() if spec is not None else ""
    by_place = name in _AT_THE_END or name == "first_value"
    if name in _AT_THE_END and order is not None and kind != "ROWS" and not _ends(spec, "UNBOUNDED"):
        return _up_to_peers(node, name, source, place)
    if name not in _BY_PEERS and (name in _BY_ROW or by_place or kind == "ROWS"):
        return _keyed(node, source)
    return node


def _ends(spec: exp.Expr | None, bound: str) -> bool:
    """Whether a frame ends with `UNBOUNDED` FOLLOWING or the `CURRENT ROW`."""
    if spec is None:
        return bound == "CURRENT ROW"
    side = str(spec.args.get("end_side") or "").upper()
    return str(spec.args.get("end") or "CURRENT ROW").upper() == bound and side in ("", "FOLLOWING")


def _up_to_peers(window: exp.Window, name: str, source: Source, place: int) -> exp.Expr:
    """Return `last_value` or `nth_value` over a frame from the first row of its part to the last peer of its row.

    Peers have no order among each other, so Postgres may take any of them; here their keys order them.
    """
    spec, order = window.args.get("spec"), window.args["order"]
    from_first = spec is None or (str(spec.args.get("start")).upper() == "UNBOUNDED" and not spec.args.get("exclude"))
    if not from_first or not _ends(spec, "CURRENT ROW"):
        message = f"{name} over this frame is not supported in a view: add ROWS BETWEEN .. to the window"
        raise Invalid(message, position=place)
    whole = exp.WindowSpec(
        kind="ROWS", start="UNBOUNDED", start_side="PRECEDING", end="UNBOUNDED", end_side="FOLLOWING"
    )
    partition = window.args.get("partition_by") or []
    if name == "last_value":
        peers = [*partition, *(one.this for one in order.expressions)]
        return _keyed(exp.Window(**{**window.args, "partition_by": peers, "order": None, "spec": whole}), source)
    counted = exp.Window(this=built("count(*)"), partition_by=partition, order=order.copy(), over="OVER")
    found = _keyed(exp.Window(**{**window.args, "spec": whole}), source)
    there = exp.GTE(this=counted, expression=operand(window.this.expressions[1].copy()))
    return exp.Case(ifs=[exp.If(this=there, true=found)])


def _keyed(window: exp.Window, source: Source) -> exp.Window:
    spec, order = window.args.get("spec"), window.args.get("order")
    if spec is not None and str(spec.args.get("kind") or "").upper() == "RANGE" and _has_offset(spec):
        return window
    items = list(order.expressions) if order is not None else []
    keyed = exp.Order(expressions=[*items, *(exp.Ordered(this=one) for one in source.key)])
    return exp.Window(**{**window.args, "order": keyed})


def _has_offset(spec: exp.Expr) -> bool:
    return any(isinstance(spec.args.get(name), exp.Expr) for name in ("start", "end"))


def distinct_on(planner: "Planner", selected: Selected) -> Selected:
    """Return the SELECT over the first row of each set of rows with equal values of DISTINCT ON."""
    values = [*(one.value for one in selected.outputs), *(one.this for one in selected.order), *selected.distinct_on]
    source = stored_input(planner, selected.block, selected.distinct_on, values)
    made = _Parting(source, values, names_of(selected))
    order = _ordered(source, selected.order)
    query = _sorted(order, [column(PART, name) for name in source.columns])
    # The order begins with the columns of the part, which an index has anyway.
    order = [one for one in order if not _names(one, source.columns)]
    reading = made.reading(planner, query, order=order, ranked=Ranked(tuple(order)) if order else None)
    return _over(replace(selected, distinct_on=()), reading)


def _ordered(source: Source, order: Sequence[exp.Ordered], *, total: bool = True) -> list[exp.Ordered]:
    """Return an order over `part`. With `total` it ends with the input's key."""
    items = [exp.Ordered(**{**one.args, "this": source.over_part(one.this)}) for one in order]
    return items + ([exp.Ordered(this=one) for one in source.key] if total else [])


def _names(item: exp.Ordered, columns: Sequence[str]) -> bool:
    inner = bare(item.this)
    return isinstance(inner, exp.Column) and named(inner)[1] in columns


def _sorted(
    order: Sequence[exp.Expr],
    distinct_on: Sequence[exp.Expr] = (),
    limits: Mapping[str, exp.Expr] = MappingProxyType({}),
) -> exp.Expr:
    """Return a query of the part in an order."""
    arguments = {**_PART.args, **limits, "order": exp.Order(expressions=[*order]) if order else None}
    if distinct_on:
        arguments["distinct"] = exp.Distinct(on=exp.Tuple(expressions=[*distinct_on]))
    return exp.Select(**arguments)


def limited(planner: "Planner", node: exp.Expr, selected: Selected, scope: Scope) -> Block:
    """Return the block of a SELECT, of whose rows LIMIT and OFFSET keep some."""
    block = replace(selected.block, outputs=selected.outputs)
    if not any(node.args.get(name) for name in ("limit", "offset", "fetch")):
        return block
    values = [*(one.value for one in selected.outputs), *(one.this for one in selected.order)]
    if foreign(block):
        return _first_for_each(planner, node, selected, values)
    source = stored_input(planner, selected.block, (), values)
    made = _Parting(source, values[: len(selected.outputs)], names_of(selected))
    limits, ties = _limits(planner, node, scope)
    order = _ordered(source, selected.order, total=not ties)
    one = list(limits) == ["limit"] and bare(limits["limit"].expression) == exp.Literal.number(1)
    reading = made.reading(planner, _sorted(order, limits=limits), order=order, single=one)
    done = _over(replace(selected, order=(), distinct_on=()), reading)
    return replace(done.block, outputs=done.outputs)


def _first_for_each(planner: "Planner", node: exp.Expr, selected: Selected, values: list[exp.Expr]) -> Block:
    """Return the block of a subquery with LIMIT 1: the first row for each row of the outer query."""
    limit = node.args.get("limit")
    one = limit.expression.name if isinstance(limit, exp.Limit) else None
    if one != "1" or node.args.get("offset") is not None:
        planner.made.refuse_outer()
    block = selected.block
    own = {each.alias for group in block.groups for each in group.inputs}
    linked, block = split_correlated(block, [], own, planner.made.place)
    mine = [each for each, _ in linked]
    source = stored_input(planner, block, mine, [*values, *mine])
    made = _Parting(source, [*values[: len(selected.outputs)], *mine], names_of(selected))
    columns = [column(PART, name) for name in source.columns]
    order = _ordered(source, selected.order)
    key = [KeyColumn(name=name) for name in dict.fromkeys(source.columns)]
    query = _sorted([*(exp.Ordered(this=one.copy()) for one in columns), *order], columns)
    reading = made.reading(planner, query, key, order=order, ranked=Ranked(tuple(order)) if order else None)
    shown = reading.outputs[: len(selected.outputs)]
    result = replace(reading, outputs=())
    for value, (_, theirs) in zip(reading.outputs[len(shown) :], linked, strict=True):
        result = filtered(result, exp.EQ(this=value.value, expression=operand(theirs)))
    outputs = (replace(one, value=each.value) for one, each in zip(selected.outputs, shown, strict=True))
    return replace(result, outputs=tuple(outputs))


def _limits(planner: "Planner", node: exp.Expr, scope: Scope) -> tuple[dict[str, exp.Expr], bool]:
    """Return LIMIT and OFFSET of a query over the part, and whether rows that tie with the last one stay."""
    found: dict[str, exp.Expr] = {}
    offset, limit = node.args.get("offset"), node.args.get("limit") or node.args.get("fetch")
    if offset is not None:
        found["offset"] = exp.Offset(expression=_constant(planner, offset.expression, scope))
    if not isinstance(limit, exp.Fetch):
        if limit is not None:
            found["limit"] = exp.Limit(expression=_constant(planner, limit.expression, scope))
        return found, False
    options, count = limit.args.get("limit_options"), limit.args.get("count")
    ties = options is not None and bool(options.args.get("with_ties"))
    if options is not None and options.args.get("percent"):
        raise Invalid("FETCH .. PERCENT is not supported in a view", position=scope.tree.position(limit))
    number = _constant(planner, count, scope) if count is not None else exp.Literal.number(1)
    kept = exp.LimitOptions(rows=True, with_ties=ties)
    found["limit"] = exp.Fetch(direction="FIRST", count=number, limit_options=kept)
    return found, ties


def _constant(planner: "Planner", node: exp.Expr, scope: Scope) -> exp.Expr:
    if node.find(exp.Query) is not None or node.find(exp.Column) is not None:
        message = "LIMIT and OFFSET of a view take constants"
        raise Invalid(message, position=scope.tree.position(node))
    return exp.Paren(this=planner.plain(node, Scope(scope.tree)))
