"""Bind the functions of a view that depend on more than the types of their arguments: NULLs, units, literals."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from service.domain.errors import Invalid
from service.protocol.columns import ColumnType, TypeName
from service.sql.expressions.casts import cast
from service.sql.expressions.comparing import compared
from service.sql.expressions.intervals import parse_span
from service.sql.expressions.typed import (
    DOUBLE,
    INSTANTS,
    INTEGER,
    INTEGERS,
    NUMERIC,
    TEXT,
    TIMESTAMP,
    TIMESTAMPTZ,
    Typed,
    coerced,
    common,
    digits,
    numeric,
    widest,
)

Binder = Callable[[str, Sequence[Typed]], Typed]
"""It takes the function's name and its arguments."""

UNITS_OF_TRUNC: Final = frozenset({"second", "minute", "hour", "day", "week", "month", "quarter", "year"})
# Each field's Spark SQL, and a decimal with room for its digits before and after the point.
_FIELDS: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        "year": ("extract(YEAR FROM {0})", "decimal(10,0)"),
        "isoyear": ("extract(YEAROFWEEK FROM {0})", "decimal(10,0)"),
        "quarter": ("extract(QUARTER FROM {0})", "decimal(10,0)"),
        "month": ("extract(MONTH FROM {0})", "decimal(10,0)"),
        "week": ("extract(WEEK FROM {0})", "decimal(10,0)"),
        "day": ("extract(DAY FROM {0})", "decimal(10,0)"),
        "doy": ("extract(DOY FROM {0})", "decimal(10,0)"),
        # Sunday is 1 in Spark's week and 0 in Postgres's. Monday is 1 in the ISO week of both.
        "dow": ("extract(DAYOFWEEK FROM {0}) - 1", "decimal(10,0)"),
        "isodow": ("extract(DAYOFWEEK_ISO FROM {0})", "decimal(10,0)"),
    }
)
_CLOCK_FIELDS: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        "hour": ("extract(HOUR FROM {0})", "decimal(10,0)"),
        "minute": ("extract(MINUTE FROM {0})", "decimal(10,0)"),
        "second": ("extract(SECOND FROM {0})", "decimal(8,6)"),
        "epoch": ("cast(unix_micros(cast({0} as timestamp)) as decimal(20,0)) * 0.000001BD", "decimal(26,6)"),
    }
)


def extract(field: str, value: Typed) -> Typed:
    """Return EXTRACT(field FROM value), a numeric as in Postgres. Raises Invalid."""
    if value.name not in INSTANTS:
        raise Invalid(f"extract from {value.shown} is not supported in a view")
    fields = _FIELDS if value.name is TypeName.DATE else {**_FIELDS, **_CLOCK_FIELDS}
    if field not in fields:
        raise Invalid(f'unit "{field}" is not supported for type {value.shown} in a view')
    spark, kind = fields[field]
    return Typed(f"cast({spark.format(value.sql)} as {kind})", ColumnType.parse(kind))


def chosen(name: str, arguments: Sequence[Typed]) -> Typed:
    """Bind COALESCE, GREATEST and LEAST. Raises Invalid."""
    if not arguments:
        raise Invalid(f"{name} needs an argument")
    kind = common(arguments, name.upper())
    if name in ("greatest", "least"):
        require_ordered(kind, name)
    if len(arguments) == 1:
        # Spark's greatest and least need at least two arguments.
        arguments = [arguments[0], arguments[0]]
    given = [coerced(value, kind) for value in arguments]
    return Typed(f"{name}({', '.join(value.sql for value in given)})", kind)


def nullif(name: str, arguments: Sequence[Typed]) -> Typed:
    """Bind NULLIF. Raises Invalid."""
    _count(name, arguments, 2)
    kind = widest(arguments, "NULLIF")
    require_ordered(kind, name)
    first = coerced(arguments[0], kind) if arguments[0].type is None else arguments[0]
    second = coerced(arguments[1], kind)
    equal = compared("=", coerced(first, kind), second, kind)
    return Typed(f"(case when {equal} then NULL else {first.sql} end)", first.type)


def concat(_: str, arguments: Sequence[Typed]) -> Typed:
    """Bind concat. Raises Invalid."""
    if not arguments:
        raise Invalid("function concat() does not exist")
    # Postgres's concat skips NULLs; Spark's returns NULL.
    listed = ", ".join(f"coalesce({_as_text(value)}, '')" for value in arguments)
    return Typed(f"concat({listed})", TEXT)


def concat_ws(name: str, arguments: Sequence[Typed]) -> Typed:
    """Bind concat_ws. Raises Invalid."""
    if len(arguments) < 2:
        raise Invalid(f"function {name} needs a separator and a value")
    listed = ", ".join(_as_text(value) for value in arguments)
    return Typed(f"concat_ws({listed})", TEXT)


def date_part(name: str, arguments: Sequence[Typed]) -> Typed:
    """Bind date_part. Raises Invalid."""
    _count(name, arguments, 2)
    found = extract(_unit(name, arguments[0]), arguments[1])
    return Typed(f"cast({found.sql} as double)", DOUBLE)


