"""The meaning of aggregates and window functions in a partition's query that Spark is to compute exactly as Postgres.

Postgres orders the rows of an aggregate, so an aggregate that depends on their order has one, up to the key of a row.
Of Spark's aggregates, those are taken that choose by an order of their own.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from sqlglot import exp

from service.domain.errors import Invalid
from service.protocol.columns import TypeName
from service.sql.expressions.allowed import called_name
from service.sql.expressions.functions import Form, form_of
from service.sql.expressions.operators import truth
from service.sql.expressions.typed import (
    BIGINT,
    BOOLEAN,
    DOUBLE,
    INTEGER,
    INTEGERS,
    TEXT,
    Typed,
    coerced,
    common,
    digits,
    numeric,
)
from service.sql.queries.allowed import is_aggregate_call
from service.sql.queries.nodes import bare
from service.sql.queries.spark_scope import StoreScope, is_exact
from service.sql.text.tree import identifier

_FLOATS: Final = (TypeName.REAL, TypeName.DOUBLE)
_SUM_DIGITS: Final = 10
"""So many digits more has Spark's sum of decimals."""


def check_equal(value: Typed) -> None:
    """Raise Invalid unless Spark finds the same values equal as Postgres does."""
    kind = value.type
    if kind is None or kind.array or kind.unbounded or kind.name in (TypeName.INTERVAL, TypeName.JSONB):
        raise Invalid(f"only the state store finds equal values of type {value.shown}")


def number_of(node: exp.Expr) -> int:
    """Return a number of rows that is written as a literal. Raises Invalid for another one."""
    inner = bare(node)
    if not isinstance(inner, exp.Literal) or inner.is_string or not inner.name.isdigit() or int(inner.name) >= 1 << 31:
        raise Invalid("only the state store reads such a number of rows")
    return int(inner.name)


@dataclass(frozen=True, slots=True)
class _Call:
    """A call of an aggregate, taken apart. `where` is its FILTER."""

    name: str
    given: Sequence[exp.Expr]
    order: Sequence[exp.Ordered]
    distinct: bool
    where: str

    @property
    def filtered(self) -> str:
        return f" filter (where {self.where})" if self.where else ""


