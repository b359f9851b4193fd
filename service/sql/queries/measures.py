"""Choose the sums by which an aggregate is maintained, and print its result from them, with Postgres's digits.

Every measure is an exact number. A float contributes its shortest decimal, so that the sum does not depend on the
order of rows and a removed row is subtracted exactly. NaN and the infinities are counted on their own.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from sqlglot import exp

from service.domain.errors import Invalid
from service.protocol.columns import ColumnType, TypeName
from service.protocol.relation import KEY_PREFIX
from service.sql.queries.drafts import Call
from service.sql.queries.nodes import built, columns_of, conjunction, own_column, printed
from service.sql.queries.scales import Scales, row_scale, scale_of

_INTEGERS: Final = frozenset({"smallint", "integer", "bigint"})
_FLOATS: Final = frozenset({"real", "double precision"})
_ENCODED: Final = (exp.ByteString, exp.RawString, exp.HexString, exp.BitString)
_BIGINT: Final = ColumnType(TypeName.BIGINT)
_NUMERIC: Final = ColumnType(TypeName.NUMERIC)
MINUS_ZERO: Final = "{0}::double precision::text = '-0'"
_SCALE_DIGITS: Final = 18
"""An aggregate counts its rows of each scale in so many decimal digits of one number."""


class Measures:
    """The measures of one aggregate. Calls share equal ones. The first counts rows."""

    def __init__(self, columns: Collection[tuple[str, str]], scales: Scales) -> None:
        """`columns` are those of the inputs. Those with finite values alone have a scale."""
        self._columns, self._scales = columns, scales
        self._names: dict[str, str] = {}
        self.rows: dict[str, exp.Expr] = {}
        """What one row contributes to each measure."""
        self.types: dict[str, ColumnType] = {}
        self._count = self._measure(built("1::bigint"), _BIGINT)

    def result(self, call: Call, argument: str | None, result: str) -> exp.Expr:
        """Return a call's result over the sums. Raises Invalid.

        `argument` and `result` are the types of its argument and of its result.
        """
        if call.function == "count":
            return self.number(call)
        assert argument is not None
        assert call.argument is not None
        kind = argument.partition("(")[0]
        if call.function in {"bool_and", "every"}:
            return self._known(call, built("{0} = 0", self._counted(call, built("not {0}", call.argument))))
        if call.function == "bool_or":
            return self._known(call, built("{0} > 0", self._counted(call, call.argument)))
        if kind not in {*_INTEGERS, *_FLOATS, "numeric"}:
            message = f"{call.function} of a value of type {argument} is not supported in a view: use a number"
            raise Invalid(message)
        return self._known(call, _FORMULAS[call.function](self, call, kind, result))

    def look(self, name: str, node: exp.Expr, kind: ColumnType, seen: exp.Expr | None) -> exp.Expr | None:
        """Return a group's key `name` as its rows show it, or None if equal keys always look alike.

        Of -0 and 0 it is 0, if there is one, and of 2.5 and 2.500 the longest. Rows count that satisfy `seen`.
        """
        key = own_column(name)
        if not kind.looks_differ:
            return None
        call = Call("sum", node, node, seen)
        if not kind.unbounded:
            plain = self._counted(call, built(f"{{0}} = 0 and not {MINUS_ZERO}", node))
            shown = built(f"case when {{0}} > 0 then '0'::{kind} else '-0'::{kind} end", plain)
            return built("case when {0} = 0 then {1} else {0} end", key, shown)
        scale = self._scale(call, "numeric")
        if scale is None:
            return None
        # A group of which no row is seen keeps its value.
        shown = built("round({0}, greatest({1}, min_scale({0})))", key, scale)
        return built("case when {0} in ('NaN', 'Infinity', '-Infinity') then {0} else {1} end", key, shown)

    def _known(self, call: Call, value: exp.Expr) -> exp.Expr:
        """Return the result where a value that is not NULL has been counted, else NULL."""
        return built("case when {0} > 0 then {1} end", self.number(call), value)

    def number(self, call: Call) -> exp.Expr:
        """Return the number of rows that the call counts: those whose value is not NULL."""
        if call.argument is None or call.sure:
            return self._count if call.filter is None else self._counted(call)
        return self._counted(call, built("{0} is not null", call.argument))

    def _counted(self, call: Call, *conditions: exp.Expr) -> exp.Expr:
        return self._measure(built("(case when {0} then 1 else 0 end)::bigint", _all(call, conditions)), _BIGINT)

    def sum(self, call: Call, kind: str) -> exp.Expr:
        """Return the exact sum of the finite values, with as many digits behind the point as the longest of them."""
        total, scale = self._summed(call, kind, _exact(call, kind)), self._scale(call, kind)
        return total if scale is None else built("round({0}, {1})", total, scale)

    def squares(self, call: Call, kind: str) -> exp.Expr:
        """Return the exact sum of the squares of the finite values."""
        exact, scale = _exact(call, kind), self._scale(call, kind)
        total = self._summed(call, kind, built("{0} * {0}", exact))
        return total if scale is None else built("round({0}, 2 * {1})", total, scale)

    def _scale(self, call: Call, kind: str) -> exp.Expr | None:
        """Return the largest scale of the finite values, or None if all have the same, which their sum then has.

        A sum keeps the digits of values that were subtracted again. The rows of each scale are therefore counted. If
        the scales are not known, those of scale s are counted in the decimal digits from `s * _SCALE_DIGITS` on. The
        length of the number tells the largest s.
        """
        assert call.argument is not None
        if kind != "numeric" or scale_of(call.argument, self._scales) is not None:
            return None
        found = row_scale(call.argument, self._scales)
        if found is None:
            one = built(f"('1e' || ({_SCALE_DIGITS} * scale({{0}})))::numeric", _exact(call, kind))
            return built(f"(length({{0}}::text) - 1) / {_SCALE_DIGITS}", self._summed(call, kind, one))
        scale, (least, *others) = found
        known = () if call.sure else (built("{0} is not null", call.argument),)
        counted = {one: self._counted(call, *known, built(f"{{0}} = {one}", scale)) for one in reversed(others)}
        found = [exp.If(this=built("{0} > 0", count), true=built(str(one))) for one, count in counted.items()]
        return exp.Case(ifs=found, default=built(str(least))) if found else built(str(least))

    def _summed(self, call: Call, kind: str, value: exp.Expr) -> exp.Expr:
        assert call.argument is not None
        tests = [] if call.sure else ["{0} is not null"]
        tests += [] if self._exact(call, kind) else ["{0} not in ('NaN', 'Infinity', '-Infinity')"]
        if tests or call.filter is not None:
            conditions = _all(call, [built(one, call.argument) for one in tests])
            value = built("case when {0} then {1} else 0 end", conditions, value)
        return self._measure(built("{0}::numeric", value), _NUMERIC)

    def _exact(self, call: Call, kind: str) -> bool:
        """Whether a value is surely neither NaN nor infinite: arithmetic over integers and numerics with a scale."""
        if kind in _INTEGERS:
            return True
        assert call.argument is not None
        if kind not in _FLOATS and row_scale(call.argument, self._scales) is not None:
            return True
        if kind in _FLOATS or any(map(_may_be_special, call.argument.find_all(exp.Literal, *_ENCODED))):
            return False
        return all(one in self._scales for one in columns_of(call.argument) if one in self._columns)

    def special(self, call: Call, kind: str, value: exp.Expr, *, squared: bool = False) -> exp.Expr:
        """Return a result that is NaN or infinite if a value is."""
        if self._exact(call, kind):
            return value
        assert call.argument is not None
        nan, high, low = (
            self._counted(call, built(f"{{0}} = '{text}'", call.argument)) for text in ("NaN", "Infinity", "-Infinity")
        )
        if squared:
            return built("case when {0} + {1} + {2} > 0 then 'NaN' else {3} end", nan, high, low, value)
        return built(
            "case when {0} > 0 or ({1} > 0 and {2} > 0) then 'NaN' "
            "when {1} > 0 then 'Infinity' when {2} > 0 then '-Infinity' else {3} end",
            *(nan, high, low, value),
        )

    def _measure(self, node: exp.Expr, kind: ColumnType) -> exp.Expr:
        name = self._names.setdefault(printed(node), f"{KEY_PREFIX}m{len(self._names)}")
        self.rows[name], self.types[name] = node, kind
        return own_column(name)


def _all(call: Call, conditions: Sequence[exp.Expr]) -> exp.Expr:
    """Return the conditions under which a row counts. Of rows that its FILTER drops nothing is computed."""
    return conjunction([*([] if call.filter is None else [call.filter]), *conditions])


def _may_be_special(node: exp.Expr) -> bool:
    """Whether a literal may be NaN or an infinity."""
    encoded = not isinstance(node, exp.Literal)
    return encoded or (node.is_string and any(word in node.name.lower() for word in ("nan", "inf")))


def _exact(call: Call, kind: str) -> exp.Expr:
    assert call.argument is not None
    if kind not in _FLOATS:
        return built("{0}::numeric", call.argument)
    # Postgres averages reals as doubles, whose shortest decimals have more digits.
    widened = "::double precision" if kind == "real" else ""
    return built(f"{{0}}{widened}::text::numeric", call.argument)


def _sum(measures: Measures, call: Call, kind: str, result: str) -> exp.Expr:
    return measures.special(call, kind, built(f"{{0}}::{result}", measures.sum(call, kind)))


def _avg(measures: Measures, call: Call, kind: str, result: str) -> exp.Expr:
    mean = built(f"{{0}}::{result} / {{1}}::{result}", measures.sum(call, kind), measures.number(call))
    return measures.special(call, kind, mean)


def _variance(measures: Measures, call: Call, kind: str, result: str) -> exp.Expr:
    spread = measures.special(call, kind, _spread(measures, call, kind), squared=True)
    return built(f"{{0}}::{result}", _if_enough(measures, call, spread))


def _deviation(measures: Measures, call: Call, kind: str, result: str) -> exp.Expr:
    spread = _spread(measures, call, kind)
    # The digits of a square root follow from its scale, which is that of the variance here. Twenty more digits are
    # computed, because Postgres rounds once.
    root = "sqrt({0})" if kind in _FLOATS else "(select round(sqrt({0} * 1e40) * 0.00000000000000000001, scale({0})))"
    deviation = measures.special(call, kind, built(f"{root}::{result}", spread), squared=True)
    return built(f"{{0}}::{result}", _if_enough(measures, call, deviation))


def _is_sample(call: Call) -> bool:
    return not call.function.endswith("pop")


def _if_enough(measures: Measures, call: Call, value: exp.Expr) -> exp.Expr:
    """Return NULL for the spread of a sample of one value, even if that is NaN."""
    return built("case when {0} > 1 then {1} end", measures.number(call), value) if _is_sample(call) else value


def _spread(measures: Measures, call: Call, kind: str) -> exp.Expr:
    number, total, squares = measures.number(call), measures.sum(call, kind), measures.squares(call, kind)
    above = built("{0} * {1} - {2} * {2}", number, squares, total)
    other = built("{0} - 1", number) if _is_sample(call) else number
    return built("case when {0} <= 0 then 0 else {0} / ({1}::numeric * {2}) end", above, number, other)


_FORMULAS: Final[Mapping[str, Callable[[Measures, Call, str, str], exp.Expr]]] = {
    "sum": _sum,
    "avg": _avg,
    "variance": _variance,
    "var_samp": _variance,
    "var_pop": _variance,
    "stddev": _deviation,
    "stddev_samp": _deviation,
    "stddev_pop": _deviation,
}