def date_trunc(name: str, arguments: Sequence[Typed]) -> Typed:
    """Bind date_trunc. Raises Invalid."""
    _count(name, arguments, 2)
    unit, value = _unit(name, arguments[0]), arguments[1]
    if unit not in UNITS_OF_TRUNC:
        raise Invalid(f'unit "{unit}" is not supported by date_trunc in a view')
    if value.name not in INSTANTS:
        raise Invalid(f"function date_trunc(unknown, {value.shown}) does not exist")
    # Spark returns an instant for every type. In Postgres a date becomes one as well.
    kind = TIMESTAMP if value.name is TypeName.TIMESTAMP else TIMESTAMPTZ
    return Typed(f"cast(date_trunc('{unit}', {value.sql}) as {kind.spark})", kind)


def date_bin(name: str, arguments: Sequence[Typed]) -> Typed:
    """Bind date_bin. Raises Invalid."""
    _count(name, arguments, 3)
    stride, value, origin = arguments
    kind = common([value, origin], name)
    if kind.name not in (TypeName.TIMESTAMP, TypeName.TIMESTAMPTZ):
        raise Invalid(f"{name} of a value of type {value.shown} is not supported in a view")
    span = stride.span or parse_span(_unit(name, stride))
    length = span.days * 24 * 3600 * 10**6 + span.microseconds
    if span.months or length <= 0:
        raise Invalid(f"{name} takes a stride above zero, without months")
    at, begun = (f"unix_micros(cast({coerced(one, kind).sql} as timestamp))" for one in (value, origin))
    # The remainder is never negative, so that a window before the origin begins before its instants too.
    return Typed(f"cast(timestamp_micros({at} - pmod({at} - {begun}, {length}L)) as {kind.spark})", kind)


def round_to(name: str, arguments: Sequence[Typed]) -> Typed:
    """Bind round with a number of digits. Raises Invalid."""
    _count(name, arguments, 2)
    value, wanted = arguments
    if value.name not in (*INTEGERS, TypeName.NUMERIC):
        raise Invalid(f"function round({value.shown}, integer) does not exist")
    count = wanted.sql.strip("()")
    if wanted.type != INTEGER or not count.removeprefix("-").isdigit() or abs(int(count)) > 38:
        raise Invalid("round takes a literal number of digits in a view")
    exact = coerced(value, NUMERIC)
    assert exact.type is not None
    whole, scale = digits(exact.type)
    # Rounding may carry into one more digit.
    kind = numeric(max(whole, -int(count)) + 1, min(scale, max(int(count), 0)))
    return Typed(f"round({exact.sql}, {count})", kind)


def array_of(values: Sequence[Typed]) -> Typed:
    """Return ARRAY[values]. Raises Invalid."""
    kind = common(values, "ARRAY")
    if kind.array:
        raise Invalid("arrays have one dimension")
    listed = ", ".join(coerced(value, kind).sql for value in values)
    return Typed(f"array({listed})", ColumnType(kind.name, kind.precision, kind.scale, array=True))


def subscript(array: Typed, index: Typed) -> Typed:
    """Return an element of an array, counted from 1. Raises Invalid."""
    if array.type is None or not array.type.array:
        raise Invalid(f"cannot subscript type {array.shown}")
    at = coerced(index, INTEGER).sql
    # Like Postgres, Spark's `get` returns NULL beyond either end, but it counts from 0. `greatest` keeps the index
    # valid, because Spark evaluates a constant difference even in a branch that is not taken.
    got = f"when {at} > 0 then get({array.sql}, greatest({at}, 1) - 1)"
    # If the array is NULL, Postgres does not evaluate the subscript.
    return Typed(f"(case when {array.sql} is null then null {got} end)", array.type.element)


def array_length(name: str, arguments: Sequence[Typed]) -> Typed:
    """Bind array_length. Raises Invalid."""
    _count(name, arguments, 2)
    array = _array(name, arguments[0])
    if arguments[1].sql != "1":
        raise Invalid("arrays have one dimension: array_length(x, 1)")
    return Typed(f"nullif(cardinality({array.sql}), 0)", INTEGER)


def cardinality(name: str, arguments: Sequence[Typed]) -> Typed:
    """Bind cardinality. Raises Invalid."""
    _count(name, arguments, 1)
    return Typed(f"cardinality({_array(name, arguments[0]).sql})", INTEGER)


_UNORDERED: Final = (TypeName.JSONB, TypeName.INTERVAL)


def require_ordered(kind: ColumnType, what: str) -> None:
    """Raise Invalid for a type whose values Spark cannot compare as Postgres does."""
    if kind.array or kind.name in _UNORDERED:
        raise Invalid(f"{what}: values of type {kind} cannot be compared in a view")


def _count(name: str, arguments: Sequence[Typed], count: int) -> None:
    if len(arguments) != count:
        types = ", ".join(argument.shown for argument in arguments)
        raise Invalid(f"function {name}({types}) does not exist")


def _as_text(value: Typed) -> str:
    if value.name is TypeName.BOOLEAN:
        # Postgres's concat prints a boolean as psql does, not as a cast does.
        return f"(case when {value.sql} then 't' when not {value.sql} then 'f' end)"
    return cast(value, TEXT).sql


def _unit(name: str, value: Typed) -> str:
    if value.type is not None or value.literal is None:
        raise Invalid(f"{name} takes its unit as a literal in a view")
    return value.literal.strip().lower()


def _array(name: str, value: Typed) -> Typed:
    if value.type is None or not value.type.array:
        raise Invalid(f"function {name}({value.shown}) does not exist")
    return value
