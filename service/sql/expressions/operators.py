"""Print the operators of a view's expressions in Spark SQL, for the operands that Postgres accepts."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from sqlglot import exp

from service.domain.errors import Invalid
from service.protocol.columns import NUMERIC_PRECISION_MAX, ColumnType, TypeName
from service.sql.expressions.casts import cast
from service.sql.expressions.comparing import compared
from service.sql.expressions.special import require_ordered
from service.sql.expressions.typed import (
    BIGINT,
    BOOLEAN,
    DATE,
    DOUBLE,
    INSTANTS,
    INTEGER,
    INTEGERS,
    NUMBERS,
    NUMERIC,
    REAL,
    TEXT,
    TIMESTAMP,
    Span,
    Typed,
    coerced,
    common,
    digits,
    numeric,
    widest,
)

Node = type[exp.Expr]
_ARITHMETIC: Final[Mapping[Node, str]] = {exp.Add: "+", exp.Sub: "-", exp.Mul: "*", exp.Div: "/", exp.Mod: "%"}
_COMPARISON: Final[Mapping[Node, str]] = {
    exp.EQ: "=",
    exp.NEQ: "<>",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
    exp.NullSafeEQ: "<=>",
    exp.NullSafeNEQ: "<=>",
}
_BITWISE: Final[Mapping[Node, str]] = {exp.BitwiseAnd: "&", exp.BitwiseOr: "|", exp.BitwiseXor: "^"}
_LOGIC: Final[Mapping[Node, str]] = {exp.And: "and", exp.Or: "or"}
_FLOATS: Final = (TypeName.REAL, TypeName.DOUBLE)

BINARY: Final = (*_ARITHMETIC, *_COMPARISON, *_BITWISE, *_LOGIC, exp.DPipe)
UNARY: Final = (exp.Neg, exp.Not, exp.BitwiseNot)


def binary(node: Node, left: Typed, right: Typed) -> Typed:
    """Return `left <operator> right`. Raises Invalid, in Postgres's words, if there is no such operator."""
    if node in _COMPARISON:
        return _comparison(node, left, right)
    if node in _LOGIC:
        word = _LOGIC[node]
        return Typed(f"({truth(left, word.upper())} {word} {truth(right, word.upper())})", BOOLEAN)
    if node in _BITWISE:
        return _bitwise(_BITWISE[node], left, right)
    if node is exp.DPipe:
        return _concatenated(left, right)
    return _arithmetic(_ARITHMETIC[node], left, right)


_LEAST: Final[Mapping[str, tuple[str, ColumnType]]] = MappingProxyType(
    {"2147483648L": ("(-2147483648)", INTEGER), "9223372036854775808BD": ("(-9223372036854775808L)", BIGINT)}
)
"""Literals whose positive value has a wider type. In Postgres the sign belongs to the number."""
_NEGATED_LEAST: Final[Mapping[str, tuple[str, ColumnType]]] = MappingProxyType(
    {"-2147483648": ("2147483648L", BIGINT), "-9223372036854775808L": ("9223372036854775808BD", numeric(19, 0))}
)
"""The same for a second sign: `- -2147483648` is a bigint."""

_SIGNED_DIGITS_MAX: Final = 34
"""Spark's own negation of a decimal rounds to so many digits."""


def unary(node: Node, value: Typed) -> Typed:
    """Return `<operator> value`. Raises Invalid."""
    if node is exp.Not:
        return Typed(f"(not {truth(value, 'NOT')})", BOOLEAN)
    allowed = NUMBERS if node is exp.Neg else INTEGERS
    sign = "-" if node is exp.Neg else "~"
    if value.span is not None and node is exp.Neg:
        span = Span(-value.span.months, -value.span.days, -value.span.microseconds)
        return Typed(value.sql, value.type, span=span)
    if value.name not in allowed:
        raise Invalid(f"operator does not exist: {sign} {value.shown}")
    literal = value.sql.strip("()")
    if node is exp.Neg and (found := _LEAST.get(literal) or _NEGATED_LEAST.get(literal)):
        return Typed(*found)
    if value.type is not None and (value.type.precision or 0) > _SIGNED_DIGITS_MAX:
        return Typed(f"cast(0BD - {value.sql} as {value.type.spark})", value.type)
    return Typed(f"({sign}{value.sql})", value.type)


def truth(value: Typed, what: str) -> str:
    """Return the Spark SQL of a boolean. Raises Invalid for any other type."""
    if value.type is not None and value.type != BOOLEAN:
        raise Invalid(f"argument of {what} must be type boolean, not type {value.shown}")
    return coerced(value, BOOLEAN).sql


def comparable(values: Sequence[Typed], what: str) -> ColumnType:
    """Return the type in which `values` are compared. Raises Invalid if Spark's order differs from Postgres's."""
    kind = widest(values, what)
    if kind.name in _FLOATS and any(value.type is not None and value.type != kind for value in values):
        kind = DOUBLE
    require_ordered(kind, what)
    return kind


def _comparison(node: Node, left: Typed, right: Typed) -> Typed:
    sign = _COMPARISON[node]
    try:
        kind = comparable([left, right], f"operator {sign}")
    except Invalid as error:
        if left.type is None or right.type is None or left.type == right.type:
            raise
        raise _no_operator(sign, left, right) from error
    shown = compared(sign, left, right, kind)
    return Typed(f"(not {shown})" if node is exp.NullSafeNEQ else shown, BOOLEAN)


def _arithmetic(sign: str, left: Typed, right: Typed) -> Typed:
    if left.name in INSTANTS or right.name in INSTANTS:
        return _moved(sign, left, right)
    kind = _number_kind(sign, left, right)
    left, right = coerced(left, kind), coerced(right, kind)
    return _exact(sign, left, right) if kind.name is TypeName.NUMERIC else _rounded(sign, left, right, kind)