@dataclass(frozen=True, slots=True)
class PartScope(StoreScope):
    """The columns of a SELECT. `keys` are the columns of the part, if it reads `part`."""

    keys: Sequence[str] = ()

    def bind(self, node: exp.Expr) -> Typed:
        if isinstance(node, exp.Window):
            return self._window(node)
        if isinstance(node, exp.Bracket):
            found = _first_value(node)
            if found is not None:
                return self._by_order(self._call(found), "")
        if isinstance(node, exp.Filter) or is_aggregate_call(node):
            return self._aggregate(self._call(node))
        return StoreScope.bind(self, node)

    def is_unbounded(self, node: exp.Column) -> bool:
        """Whether a column is a numeric without a precision."""
        found = self.resolved(node.args.get("table"), identifier(node.this))
        return found is not None and found.type is not None and found.type.unbounded

    def equal(self, node: exp.Expr) -> str:
        """Print a value by which rows are put together."""
        value = self.bind(node)
        check_equal(value)
        return value.sql

    def ordered(self, order: exp.Expr | None) -> str:
        """Print an ORDER BY, if there is one."""
        items = [] if order is None else order.expressions
        return f"order by {', '.join(map(self._ordered, items))}" if items else ""

    def _ordered(self, item: exp.Expr) -> str:
        place = "first" if item.args.get("nulls_first") else "last"
        return f"{self._sorted(item.this).sql} {'desc' if item.args.get('desc') else 'asc'} nulls {place}"

    def _sorted(self, node: exp.Expr) -> Typed:
        """Bind a value that Spark orders as Postgres does."""
        value = self.bind(node)
        kind = value.type
        if kind is None or kind.array or kind.name in (TypeName.INTERVAL, TypeName.JSONB):
            raise Invalid(f"only the state store orders values of type {value.shown}")
        if kind == TEXT and not isinstance(bare(node), exp.Column):
            raise Invalid("only the state store orders such a text as Postgres does")
        return value

    def _call(self, node: exp.Expr) -> _Call:
        where = ""
        if isinstance(node, exp.Filter):
            where, node = truth(self.bind(node.expression.this), "FILTER"), node.this
        if not isinstance(node, exp.Anonymous):
            raise self.refusal(node)
        given, order = list(node.expressions), list[exp.Ordered]()
        if given and isinstance(given[-1], exp.Order):
            order, given[-1] = list(given[-1].expressions), given[-1].this
        distinct = bool(given) and isinstance(given[-1], exp.Distinct)
        if distinct:
            given[-1:] = given[-1].expressions
        return _Call(called_name(node), given, order, distinct, where)

    def _aggregate(self, call: _Call, over: str = "") -> Typed:
        binder = _AGGREGATES.get(form_of(call.name))
        if binder is None:
            raise Invalid(f"only the state store computes {call.name} as Postgres does")
        return replace(binder(self, call, over), column=None)

    def count(self, call: _Call, over: str) -> Typed:
        """Bind a count of rows, of values or of distinct values."""
        if not call.given or isinstance(call.given[0], exp.Star):
            shown = "1"
        else:
            value = self.bind(call.given[0]) if call.distinct else self._shown(call.given[0])
            shown = value.sql
            if call.distinct:
                check_equal(value)
                shown = f"distinct {shown}"
        return Typed(f"count({shown}){call.filtered}{over}", BIGINT)

    def sum(self, call: _Call, over: str) -> Typed:
        """Bind the sum of an exact number."""
        value = self.bind(call.given[0])
        if not is_exact(value):
            raise Invalid("Spark's sum of floats is another one")
        word = "distinct " if call.distinct else ""
        if value.name in INTEGERS[:2]:
            return Typed(f"sum({word}{value.sql}){call.filtered}{over}", BIGINT)
        exact = coerced(value, numeric(20, 0)) if value.name in INTEGERS else value
        assert exact.type is not None
        whole, scale = digits(exact.type)
        return Typed(f"sum({word}{exact.sql}){call.filtered}{over}", numeric(whole + _SUM_DIGITS, scale))

    def truths(self, call: _Call, over: str) -> Typed:
        """Bind bool_and, bool_or and every."""
        shown = truth(self.bind(call.given[0]), call.name)
        return Typed(f"{'bool_or' if call.name == 'bool_or' else 'bool_and'}({shown}){call.filtered}{over}", BOOLEAN)

    def bits(self, call: _Call, over: str) -> Typed:
        """Bind bit_and and bit_or."""
        value = self.bind(call.given[0])
        if value.name not in INTEGERS:
            raise Invalid(f"only the state store computes {call.name} of {value.shown}")
        return replace(value, sql=f"{call.name}({value.sql}){call.filtered}{over}")

    def extreme(self, call: _Call, over: str) -> Typed:
        """Bind min and max. Of equal values that look different, Postgres takes the last in the order of the call."""
        node = call.given[0]
        value, column = self._sorted(node), bare(node)
        unbounded = isinstance(column, exp.Column) and self.is_unbounded(column)
        if not unbounded and value.name not in _FLOATS:
            return replace(value, sql=f"{call.name}({value.sql}){call.filtered}{over}")
        if over or not call.order:
            raise Invalid(f"only the state store knows which of some equal values {call.name} is")
        place = self._struct(call.order)
        if unbounded:
            assert isinstance(column, exp.Column)
            text = self.resolved(column.args.get("table"), identifier(column.this))
            assert text is not None
            by = f"struct({value.sql if call.name == 'max' else f'0 - {value.sql}'} as v, {place} as k)"
            return replace(text, sql=f"max_by({text.sql}, {by}){_where(call.where, f'{text.sql} is not null')}")
        # Of floats, only 0 and -0 are equal and look different.
        zero = f"max_by({value.sql}, {place}){_where(call.where, f'{value.sql} = 0')}"
        found = f"{call.name}({value.sql}){call.filtered}"
        return replace(value, sql=f"(case when {found} = 0 then {zero} else {found} end)")

    def texts(self, call: _Call, over: str) -> Typed:
        """Bind string_agg."""
        value, separator = self.bind(call.given[0]), bare(call.given[1])
        if over or value.type != TEXT or not isinstance(separator, exp.Literal) or not separator.is_string:
            raise Invalid("only the state store computes such a string_agg")
        between = coerced(self.bind(separator), TEXT).sql
        if call.distinct:
            # Postgres sorts them, and refuses another order.
            texts = f"array_sort(collect_set({self._sorted(call.given[0]).sql}){call.filtered})"
            if any(item.args.get("desc") or item.args.get("nulls_first") for item in call.order):
                raise Invalid("only the state store aggregates in a descending order")
        else:
            texts = f"transform(array_sort({self._rows(call, value)}), x -> x.v)"
        # Spark's own listagg fails beside two aggregates of distinct values.
        return replace(value, sql=f"(case when cardinality({texts}) > 0 then array_join({texts}, {between}) end)")

    def _rows(self, call: _Call, value: Typed) -> str:
        """Print the list of the rows of an aggregate: their order, and their value."""
        if not call.order:
            raise Invalid(f"only the state store knows the order of this {call.name}")
        present = f"{value.sql} is not null" if call.name == "string_agg" else ""
        where = _where(call.where, present) if present else call.filtered
        return f"collect_list(struct({self._struct(call.order)} as k, {value.sql} as v)){where}"

    def array(self, call: _Call, over: str) -> Typed:
        """Bind array_agg."""
        value = self.bind(call.given[0])
        if over or call.distinct or value.type is None or value.type.array:
            raise Invalid("only the state store computes such an array_agg")
        rows = self._rows(call, value)
        text = f"transform(array_sort({rows}), x -> x.v)"
        return replace(
            value, sql=f"(case when cardinality({rows}) > 0 then {text} end)", type=replace(value.type, array=True)
        )

    def any_value(self, call: _Call, over: str) -> Typed:
        """Bind any_value: the first value that is not NULL."""
        return self._by_order(call, over, present=True)

    def _by_order(self, call: _Call, over: str, *, present: bool = False) -> Typed:
        """Bind the value of the first row in the order of a call, or the first one that is `present`."""
        value = self._shown(call.given[0])
        if over or call.distinct or not call.order:
            raise Invalid("only the state store knows the order of these rows")
        where = _where(call.where, f"{value.sql} is not null") if present else call.filtered
        return replace(value, sql=f"min_by({value.sql}, {self._struct(call.order)}){where}", column=None)

    def _shown(self, node: exp.Expr) -> Typed:
        """Bind a value that is passed on: the text of a numeric without a precision."""
        inner = bare(node)
        if isinstance(inner, exp.Column):
            found = self.resolved(inner.args.get("table"), identifier(inner.this))
            if found is not None:
                return found
        return self.bind(node)

    def _struct(self, order: Sequence[exp.Expr]) -> str:
        """Print an ascending order as a value that is compared. In a struct, NULL is the least value."""
        if any(item.args.get("desc") or item.args.get("nulls_first") for item in order):
            raise Invalid("only the state store aggregates in a descending order")
        values = [self._sorted(item.this).sql for item in order]
        return f"struct({', '.join(f'isnull({one}), {one}' for one in values)})"

    def _window(self, node: exp.Window) -> Typed:
        """Bind a window function."""
        inner = node.this
        if not isinstance(inner, exp.Anonymous):
            raise Invalid("only the state store computes such a window function")
        name, order = called_name(inner), node.args.get("order")
        keys = dict.fromkeys([*self.keys, *(self.equal(one) for one in node.args.get("partition_by") or ())])
        window = [f"partition by {', '.join(keys)}" if keys else "", self.ordered(order)]
        binder = _WINDOWS.get(form_of(name))
        if binder is not None:
            if order is None:
                raise Invalid(f"only the state store computes {name} without an order")
            return binder(self, inner, f" over ({' '.join(filter(None, window))})")
        over = f" over ({' '.join(filter(None, [*window, _frame(node.args.get('spec'))]))})"
        if form_of(name) is Form.VALUE:
            value = self._shown(inner.expressions[0])
            more = f", {number_of(inner.expressions[1])}" if name == "nth_value" else ""
            return replace(value, sql=f"{name}({value.sql}{more}){over}", column=None)
        call = self._call(inner)
        if call.order or call.distinct:
            raise Invalid("only the state store computes such a window function")
        return self._aggregate(call, over)

    def ranked(self, node: exp.Anonymous, over: str) -> Typed:
        """Bind a place in the order of a part."""
        return Typed(f"cast({called_name(node)}(){over} as bigint)", BIGINT)

    def shared(self, node: exp.Anonymous, over: str) -> Typed:
        """Bind a relative place in the order of a part."""
        return Typed(f"{called_name(node)}(){over}", DOUBLE)

    def tiles(self, node: exp.Anonymous, over: str) -> Typed:
        """Bind ntile."""
        return Typed(f"ntile({number_of(node.expressions[0])}){over}", INTEGER)

    def shifted(self, node: exp.Anonymous, over: str) -> Typed:
        """Bind lag and lead."""
        value, *more = node.expressions
        rows = number_of(more[0]) if more else 1
        if len(more) < 2:
            found = self._shown(value)
            return replace(found, sql=f"{called_name(node)}({found.sql}, {rows}){over}", column=None)
        found, default = self.bind(value), self.bind(more[1])
        kind = common([found, default], called_name(node))
        texts = f"{coerced(found, kind).sql}, {rows}, {coerced(default, kind).sql}"
        return Typed(f"{called_name(node)}({texts}){over}", kind)


