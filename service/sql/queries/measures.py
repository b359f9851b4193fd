"""Choose the sums by which an aggregate is maintained, and print its result from them, with Postgres's digits.

Every measure is an exact number. A float contributes its shortest decimal, so that the sum does not depend on the
order of rows and a removed row is subtracted exactly. NaN and the infinities are counted on their own.
"""

import re
from collections.abc import Callable, Collection, Mapping
from typing import Final

from service.domain.errors import Invalid
from service.protocol.columns import ColumnType, TypeName
from service.protocol.quoting import quoted
from service.protocol.relation import KEY_PREFIX
from service.protocol.stage import Value
from service.sql.queries.drafts import Call
from service.sql.queries.scales import row_scale, scale_of

_INTEGERS: Final = frozenset({"smallint", "integer", "bigint"})
_FLOATS: Final = frozenset({"real", "double precision"})
_COLUMN: Final = re.compile(r'"(?:[^"]|"")*"\."(?:[^"]|"")*"')
_BIGINT: Final = ColumnType(TypeName.BIGINT)
_NUMERIC: Final = ColumnType(TypeName.NUMERIC)
MINUS_ZERO: Final = "({0})::double precision::text = '-0'"
_SCALE_DIGITS: Final = 18
"""An aggregate counts its rows of each scale in so many decimal digits of one number."""


class Measures:
    """The measures of one aggregate. Calls share equal ones. The first counts rows."""

    def __init__(self, columns: Collection[str], scales: Mapping[str, int]) -> None:
        """`columns` are those of the inputs, as they are printed. Those with finite values alone have a scale."""
        self._columns, self._scales = columns, scales
        self._rows: dict[str, str] = {}
        self._types: dict[str, ColumnType] = {}
        self._count = self._measure("1::bigint", _BIGINT)

    @property
    def rows(self) -> tuple[Value, ...]:
        """Each measure and what one row contributes to it."""
        return tuple(Value(name=name, sql=sql) for sql, name in self._rows.items())

    @property
    def types(self) -> Mapping[str, ColumnType]:
        """The type of each measure."""
        return self._types

    def result(self, call: Call, argument: str | None, result: str) -> str:
        """Return the SQL of a call's result over the sums. Raises Invalid.

        `argument` and `result` are the types of its argument and of its result.
        """
        if call.function == "count":
            return self._number(call)
        assert argument is not None
        assert call.argument is not None
        kind = argument.partition("(")[0]
        if call.function in {"bool_and", "every"}:
            return self._known(call, f"({self._counted(call, f'not {call.argument}')} = 0)")
        if call.function == "bool_or":
            return self._known(call, f"({self._counted(call, call.argument)} > 0)")
        if kind not in {*_INTEGERS, *_FLOATS, "numeric"}:
            message = f"{call.function} of a value of type {argument} is not supported in a view: use a number"
            raise Invalid(message)
        return self._known(call, _FORMULAS[call.function](self, call, kind, result))

    def look(self, name: str, sql: str, kind: ColumnType, seen: str | None) -> str | None:
        """Return the SQL of a group's key `name` as its rows show it, or None if equal keys always look alike.

        Of -0 and 0 it is 0, if there is one, and of 2.5 and 2.500 the longest. Rows count that satisfy `seen`.
        """
        key = quoted(name)
        if not kind.looks_differ:
            return None
        if not kind.unbounded:
            zero = f"{sql} = 0 and not {MINUS_ZERO.format(sql)}"
            plain = self._counted(Call("count", sql, None, seen), zero)
            shown = f"(case when {plain} > 0 then '0'::{kind} else '-0'::{kind} end)"
            return f"(case when {key} = 0 then {shown} else {key} end)"
        scale = self._scale(Call("sum", sql, sql, seen), "numeric")
        # A group of which no row is seen keeps its value.
        shown = f"round({key}, greatest({scale}, min_scale({key})))"
        return scale and f"(case when {key} in ('NaN', 'Infinity', '-Infinity') then {key} else {shown} end)"

    def _known(self, call: Call, sql: str) -> str:
        """Return the result where a value that is not NULL has been counted, else NULL."""
        return f"(case when {self._number(call)} > 0 then {sql} end)"

    def _number(self, call: Call) -> str:
        """Return the number of rows that the call counts."""
        if call.argument is None or call.sure:
            return self._count if call.filter is None else self._counted(call, None)
        return self._counted(call, f"{call.argument} is not null")

    def _counted(self, call: Call, condition: str | None) -> str:
        conditions = [*([f"({condition})"] if condition else []), *([f"({call.filter})"] if call.filter else [])]
        return self._measure(f"(case when {' and '.join(conditions)} then 1 else 0 end)::bigint", _BIGINT)

    def sum(self, call: Call, kind: str) -> str:
        """Return the exact sum of the finite values, with as many digits behind the point as the longest of them."""
        total = self._summed(call, kind, _exact(call, kind))
        scale = self._scale(call, kind)
        return total if scale is None else f"round({total}, {scale})"

    def squares(self, call: Call, kind: str) -> str:
        """Return the exact sum of the squares of the finite values."""
        total = self._summed(call, kind, f"{_exact(call, kind)} * {_exact(call, kind)}")
        scale = self._scale(call, kind)
        return total if scale is None else f"round({total}, 2 * {scale})"

    def _scale(self, call: Call, kind: str) -> str | None:
        """Return the largest scale of the finite values, or None if all have the same, which their sum then has.

        A sum keeps the digits of values that were subtracted again. The rows of each scale are therefore counted. If
        the scales are not known, those of scale s are counted in the decimal digits from `s * _SCALE_DIGITS` on. The
        length of the number tells the largest s.
        """
        assert call.argument is not None
        if kind != "numeric" or scale_of(call.argument, self._scales) is not None:
            return None
        found = row_scale(call.argument, self._scales)
        if found is not None:
            scale, (least, *others) = found
            known = "" if call.sure else f"{call.argument} is not null and "
            counted = [
                f"when {self._counted(call, f'{known}{scale} = {one}')} > 0 then {one}" for one in reversed(others)
            ]
            return f"(case {' '.join(counted)} else {least} end)" if counted else str(least)
        one = f"('1e' || {_SCALE_DIGITS} * scale({_exact(call, kind)}))::numeric"
        return f"((length({self._summed(call, kind, one)}::text) - 1) / {_SCALE_DIGITS})"

    def _summed(self, call: Call, kind: str, value: str) -> str:
        conditions = [] if call.sure else [f"{call.argument} is not null"]
        conditions += [f"({call.filter})"] if call.filter else []
        if not self._exact(call, kind):
            conditions.append(f"{call.argument} not in ('NaN', 'Infinity', '-Infinity')")
        sql = f"case when {' and '.join(conditions)} then {value} else 0 end" if conditions else value
        return self._measure(f"({sql})::numeric", _NUMERIC)

    def _exact(self, call: Call, kind: str) -> bool:
        """Whether a value is surely neither NaN nor infinite: arithmetic over integers and numerics with a scale."""
        if kind in _INTEGERS:
            return True
        assert call.argument is not None
        if kind not in _FLOATS and row_scale(call.argument, self._scales) is not None:
            return True
        if kind in _FLOATS or re.search("nan|inf", call.argument, re.IGNORECASE):
            return False
        read = {found[0] for found in _COLUMN.finditer(call.argument)}
        return all(one in self._scales for one in read if one in self._columns)

    def special(self, call: Call, kind: str, sql: str, *, squared: bool = False) -> str:
        """Return a result that is NaN or infinite if a value is."""
        if self._exact(call, kind):
            return sql
        nan, high, low = (
            self._counted(call, f"{call.argument} = '{text}'") for text in ("NaN", "Infinity", "-Infinity")
        )
        if squared:
            return f"case when {nan} + {high} + {low} > 0 then 'NaN' else {sql} end"
        return (
            f"case when {nan} > 0 or ({high} > 0 and {low} > 0) then 'NaN' "
            f"when {high} > 0 then 'Infinity' when {low} > 0 then '-Infinity' else {sql} end"
        )

    def number(self, call: Call) -> str:
        """Return the number of values that are not NULL."""
        return self._number(call)

    def _measure(self, sql: str, kind: ColumnType) -> str:
        name = self._rows.setdefault(sql, f"{KEY_PREFIX}m{len(self._rows)}")
        self._types[name] = kind
        return quoted(name)


