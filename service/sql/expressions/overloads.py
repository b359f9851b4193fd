"""Define the signatures of functions that Spark computes, and their longer Spark texts.

A call takes the first overload whose arguments fit without a cast, else the first one whose arguments fit by Postgres's
implicit casts. Next: `service.sql.expressions.functions`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from service.domain.errors import Invalid
from service.protocol.columns import NUMERIC_PRECISION_MAX, ColumnType, TypeName
from service.sql.expressions.typed import (
    BIGINT,
    BYTEA,
    DOUBLE,
    INTEGER,
    NUMERIC,
    REAL,
    SMALLINT,
    TEXT,
    Typed,
    coerced,
    digits,
    fits,
    numeric,
)


@dataclass(frozen=True, slots=True)
class Overload:
    """One signature of a function. `{0}`, `{1}`, ... in `spark` are its arguments.

    The scale of a numeric `result` is the largest scale that the result can have.
    """

    arguments: tuple[ColumnType, ...]
    result: ColumnType
    spark: str


def called(overloads: Sequence[Overload], name: str, arguments: Sequence[Typed]) -> Typed:
    """Return the call of a function by one of its overloads. Raises Invalid."""
    found = next((one for one in overloads if _exact(one, arguments)), None)
    found = found or next((one for one in overloads if _fits(one, arguments)), None)
    if found is None:
        types = ", ".join(argument.shown for argument in arguments)
        raise Invalid(f"function {name}({types}) does not exist")
    given = [coerced(value, kind) for value, kind in zip(arguments, found.arguments, strict=True)]
    return Typed(f"({found.spark.format(*(value.sql for value in given))})", _result(found, given))


def _result(found: Overload, given: Sequence[Typed]) -> ColumnType:
    """Return the type of the result. A numeric has room for its arguments, and for one more digit from rounding."""
    if found.result.name is not TypeName.NUMERIC:
        return found.result
    whole, scale = (max(side) for side in zip(*(digits(value.type) for value in given if value.type), strict=True))
    return numeric(whole + 1, min(scale, found.result.scale or 0))


def _exact(overload: Overload, arguments: Sequence[Typed]) -> bool:
    return len(overload.arguments) == len(arguments) and all(
        value.type is None or value.name == kind.name for value, kind in zip(arguments, overload.arguments, strict=True)
    )


def _fits(overload: Overload, arguments: Sequence[Typed]) -> bool:
    return len(overload.arguments) == len(arguments) and all(
        fits(value, kind) for value, kind in zip(arguments, overload.arguments, strict=True)
    )


def each(types: Sequence[ColumnType], spark: str) -> tuple[Overload, ...]:
    """Return an overload for each type, with a result of the same type."""
    return tuple(Overload((kind,), kind, spark) for kind in types)


def of_text(count: int, spark: str, result: ColumnType = TEXT) -> tuple[Overload, ...]:
    """Return an overload of so many texts."""
    return (Overload((TEXT,) * count, result, spark),)


def of_double(spark: str) -> Overload:
    """Return an overload of one double with a double as result."""
    return Overload((DOUBLE,), DOUBLE, spark)


def of_numeric(spark: str, *, result: ColumnType | None = None) -> Overload:
    """Return an overload of one numeric with a result without digits behind the point, or with those of `result`."""
    return Overload((NUMERIC,), WHOLE_NUMERIC if result is None else result, spark)


TEXT_BYTES_MAX: Final = 32 << 20
"""The largest text, in bytes, that a function which lengthens a text may return."""


def bounded(size: str, spark: str) -> str:
    """Return `spark` with a check of the result's size.

    Postgres stops at 1 GB. A worker would run out of memory long before, and would end the epochs of other jobs too
    (I13).
    """
    refused = f"a text of more than {TEXT_BYTES_MAX >> 20} MiB is not supported in a view"
    return f"case when {size} > {TEXT_BYTES_MAX} then raise_error('{refused}') else {spark} end"


WHOLE_NUMERIC: Final = numeric(NUMERIC_PRECISION_MAX, 0)
EXACT_MAX: Final = ColumnType(TypeName.NUMERIC, NUMERIC_PRECISION_MAX, NUMERIC_PRECISION_MAX)
NUMBERS: Final = (DOUBLE, SMALLINT, INTEGER, BIGINT, REAL)
# Beyond 2^53 a double has no fraction, and Spark's ceil and floor return a bigint, which could overflow. They also lose
# the sign of a zero.
_ROUNDED: Final = (
    "case when abs({{0}}) >= 9007199254740992 then {{0}} when {0}({{0}}) = 0 then {{0}} * 0"
    " else cast({0}({{0}}) as double) end"
)
_CEIL, _FLOOR = (_ROUNDED.format(name) for name in ("ceil", "floor"))

CEIL: Final = (of_double(_CEIL), of_numeric("ceil({0})"))
FLOOR: Final = (of_double(_FLOOR), of_numeric("floor({0})"))
TRUNC: Final = (
    of_double(f"case when {{0}} < 0 then {_CEIL} else {_FLOOR} end"),
    # A comparison with 0 may lose digits of a numeric. Its sign is a double, which loses none.
    of_numeric("case when sign({0}) < 0 then ceil({0}) else floor({0}) end"),
)
SIGN: Final = (
    of_double("case when isnan({0}) or {0} = 0 then double(0) else sign({0}) end"),
    of_numeric("cast(sign({0}) as decimal(1,0))"),
)
ROUND: Final = (of_double("rint({0})"), of_numeric("round({0}, 0)"))
"""Postgres rounds a double half to even and a numeric half away from zero."""
ABS: Final = (*each(NUMBERS, "abs({0})"), of_numeric("greatest({0}, 0BD - {0})", result=EXACT_MAX))
"""Spark's abs of a negative decimal rounds to 34 digits."""
SQRT: Final = of_double(
    "case when {0} < 0 then raise_error('cannot take square root of a negative number') else sqrt({0}) end"
)
MOD: Final = (
    *(Overload((kind, kind), kind, "{0} % {1}") for kind in (INTEGER, SMALLINT, BIGINT)),
    Overload((NUMERIC, NUMERIC), EXACT_MAX, "{0} % {1}"),
)
OCTETS: Final = (*of_text(1, "octet_length({0})", INTEGER), Overload((BYTEA,), INTEGER, "octet_length({0})"))
LENGTH: Final = (*of_text(1, "char_length({0})", INTEGER), Overload((BYTEA,), INTEGER, "octet_length({0})"))
MD5: Final = (*of_text(1, "md5(cast({0} as binary))"), Overload((BYTEA,), TEXT, "md5({0})"))
LEFT: Final = Overload(
    (TEXT, INTEGER),
    TEXT,
    "case when {1} >= 0 then left({0}, {1})"
    " when char_length({0}) + {1} > 0 then left({0}, char_length({0}) + {1}) else left({0}, 0 * {1}) end",
)
RIGHT: Final = Overload(
    (TEXT, INTEGER),
    TEXT,
    "case when {1} > 0 then right({0}, {1})"
    " when {1} < -2147483647 then {0} when {1} = 0 or {1} = -2147483647 then left({0}, 0)"
    " else substring({0}, 1 - {1}) end",
)
SUBSTRING: Final = (
    Overload((TEXT, INTEGER), TEXT, "substring({0}, case when {1} < 1 then 1 else {1} end)"),
    Overload(
        (TEXT, INTEGER, INTEGER),
        TEXT,
        # Postgres also counts positions before the first one: substring('abc', -1, 3) is 'a'.
        "case when {2} < 0 and {0} is not null and {1} is not null then"
        " raise_error('negative substring length not allowed')"
        " else substring({0}, case when {1} < 1 then 1 else {1} end,"
        " cast(case when {1} < 1 then"
        " case when cast({1} as bigint) + {2} < 1 then 0 else cast({1} as bigint) + {2} - 1 end"
        " else {2} end as int)) end",
    ),
)
MAKE_DATE: Final = (
    "make_date(case when {0} = 0 then raise_error('date field value out of range') when {0} < 0 then {0} + 1"
    " else {0} end, {1}, {2})"
)
"""The year before 1 is -1 in Postgres and 0 in Spark."""
REPEATED: Final = bounded("cast(octet_length({0}) as bigint) * {1}", "repeat({0}, {1})")
# The second condition searches for the pattern once more, so it runs only if the text might become too large.
REPLACED: Final = bounded(
    f"cast(octet_length({{0}}) as bigint) * octet_length({{2}}) > {TEXT_BYTES_MAX} and octet_length({{0}}) +"
    " cast(octet_length({0}) - octet_length(replace({0}, {1}, '')) as bigint) div greatest(octet_length({1}), 1)"
    " * (octet_length({2}) - octet_length({1}))",
    "replace({0}, {1}, {2})",
)


def padded(name: str) -> tuple[Overload, ...]:
    """Return the overloads of `lpad` or `rpad`."""
    size = "{0} is not null and {1}"
    return (
        Overload((TEXT, INTEGER), TEXT, bounded(size, f"{name}({{0}}, {{1}}, ' ')")),
        Overload((TEXT, INTEGER, TEXT), TEXT, bounded(f"{{2}} is not null and {size}", f"{name}({{0}}, {{1}}, {{2}})")),
    )


def trimmed(side: str) -> tuple[Overload, ...]:
    """Return the overloads of a trim: of spaces, and of given characters."""
    return (*of_text(1, f"trim({side} ' ' FROM {{0}})"), *of_text(2, f"trim({side} {{1}} FROM {{0}})"))