def _where(first: str, second: str) -> str:
    return f" filter (where {' and '.join(filter(None, [first, second]))})"


def _first_value(node: exp.Bracket) -> exp.Expr | None:
    """Return the array_agg of which a subscript takes the first element."""
    inner, places = bare(node.this), node.expressions
    first = len(places) == 1 and isinstance(places[0], exp.Literal) and places[0].name == "1"
    called = inner.this if isinstance(inner, exp.Filter) else inner
    listed = isinstance(called, exp.Anonymous) and called_name(called) == "array_agg"
    return inner if first and listed else None


def _frame(spec: exp.Expr | None) -> str:
    """Print the frame of a window."""
    if spec is None:
        return ""
    kind = str(spec.args.get("kind") or "").upper()
    start, end = (_bound(spec, side, kind) for side in ("start", "end"))
    if kind not in ("ROWS", "RANGE") or spec.args.get("exclude"):
        raise Invalid("only the state store computes such a frame of a window")
    return f"{kind} between {start} and {end}"


def _bound(spec: exp.Expr, side: str, kind: str) -> str:
    value, where = spec.args.get(side), str(spec.args.get(f"{side}_side") or "")
    if isinstance(value, exp.Expr):
        if kind != "ROWS":
            raise Invalid("only the state store computes such a frame of a window")
        return f"{number_of(value)} {where}"
    return " ".join(filter(None, [str(value or "CURRENT ROW"), where]))


_AGGREGATES: Final[Mapping[Form | None, Callable[[PartScope, _Call, str], Typed]]] = {
    Form.COUNT: PartScope.count,
    Form.SUM: PartScope.sum,
    Form.EXTREME: PartScope.extreme,
    Form.TRUTH: PartScope.truths,
    Form.BITS: PartScope.bits,
    Form.TEXTS: PartScope.texts,
    Form.ARRAY: PartScope.array,
    Form.ANY_VALUE: PartScope.any_value,
}
_WINDOWS: Final[Mapping[Form | None, Callable[[PartScope, exp.Anonymous, str], Typed]]] = {
    Form.RANK: PartScope.ranked,
    Form.SHARE: PartScope.shared,
    Form.TILE: PartScope.tiles,
    Form.SHIFT: PartScope.shifted,
}