def _exact(call: Call, kind: str) -> str:
    # Postgres averages reals as doubles, whose shortest decimals have more digits.
    widened = "::double precision" if kind == "real" else ""
    return f"({call.argument}){widened}::text::numeric" if kind in _FLOATS else f"({call.argument})::numeric"


def _sum(measures: Measures, call: Call, kind: str, result: str) -> str:
    return f"({measures.special(call, kind, f'{measures.sum(call, kind)}::{result}')})"


def _avg(measures: Measures, call: Call, kind: str, result: str) -> str:
    total, number = measures.sum(call, kind), measures.number(call)
    mean = f"({total}::{result} / {number}::{result})"
    return f"({measures.special(call, kind, mean)})"


def _variance(measures: Measures, call: Call, kind: str, result: str) -> str:
    spread = measures.special(call, kind, _spread(measures, call, kind), squared=True)
    return f"({_if_enough(measures, call, spread)})::{result}"


def _deviation(measures: Measures, call: Call, kind: str, result: str) -> str:
    # The digits of a square root follow from its scale, which is that of the variance here. Twenty more digits are
    # computed, because Postgres rounds once.
    spread = _spread(measures, call, kind)
    root = f"sqrt({spread} * 1e40) * 0.00000000000000000001"
    text = f"(select round({root}, scale({spread})))" if kind not in _FLOATS else f"sqrt({spread})"
    deviation = measures.special(call, kind, f"{text}::{result}", squared=True)
    return f"({_if_enough(measures, call, deviation)})::{result}"


def _is_sample(call: Call) -> bool:
    return not call.function.endswith("pop")


def _if_enough(measures: Measures, call: Call, sql: str) -> str:
    """Return NULL for the spread of a sample of one value, even if that is NaN."""
    return f"case when {measures.number(call)} > 1 then {sql} end" if _is_sample(call) else sql


def _spread(measures: Measures, call: Call, kind: str) -> str:
    number, total, squares = measures.number(call), measures.sum(call, kind), measures.squares(call, kind)
    above = f"({number} * {squares} - {total} * {total})"
    other = f"({number} - 1)" if _is_sample(call) else number
    return f"(case when {above} <= 0 then 0 else {above} / ({number}::numeric * {other}) end)"


_FORMULAS: Final[Mapping[str, Callable[[Measures, Call, str, str], str]]] = {
    "sum": _sum,
    "avg": _avg,
    "variance": _variance,
    "var_samp": _variance,
    "var_pop": _variance,
    "stddev": _deviation,
    "stddev_samp": _deviation,
    "stddev_pop": _deviation,
}
