"""Define the functions that a view may call, by their Postgres names. Any other function is refused.

The table holds only deterministic scalar functions whose Spark text gives Postgres's result (`docs/sql.md` lists the
known differences). A function is a list of overloads. A call takes the first overload whose arguments fit without a
cast, else the first one whose arguments fit by Postgres's implicit casts. `service.sql.expressions.special` has the
functions whose binding depends on more than the types of their arguments.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from service.domain.errors import Invalid
from service.protocol.columns import NUMERIC_PRECISION_MAX, ColumnType, TypeName
from service.sql.expressions.typed import (
    BIGINT,
    BOOLEAN,
    BYTEA,
    DATE,
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

AGGREGATES: Final = frozenset(
    """any_value array_agg avg bit_and bit_or bool_and bool_or corr count every json_agg json_object_agg jsonb_agg
    jsonb_object_agg max min mode percentile_cont percentile_disc stddev stddev_pop stddev_samp string_agg sum
    var_pop var_samp variance approx_count_distinct""".split()  # noqa: SIM905 - a list of words reads best as words
)
"""Known functions that are not scalar. A refusal names them as aggregate functions."""


@dataclass(frozen=True, slots=True)
class Overload:
    """One signature of a function. `{0}`, `{1}`, ... in `spark` are its arguments.

    The scale of a numeric `result` is the largest scale that the result can have. Without `spark`, only the state store
    computes the value, because Spark's last digit differs from Postgres's.
    """

    arguments: tuple[ColumnType, ...]
    result: ColumnType
    spark: str


def call(name: str, arguments: Sequence[Typed], position: int) -> Typed:
    """Return the call of an allowed function. Raises Invalid."""
    overloads = FUNCTIONS[name]
    found = next((one for one in overloads if _exact(one, arguments)), None)
    found = found or next((one for one in overloads if _fits(one, arguments)), None)
    if found is None:
        types = ", ".join(argument.shown for argument in arguments)
        raise Invalid(f"function {name}({types}) does not exist", position=position)
    given = [coerced(value, kind) for value, kind in zip(arguments, found.arguments, strict=True)]
    if not found.spark:
        raise Invalid(f"{name}: Spark's last digit differs from Postgres's", position=position)
    spark = found.spark.format(*(value.sql for value in given))
    return Typed(f"({spark})", _result(found, given), position)


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


def _each(types: Sequence[ColumnType], spark: str) -> tuple[Overload, ...]:
    return tuple(Overload((kind,), kind, spark) for kind in types)


TEXT_BYTES_MAX: Final = 32 << 20
"""The largest text, in bytes, that a function which lengthens a text may return."""
_PADDED: Final = "{0} is not null and {1}"
_PADDED_WITH: Final = "{2} is not null and " + _PADDED
_REPEATED: Final = "cast(octet_length({0}) as bigint) * {1}"
_REPLACED: Final = (
    f"cast(octet_length({{0}}) as bigint) * octet_length({{2}}) > {TEXT_BYTES_MAX} and octet_length({{0}}) +"
    " cast(octet_length({0}) - octet_length(replace({0}, {1}, '')) as bigint) div greatest(octet_length({1}), 1)"
    " * (octet_length({2}) - octet_length({1}))"
)
"""The second condition searches for the pattern once more, so it runs only if the text might become too large."""


def _text(count: int, spark: str, result: ColumnType = TEXT) -> tuple[Overload, ...]:
    return (Overload((TEXT,) * count, result, spark),)


_NUMBERS: Final = (DOUBLE, SMALLINT, INTEGER, BIGINT, REAL)
_WHOLE_NUMERIC: Final = numeric(NUMERIC_PRECISION_MAX, 0)
_EXACT_MAX: Final = ColumnType(TypeName.NUMERIC, NUMERIC_PRECISION_MAX, NUMERIC_PRECISION_MAX)
_WHOLE: Final = (INTEGER, SMALLINT, BIGINT)
# Beyond 2^53 a double has no fraction, and Spark's ceil and floor return a bigint, which could overflow. They also lose
# the sign of a zero.
_ROUNDED: Final = (
    "case when abs({{0}}) >= 9007199254740992 then {{0}} when {0}({{0}}) = 0 then {{0}} * 0"
    " else cast({0}({{0}}) as double) end"
)

_LENGTH: Final = (Overload((TEXT,), INTEGER, "char_length({0})"), Overload((BYTEA,), INTEGER, "octet_length({0})"))
_CEIL: Final = (
    Overload((DOUBLE,), DOUBLE, _ROUNDED.format("ceil")),
    Overload((NUMERIC,), _WHOLE_NUMERIC, "ceil({0})"),
)
_FLOOR: Final = (
    Overload((DOUBLE,), DOUBLE, _ROUNDED.format("floor")),
    Overload((NUMERIC,), _WHOLE_NUMERIC, "floor({0})"),
)
_POWER: Final = (Overload((DOUBLE, DOUBLE), DOUBLE, ""),)
_OF_DOUBLE: Final = (Overload((DOUBLE,), DOUBLE, ""),)
_SUBSTRING: Final = (
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


def _bounded(size: str, spark: str) -> str:
    """Return `spark` with a check of the result's size.

    Postgres stops at 1 GB. A worker would run out of memory long before, and would end the epochs of other jobs too
    (I13).
    """
    refused = f"a text of more than {TEXT_BYTES_MAX >> 20} MiB is not supported in a view"
    return f"case when {size} > {TEXT_BYTES_MAX} then raise_error('{refused}') else {spark} end"


def _checked(condition: str, message: str, spark: str) -> tuple[Overload, ...]:
    """Return an overload that fails on `condition`, where Postgres fails but Spark returns NULL or NaN."""
    return (Overload((DOUBLE,), DOUBLE, f"case when {condition} then raise_error('{message}') else {spark} end"),)


_MAKE_DATE: Final = (
    "make_date(case when {0} = 0 then raise_error('date field value out of range') when {0} < 0 then {0} + 1"
    " else {0} end, {1}, {2})"
)
"""The year before 1 is -1 in Postgres and 0 in Spark."""


_DIVIDED: Final = (
    *(Overload((kind, kind), kind, "{0} % {1}") for kind in _WHOLE),
    Overload((NUMERIC, NUMERIC), _EXACT_MAX, "{0} % {1}"),
)

FUNCTIONS: Final[Mapping[str, tuple[Overload, ...]]] = MappingProxyType(
    {
        # Spark's abs of a negative decimal rounds to 34 digits.
        "abs": (*_each(_NUMBERS, "abs({0})"), Overload((NUMERIC,), _EXACT_MAX, "greatest({0}, 0BD - {0})")),
        "ascii": _text(1, "ascii({0})", INTEGER),
        "bit_length": _text(1, "bit_length({0})", INTEGER),
        "btrim": (*_text(1, "trim(BOTH ' ' FROM {0})"), *_text(2, "trim(BOTH {1} FROM {0})")),
        "cbrt": _OF_DOUBLE,
        "ceil": _CEIL,
        "ceiling": _CEIL,
        "char_length": _LENGTH[:1],
        "character_length": _LENGTH[:1],
        "exp": _OF_DOUBLE,
        "floor": _FLOOR,
        "left": (
            Overload(
                (TEXT, INTEGER),
                TEXT,
                "case when {1} >= 0 then left({0}, {1})"
                " when char_length({0}) + {1} > 0 then left({0}, char_length({0}) + {1}) else left({0}, 0 * {1}) end",
            ),
        ),
        "length": _LENGTH,
        "ln": _OF_DOUBLE,
        "log": _OF_DOUBLE,
        "log10": _OF_DOUBLE,
        "lower": _text(1, "lower({0})"),
        "lpad": (
            Overload((TEXT, INTEGER), TEXT, _bounded(_PADDED, "lpad({0}, {1}, ' ')")),
            Overload((TEXT, INTEGER, TEXT), TEXT, _bounded(_PADDED_WITH, "lpad({0}, {1}, {2})")),
        ),
        "ltrim": (*_text(1, "trim(LEADING ' ' FROM {0})"), *_text(2, "trim(LEADING {1} FROM {0})")),
        "make_date": (Overload((INTEGER, INTEGER, INTEGER), DATE, _MAKE_DATE),),
        "md5": (Overload((TEXT,), TEXT, "md5(cast({0} as binary))"), Overload((BYTEA,), TEXT, "md5({0})")),
        "mod": _DIVIDED,
        "octet_length": (
            Overload((TEXT,), INTEGER, "octet_length({0})"),
            Overload((BYTEA,), INTEGER, "octet_length({0})"),
        ),
        "pow": _POWER,
        "power": _POWER,
        "repeat": (Overload((TEXT, INTEGER), TEXT, _bounded(_REPEATED, "repeat({0}, {1})")),),
        "replace": _text(3, _bounded(_REPLACED, "replace({0}, {1}, {2})")),
        "reverse": _text(1, "reverse({0})"),
        "right": (
            Overload(
                (TEXT, INTEGER),
                TEXT,
                "case when {1} > 0 then right({0}, {1})"
                " when {1} < -2147483647 then {0} when {1} = 0 or {1} = -2147483647 then left({0}, 0)"
                " else substring({0}, 1 - {1}) end",
            ),
        ),
        "round": (
            # Postgres rounds a double half to even and a numeric half away from zero.
            Overload((DOUBLE,), DOUBLE, "rint({0})"),
            Overload((NUMERIC,), _WHOLE_NUMERIC, "round({0}, 0)"),
        ),
        "rpad": (
            Overload((TEXT, INTEGER), TEXT, _bounded(_PADDED, "rpad({0}, {1}, ' ')")),
            Overload((TEXT, INTEGER, TEXT), TEXT, _bounded(_PADDED_WITH, "rpad({0}, {1}, {2})")),
        ),
        "rtrim": (*_text(1, "trim(TRAILING ' ' FROM {0})"), *_text(2, "trim(TRAILING {1} FROM {0})")),
        "sign": (
            Overload((DOUBLE,), DOUBLE, "case when isnan({0}) or {0} = 0 then double(0) else sign({0}) end"),
            Overload((NUMERIC,), _WHOLE_NUMERIC, "cast(sign({0}) as decimal(1,0))"),
        ),
        "split_part": (Overload((TEXT, TEXT, INTEGER), TEXT, "split_part({0}, {1}, {2})"),),
        "sqrt": _checked("{0} < 0", "cannot take square root of a negative number", "sqrt({0})"),
        "starts_with": _text(2, "startswith({0}, {1})", BOOLEAN),
        "strpos": _text(2, "instr({0}, {1})", INTEGER),
        "substr": _SUBSTRING,
        "substring": _SUBSTRING,
        "translate": _text(3, "translate({0}, {1}, {2})"),
        "trunc": (
            Overload(
                (DOUBLE,),
                DOUBLE,
                "case when {0} < 0 then " + _ROUNDED.format("ceil") + " else " + _ROUNDED.format("floor") + " end",
            ),
            # A comparison with 0 may lose digits of a numeric. Its sign is a double, which loses none.
            Overload((NUMERIC,), _WHOLE_NUMERIC, "case when sign({0}) < 0 then ceil({0}) else floor({0}) end"),
        ),
        "upper": _text(1, "upper({0})"),
    }
)
