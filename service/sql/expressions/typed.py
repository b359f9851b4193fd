"""Type the expressions of a view by Postgres's rules for untyped literals and mixed operands.

`sql` is Spark SQL that can stand as an operand anywhere. As in Postgres, a quoted literal has no type until its context
gives it one. This module then reads the literal, so that Spark gets a literal of the right type and no text to parse.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, time
from decimal import Decimal, InvalidOperation
from typing import Final
from uuid import UUID

from service.domain.errors import Invalid
from service.protocol.columns import NUMERIC_PRECISION_MAX, Column, ColumnType, TypeName

BOOLEAN: Final = ColumnType(TypeName.BOOLEAN)
SMALLINT: Final = ColumnType(TypeName.SMALLINT)
INTEGER: Final = ColumnType(TypeName.INTEGER)
BIGINT: Final = ColumnType(TypeName.BIGINT)
REAL: Final = ColumnType(TypeName.REAL)
DOUBLE: Final = ColumnType(TypeName.DOUBLE)
TEXT: Final = ColumnType(TypeName.TEXT)
BYTEA: Final = ColumnType(TypeName.BYTEA)
DATE: Final = ColumnType(TypeName.DATE)
TIME: Final = ColumnType(TypeName.TIME)
TIMESTAMP: Final = ColumnType(TypeName.TIMESTAMP)
TIMESTAMPTZ: Final = ColumnType(TypeName.TIMESTAMPTZ)
JSONB: Final = ColumnType(TypeName.JSONB)
INTERVAL: Final = ColumnType(TypeName.INTERVAL)
NUMERIC: Final = ColumnType(TypeName.NUMERIC, NUMERIC_PRECISION_MAX, 10)
"""Any numeric. The type of an expression has room for all its values, or all digits that Spark has."""

INTEGERS: Final = (TypeName.SMALLINT, TypeName.INTEGER, TypeName.BIGINT)
NUMBERS: Final = (*INTEGERS, TypeName.NUMERIC, TypeName.REAL, TypeName.DOUBLE)
"""Narrowest first: an operation on two of them uses the wider one."""
INSTANTS: Final = (TypeName.DATE, TypeName.TIMESTAMP, TypeName.TIMESTAMPTZ)
_INTEGER_DIGITS: Final = {TypeName.SMALLINT: 5, TypeName.INTEGER: 10, TypeName.BIGINT: 20}
_INTEGER_BITS: Final = {TypeName.SMALLINT: 16, TypeName.INTEGER: 32, TypeName.BIGINT: 64}


@dataclass(frozen=True, slots=True)
class Span:
    """A literal interval. As in Postgres, its months are added first, then its days, then its microseconds."""

    months: int
    days: int
    microseconds: int


@dataclass(frozen=True, slots=True)
class Typed:
    """An expression. If `type` is None, it is a literal without a type and `literal` is its text (None for NULL).

    `column` is set for a column that is passed on unchanged, and `span` for a literal interval.
    """

    sql: str
    type: ColumnType | None
    literal: str | None = None
    column: Column | None = None
    span: Span | None = None

    @property
    def name(self) -> TypeName | None:
        """The scalar type, or None for arrays and untyped literals."""
        return None if self.type is None or self.type.array else self.type.name

    @property
    def shown(self) -> str:
        """The name of the type in a message."""
        if self.type is None:
            return "unknown"
        return "numeric" if self.name is TypeName.NUMERIC else str(self.type)


def quoted(text: str) -> str:
    """Return a Spark string literal. Characters that Spark's lexer would interpret are escaped. Raises Invalid."""
    refuse_substitution(text)
    escapes = {"\\": "\\\\", "'": "\\'", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\x1a": "\\Z", "\b": "\\b"}
    return "'" + "".join(escapes.get(char, char) for char in text) + "'"


def quoted_name(name: str) -> str:
    """Return a Spark identifier. Raises Invalid."""
    refuse_substitution(name)
    return "`" + name.replace("`", "``") + "`"


def refuse_substitution(text: str) -> None:
    """Raise Invalid for a text in which Spark would substitute a setting or a variable of its environment."""
    if "${" in text:
        raise Invalid('"${" is not allowed in a view')


def settled(value: Typed) -> Typed:
    """Return `value` with a type. An untyped literal becomes text, as in Postgres."""
    return coerced(value, TEXT) if value.type is None else value


def coerced(value: Typed, to: ColumnType) -> Typed:
    """Return `value` as a `to`, by Postgres's implicit casts. Raises Invalid if there is none."""
    if value.type is None:
        sql = f"cast(NULL as {to.spark})" if value.literal is None else literal(value.literal, to)
        return Typed(sql, _as_written(value.literal, to))
    if not fits(value, to):
        raise Invalid(f"type {value.shown} is not a {to}: write a cast")
    if value.type == to or (value.name is TypeName.NUMERIC and to.name is TypeName.NUMERIC and not to.array):
        return value
    if to.name is TypeName.NUMERIC:
        # Use as many digits as the integer can have, because a scale would cost digits before the point.
        whole = _INTEGER_DIGITS[value.name or TypeName.BIGINT]
        return replace(value, sql=f"cast({value.sql} as decimal({whole},0))", type=numeric(whole, 0), column=None)
    return replace(value, sql=f"cast({value.sql} as {to.spark})", type=to, column=None)


def numeric(whole: int, scale: int) -> ColumnType:
    """Return the numeric type with `whole` digits before and `scale` digits after the point.

    If Spark has too few digits, the type loses digits before the point and not after it. There Spark fails on overflow.
    """
    return ColumnType(TypeName.NUMERIC, max(1, min(whole + scale, NUMERIC_PRECISION_MAX)), scale)


def digits(kind: ColumnType) -> tuple[int, int]:
    """Return the maximum number of digits before and after the point. A numeric without a precision has as many as
    Spark.
    """
    if kind.unbounded:
        return NUMERIC_PRECISION_MAX, NUMERIC_PRECISION_MAX
    if kind.precision is None or kind.scale is None:
        return _INTEGER_DIGITS[kind.name], 0
    return kind.precision - kind.scale, kind.scale


def fits(value: Typed, to: ColumnType) -> bool:
    """Whether `value` becomes a `to` without an explicit cast."""
    if value.type is None or value.type == to:
        return True
    if to.array or value.name is None:
        return False
    for ladder in (NUMBERS, INSTANTS):
        if value.name in ladder and to.name in ladder:
            return ladder.index(value.name) <= ladder.index(to.name)
    return False


def common(values: Sequence[Typed], what: str) -> ColumnType:
    """Return the type that all `values` can have, for CASE, COALESCE and similar expressions. Raises Invalid."""
    kind = widest(values, what)
    if kind.name is TypeName.NUMERIC and not kind.array:
        known = [value.type for value in values if value.type is not None]
        literals = [_as_written(value.literal, kind) for value in values if value.literal is not None]
        whole, scale = (max(side) for side in zip(*map(digits, (*known, *literals)), strict=True))
        if whole + scale > NUMERIC_PRECISION_MAX:
            raise Invalid(
                f"{what}: {whole} digits before the point and {scale} behind it are more than the "
                f"{NUMERIC_PRECISION_MAX} that a view has: cast the values to a narrower numeric",
            )
        return numeric(whole, scale)
    return kind


def widest(values: Sequence[Typed], what: str) -> ColumnType:
    """Return the type in which `values` meet; for numerics one of theirs, whatever its digits. Raises Invalid."""
    known = [value for value in values if value.type is not None]
    if not known:
        return TEXT
    found = known[0]
    for value in known[1:]:
        assert found.type is not None
        assert value.type is not None
        if fits(found, value.type) and not fits(value, found.type):
            found = value
        elif not fits(value, found.type) and not _both_numeric(found, value):
            raise Invalid(f"{what} types {found.shown} and {value.shown} cannot be matched")
    assert found.type is not None
    if found.name is TypeName.REAL and any(value.name in (*INTEGERS, TypeName.NUMERIC) for value in known):
        # In Postgres a real and an exact number meet as double precision.
        return DOUBLE
    return found.type


def number(text: str) -> Typed:
    """Return a number as written: the smallest integer type that fits, else an exact numeric. Raises Invalid."""
    cleaned = text.replace("_", "")
    try:
        value = Decimal(cleaned)
    except InvalidOperation:
        raise Invalid(f"number {text} is not supported: write it in decimal digits") from None
    if cleaned.isdigit():
        whole = int(value)
        if whole < 1 << 31:
            return Typed(str(whole), INTEGER)
        if whole < 1 << 63:
            return Typed(f"{whole}L", BIGINT)
    written = _decimal(value)
    return Typed(written, _as_written(cleaned, NUMERIC))


def literal(text: str, to: ColumnType) -> str:
    """Return the Spark literal for a quoted literal read as a `to`. Raises Invalid, in Postgres's words."""
    reader = None if to.array else _LITERALS.get(to.name)
    if reader is None:
        raise Invalid(f"a literal of type {to} is not supported in a view")
    try:
        return reader(text, to)
    except (ValueError, InvalidOperation):
        raise Invalid(f'invalid input syntax for type {to.name}: "{text}"') from None


def _as_written(text: str | None, to: ColumnType) -> ColumnType:
    """Return the type of a literal. A numeric has the digits with which it was written."""
    if text is None or to.array or to.name is not TypeName.NUMERIC:
        return to
    whole, _, fraction = format(abs(Decimal(text.strip())), "f").partition(".")
    return numeric(len(whole.lstrip("0")), len(fraction))


def _both_numeric(one: Typed, other: Typed) -> bool:
    return one.name is TypeName.NUMERIC and other.name is TypeName.NUMERIC


def _decimal(value: Decimal) -> str:
    if not value.is_finite() or abs(value.adjusted()) > NUMERIC_PRECISION_MAX:
        raise Invalid(f"a number has at most {NUMERIC_PRECISION_MAX} digits in a view")
    text = format(value, "f")
    if len(text.replace(".", "").lstrip("-0")) > NUMERIC_PRECISION_MAX or len(text.partition(".")[2]) > (
        NUMERIC_PRECISION_MAX
    ):
        raise Invalid(f"a number has at most {NUMERIC_PRECISION_MAX} digits in a view")
    return f"({text}BD)" if value.is_signed() else f"{text}BD"


def _text(text: str, _: ColumnType) -> str:
    return quoted(text)


def _boolean(text: str, _: ColumnType) -> str:
    word = text.strip().lower()
    for value, spelled in ((True, ("true", "yes", "on", "1")), (False, ("false", "no", "off", "0"))):
        # Postgres accepts any unique prefix. "o" is a prefix of both on and off.
        if word not in ("", "o") and any(full.startswith(word) for full in spelled):
            return str(value).lower()
    raise ValueError(text)


def _whole(text: str, to: ColumnType) -> str:
    if not re.fullmatch(r"\s*[+-]?[0-9]{1,30}\s*", text):
        raise ValueError(text)
    value, half = int(text), 1 << (_INTEGER_BITS[to.name] - 1)
    if not -half <= value < half:
        raise ValueError(text)
    return f"cast({_decimal(Decimal(value))} as {to.spark})"


def _exact(text: str, _: ColumnType) -> str:
    if not re.fullmatch(r"\s*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,4})?\s*", text):
        raise ValueError(text)
    return _decimal(Decimal(text.strip()))


_NOT_FINITE: Final = {
    "nan": "NaN",
    "infinity": "Infinity",
    "inf": "Infinity",
    "+infinity": "Infinity",
    "-infinity": "-Infinity",
    "-inf": "-Infinity",
}


def _float(text: str, to: ColumnType) -> str:
    word = _NOT_FINITE.get(text.strip().lower())
    if word is None:
        if not re.fullmatch(r"\s*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,4})?\s*", text):
            raise ValueError(text)
        word = text.strip()
    return f"cast('{word}' as {to.spark})"


def _bytes(text: str, _: ColumnType) -> str:
    if not text.startswith("\\x"):
        raise ValueError(text)
    return f"X'{bytes.fromhex(text[2:]).hex()}'"


_DAY: Final = r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
_CLOCK: Final = r"[0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,6})?)?"


def _date(text: str, _: ColumnType) -> str:
    if not re.fullmatch(_DAY, text.strip()):
        raise ValueError(text)
    return f"DATE'{date.fromisoformat(text.strip()).isoformat()}'"


def _time(text: str, _: ColumnType) -> str:
    if not re.fullmatch(_CLOCK, text.strip()):
        raise ValueError(text)
    shown = time.fromisoformat(_six_digits(text.strip())).isoformat()
    # Postgres prints no trailing zeros, and the column is compared by its text.
    return f"'{shown.rstrip('0') if '.' in shown else shown}'"


def _timestamp(text: str, _: ColumnType) -> str:
    if not re.fullmatch(rf"{_DAY}(?:[ T]{_CLOCK})?", text.strip()):
        raise ValueError(text)
    return f"TIMESTAMP_NTZ'{datetime.fromisoformat(_six_digits(text.strip())).isoformat(sep=' ')}'"


def _timestamptz(text: str, _: ColumnType) -> str:
    found = re.fullmatch(rf"({_DAY}(?:[ T]{_CLOCK})?)\s*(Z|UTC|[+-][0-9]{{2}}(?::?[0-9]{{2}})?)?", text.strip())
    if not found:
        raise ValueError(text)
    shown = datetime.fromisoformat(_six_digits(found[1])).isoformat(sep=" ")
    zone = found[2] if found[2] not in (None, "Z", "UTC") else "+00:00"
    return f"TIMESTAMP'{shown}{zone[:3]}:{zone[3:].removeprefix(':') or '00'}'"


def _uuid(text: str, _: ColumnType) -> str:
    return f"'{UUID(text.strip())}'"


def _six_digits(text: str) -> str:
    """Return the text with six digits after the point, because Python 3.11 reads only three or six digits."""
    head, point, fraction = text.partition(".")
    return f"{head}.{fraction.ljust(6, '0')}" if point else text


_LITERALS: Final = {
    TypeName.BOOLEAN: _boolean,
    TypeName.SMALLINT: _whole,
    TypeName.INTEGER: _whole,
    TypeName.BIGINT: _whole,
    TypeName.NUMERIC: _exact,
    TypeName.REAL: _float,
    TypeName.DOUBLE: _float,
    TypeName.TEXT: _text,
    TypeName.BYTEA: _bytes,
    TypeName.DATE: _date,
    TypeName.TIME: _time,
    TypeName.TIMESTAMP: _timestamp,
    TypeName.TIMESTAMPTZ: _timestamptz,
    TypeName.UUID: _uuid,
}