def _rounded(sign: str, left: Typed, right: Typed, kind: ColumnType) -> Typed:
    """Return an operation on integers or floats."""
    one, other = left.sql, right.sql
    if sign == "/" and kind.name in INTEGERS:
        # Postgres truncates. Spark's `/` returns a fraction and its `div` a bigint.
        return Typed(f"cast(({one} div {other}) as {kind.spark})", kind)
    if sign == "/":
        # NaN divided by zero is NaN in Postgres and an error in Spark.
        quotient = f"({one} / case when isnan({one}) and {other} = 0 then {one} else {other} end)"
        # Spark's quotient of two floats is a double. It has enough digits, so rounding it once more is exact.
        single = kind.name is TypeName.REAL
        return Typed(f"cast({quotient} as float)" if single else quotient, kind)
    return Typed(f"({one} {sign} {other})", kind)


def _exact(sign: str, left: Typed, right: Typed) -> Typed:
    """Return an operation on numerics that keeps all digits after the point. Spark fails if the integer
    part overflows.
    """
    assert left.type is not None
    assert right.type is not None
    (whole, scale), (other_whole, other_scale) = digits(left.type), digits(right.type)
    if sign == "/":
        raise Invalid(
            "numeric / numeric is not supported in a view: Postgres chooses its digits by the values: "
            "multiply by a fraction, or cast to double precision first",
        )
    if sign == "*":
        if scale + other_scale > NUMERIC_PRECISION_MAX:
            raise Invalid(
                f"a product of {scale + other_scale} digits behind the point is not supported in a view: "
                f"{NUMERIC_PRECISION_MAX} is most: cast the factors to narrower numerics",
            )
        kind = numeric(whole + other_whole + 1, scale + other_scale)
    else:
        kind = numeric(max(whole, other_whole) + 1, max(scale, other_scale))
    return Typed(f"({left.sql} {sign} {right.sql})", kind)


def _number_kind(sign: str, left: Typed, right: Typed) -> ColumnType:
    known = [value for value in (left, right) if value.type is not None]
    if not known or any(value.name not in NUMBERS for value in known):
        raise _no_operator(sign, left, right)
    names = {value.name for value in known}
    if names & set(_FLOATS):
        kind = REAL if names == {TypeName.REAL} else DOUBLE
    else:
        kind = NUMERIC if TypeName.NUMERIC in names else common(known, sign)
    if sign == "%" and kind.name in _FLOATS:
        raise _no_operator(sign, left, right)
    return kind


def _moved(sign: str, left: Typed, right: Typed) -> Typed:
    """Return an operation on dates and instants.

    Supported are plus or minus days or a literal interval, and the days between two dates.
    """
    if sign == "+" and left.name not in INSTANTS:
        left, right = right, left
    if right.type is None and right.literal is not None and left.name is TypeName.DATE and sign == "-":
        right = coerced(right, DATE)
    if sign in "+-" and right.span is not None:
        return _shifted(sign, left, right.span)
    if sign in "+-" and left.name is TypeName.DATE and right.name in (TypeName.SMALLINT, TypeName.INTEGER):
        return Typed(f"date_{'add' if sign == '+' else 'sub'}({left.sql}, {right.sql})", DATE)
    if sign == "-" and left.name is right.name is TypeName.DATE:
        return Typed(f"datediff({left.sql}, {right.sql})", INTEGER)
    raise _no_operator(sign, left, right)


def _shifted(sign: str, value: Typed, span: Span) -> Typed:
    if value.name is TypeName.DATE:
        value = cast(value, TIMESTAMP)
    sql = value.sql
    seconds = f"{abs(span.microseconds) // 10**6}.{abs(span.microseconds) % 10**6:06d}"
    for amount, text, unit in (
        (span.months, str(abs(span.months)), "MONTH"),
        (span.days, str(abs(span.days)), "DAY"),
        (span.microseconds, seconds, "SECOND"),
    ):
        if amount:
            sql = f"({sql} {'+' if (amount > 0) == (sign == '+') else '-'} INTERVAL '{text}' {unit})"
    return Typed(sql, value.type)


def _bitwise(sign: str, left: Typed, right: Typed) -> Typed:
    known = [value for value in (left, right) if value.type is not None]
    if not known or any(value.name not in INTEGERS for value in known):
        raise _no_operator("#" if sign == "^" else sign, left, right)
    kind = common(known, sign)
    return Typed(f"({coerced(left, kind).sql} {sign} {coerced(right, kind).sql})", kind)


def _concatenated(left: Typed, right: Typed) -> Typed:
    if any(value.type is not None and value.type.array for value in (left, right)):
        raise Invalid("array concatenation is not supported in a view")
    if TypeName.TEXT not in (left.name, right.name) and left.type is not None and right.type is not None:
        raise _no_operator("||", left, right)
    if TypeName.JSONB in (left.name, right.name) or TypeName.BYTEA in (left.name, right.name):
        raise _no_operator("||", left, right)
    one, other = (cast(value, TEXT).sql for value in (left, right))
    return Typed(f"concat({one}, {other})", TEXT)


def require_powers(left: Typed, right: Typed) -> None:
    """Raise Invalid, in Postgres's words, unless `left ^ right` is one of numbers."""
    known = [value for value in (left, right) if value.type is not None]
    if not known or any(value.name not in NUMBERS for value in known):
        raise _no_operator("^", left, right)


def _no_operator(sign: str, left: Typed, right: Typed) -> Invalid:
    return Invalid(f"operator does not exist: {left.shown} {sign} {right.shown}")
