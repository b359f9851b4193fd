"""Write numbers in the state store's SQL, for the functions that only Postgres computes to Postgres's last digit.

The store computes such a column for every row that it reads, also where a WHERE or a CASE leaves the value out. A text
of this module therefore never fails: it is NULL where Postgres would fail, and Spark raises the error if the value is
asked for. A text that is None cannot be written so. An exact number is any exact type there, a float its own type.
"""

import sys
from collections.abc import Sequence
from types import MappingProxyType
from typing import Final

from service.protocol.columns import ColumnType, TypeName
from service.protocol.quoting import quoted_text

EXACT: Final = frozenset({TypeName.SMALLINT, TypeName.INTEGER, TypeName.BIGINT, TypeName.NUMERIC})
_FLOATS: Final = frozenset({TypeName.REAL, TypeName.DOUBLE})
_CAST: Final = MappingProxyType({TypeName.REAL: "float4", TypeName.DOUBLE: "float8"})
TEXT_MAX: Final = 20_000
"""The longest text. Guards repeat what they guard, so nested ones grow fast."""

# The exponents, to base e, of results that are neither infinite nor 0.
_LEAST, _MOST = "-745.1332", "709.7827128"
_ENDLESS: Final = "abs({0}) >= 'Infinity'::float8"
"""Infinite or NaN, which is the largest float in Postgres."""

LOGARITHM: Final = "case when {{0}} > 0 then {0}({{0}}) end"
EXPONENTIAL: Final = f"case when {_ENDLESS} or {{0}} between {_LEAST} and {_MOST} then exp({{0}}) end"
# The exponent of the result cannot fail, because its factors are neither too large nor too small.
POWER: Final = (
    "case when {0} < 0 and floor({1}) <> {1} then null"
    " when {0} = 0 then case when {1} >= 0 then power({0}, {1}) end"
    f" when {_ENDLESS} or {_ENDLESS.replace('{0}', '{1}')}"
    " or sign({1}) * greatest(least(abs({1}), 1e300), 1e-300) * ln(case when {0} <> 0 then abs({0}) end)"
    f" between {_LEAST} and {_MOST} then power({{0}}, {{1}}) end"
)
_ROOT: Final = "case when {0} >= 0 then sqrt({0}) end"
_TOTAL: Final = frozenset({"abs", "ceil", "ceiling", "floor", "round", "sign", "trunc"})
"""Functions of one number that never fail."""

_LOG: Final = "ln(case when {0} <> 0 then abs({0}) end)"
_ANY_ENDLESS: Final = f"{_ENDLESS} or {_ENDLESS.replace('{0}', '{1}')}"
# Beside a large number a much smaller one changes nothing. A quarter of other large ones is exact, and so is its sum.
_SUM: Final = (
    f"case when greatest(abs({{0}}), abs({{1}})) < 8e307 or least(abs({{0}}), abs({{1}})) < 1e200 or {_ANY_ENDLESS}"
    f" then {{0}} {{sign}} {{1}} when abs({{0}} * 0.25 {{sign}} {{1}} * 0.25) <= {sys.float_info.max / 4!r}"
    " then {0} {sign} {1} end"
)
_FLOAT: Final = MappingProxyType(
    {
        "+": _SUM,
        "-": _SUM,
        "*": f"case when {{0}} = 0 or {{1}} = 0 or {_ANY_ENDLESS} or {_LOG} + {_LOG.replace('{0}', '{1}')}"
        f" between {_LEAST} and {_MOST} then {{0}} * {{1}} end",
        "/": f"case when {{1}} <> 0 and ({{0}} = 0 or {_ANY_ENDLESS} or {_LOG} - {_LOG.replace('{0}', '{1}')}"
        f" between {_LEAST} and {_MOST}) then {{0}} / {{1}} end",
    }
)
# No product of two numbers of 38 digits is a wrong one: Spark fails beyond 38, and so does the whole then.
_BOUND: Final = "nullif(nullif(greatest(least({0}, 1e38), -1e38), 1e38), -1e38)"
_NUMBER: Final = MappingProxyType(
    {
        "+": "{0} + {1}",
        "-": "{0} - {1}",
        "*": "{0} * {1}",
        "/": "div({0}, nullif({1}, 0))",
        "%": "mod({0}, nullif({1}, 0))",
    }
)


def literal(text: str | None, to: ColumnType) -> str | None:
    """Write a quoted literal that was read as a `to`."""
    if text is None:
        return f"null::{_CAST.get(to.name, 'numeric')}" if to.name in EXACT | _FLOATS and not to.array else None
    if to.array or to.name not in (EXACT - {TypeName.NUMERIC}) | {TypeName.DOUBLE}:
        return None
    if to.name is not TypeName.DOUBLE:
        return f"({text.strip()})"
    value, digits = float(text), text.lower().partition("e")[0]
    # Postgres does not read a number that is too large or too small.
    lost = value in (0, float("inf"), float("-inf")) and any(digit in digits for digit in "123456789")
    return None if lost else f"{quoted_text(text.strip())}::float8"


def converted(text: str | None, kind: ColumnType | None, to: ColumnType) -> str | None:
    """Write a number as a `to`, a type that holds every value of its own."""
    if text is None or kind is None or kind.array or to.array or kind.name not in EXACT | _FLOATS:
        return None
    if kind == to or (kind.name in EXACT and to.name in EXACT):
        return text
    narrowed = (kind.name, to.name) == (TypeName.DOUBLE, TypeName.REAL)
    return f"({text})::{_CAST[to.name]}" if to.name in _CAST and not narrowed else None


def negated(text: str | None, kind: ColumnType | None) -> str | None:
    """Write `- text`."""
    return _short(None if text is None or kind is None else f"(-{_wide(text, kind)})")


def arithmetic(sign: str, one: str | None, other: str | None, kind: ColumnType) -> str | None:
    """Write an operation on two numbers of one type."""
    if one is None or other is None or kind.name is TypeName.REAL:
        return None
    sides = _wide(one, kind), _wide(other, kind)
    if kind.name is TypeName.DOUBLE:
        return _short(f"({_FLOAT[sign].format(*sides, sign=sign)})") if sign in _FLOAT else None
    return _short(_BOUND.format(_NUMBER[sign].format(*sides)))


def function(name: str, given: Sequence[str | None], kinds: Sequence[ColumnType]) -> str | None:
    """Write the call of a function that Spark computes exactly."""
    if len(given) != 1 or given[0] is None or not {*_TOTAL, "sqrt"} & {name}:
        return None
    value = _wide(given[0], kinds[0])
    return _short(f"({_ROOT.format(value)})" if name == "sqrt" else f"{name}({value})")


def choice(name: str, given: Sequence[str | None], kind: ColumnType) -> str | None:
    """Write COALESCE, GREATEST or LEAST of values of one type."""
    texts = [_wide(one, kind) for one in given if one is not None]
    if len(texts) < len(given) or kind.array or kind.name not in EXACT | _FLOATS:
        return None
    return _short(f"{name}({', '.join(texts)})")


def filled(template: str, given: Sequence[str | None]) -> str | None:
    """Write a function that only the store computes: `template` with its arguments."""
    texts = [one for one in given if one is not None]
    return _short(f"({template.format(*texts)})") if len(texts) == len(given) else None


def _wide(text: str, kind: ColumnType) -> str:
    """Write a number so that no sum of it overflows: an exact one as numeric."""
    return f"({text})::numeric" if kind.name in EXACT else text


def _short(text: str | None) -> str | None:
    return text if text is not None and len(text) <= TEXT_MAX else None
