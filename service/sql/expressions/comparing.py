"""Print comparisons in Spark SQL without losing digits.

If two numerics together have more than Spark's 38 digits, their integer parts and fractions are compared separately.
"""

from collections.abc import Sequence
from typing import Final

from service.protocol.columns import NUMERIC_PRECISION_MAX, ColumnType, TypeName
from service.sql.expressions.typed import INSTANTS, Typed, coerced, digits

_REST: Final = f"decimal({NUMERIC_PRECISION_MAX},{NUMERIC_PRECISION_MAX})"
_LONG: Final = f"more than {NUMERIC_PRECISION_MAX} digits behind the point are not supported in a view"
_FLOATS: Final = (TypeName.REAL, TypeName.DOUBLE)


def compared(sign: str, left: Typed, right: Typed, kind: ColumnType) -> str:
    """Return `left <sign> right`, compared as `kind`. NULL behaves as in Postgres."""
    one, other = _operand(left, kind), _operand(right, kind)
    if not _too_wide(one, other):
        return f"({one.sql} {sign} {other.sql})"
    (whole, part), (other_whole, other_part) = _parts(one), _parts(other)
    if sign in ("=", "<=>"):
        return f"({whole} {sign} {other_whole} and {part} {sign} {other_part})"
    if sign == "<>":
        return f"(not ({whole} = {other_whole} and {part} = {other_part}))"
    return f"({whole} {sign[0]} {other_whole} or ({whole} = {other_whole} and {part} {sign} {other_part}))"


def listed(values: Sequence[Typed], kind: ColumnType) -> str:
    """Return the condition that the first value equals one of the others."""
    first, *others = (_operand(value, kind) for value in values)
    if _too_wide(first, *others):
        # With IN, Spark would cast all values to one type.
        return f"({' or '.join(compared('=', first, other, kind) for other in others)})"
    return f"({first.sql} in ({', '.join(other.sql for other in others)}))"


def _operand(value: Typed, kind: ColumnType) -> Typed:
    """Return the operand, cast to `kind` only where Spark's own coercion is unsafe.

    Spark coerces integers among themselves correctly, and numerics among themselves. If an integer is compared with a
    decimal literal that is out of the integer's range, Spark replaces the comparison by a constant and ignores NULL.
    """
    met = value.type is not None and kind.name not in (TypeName.NUMERIC, *_FLOATS, *INSTANTS)
    return value if met else coerced(value, kind)


def _too_wide(*values: Typed) -> bool:
    if all(value.name is not TypeName.NUMERIC for value in values):
        return False
    held = [digits(value.type) for value in values if value.type is not None]
    return sum(max(side) for side in zip(*held, strict=True)) > NUMERIC_PRECISION_MAX


def _parts(value: Typed) -> tuple[str, str]:
    """Return a number's truncated integer part and its fraction, both with its sign. One without a precision is a text.

    Comparing the pairs in this order compares the numbers.
    """
    assert value.type is not None
    if value.type.unbounded:
        whole, sign = f"split_part({value.sql}, '.', 1)", f"case when startswith({value.sql}, '-') then '-' else '' end"
        rest = f"cast(concat({sign}, '0.', split_part({value.sql}, '.', 2)) as {_REST})"
        lost = f"{value.sql} rlike '[.][0-9]{{{NUMERIC_PRECISION_MAX}}}[0-9]*[1-9]'"
        return (
            f"cast({whole} as decimal({NUMERIC_PRECISION_MAX},0))",
            f"(case when {lost} then raise_error('{_LONG}') else {rest} end)",
        )
    if value.name is not TypeName.NUMERIC or not digits(value.type)[1]:
        # If the number is NULL, the fraction is NULL as well. A fraction of 0 would decide a comparison that must be
        # NULL.
        return value.sql, f"(case when {value.sql} is not null then cast(0 as {_REST}) end)"
    rest = f"({value.sql} % 1BD)"
    return f"cast(({value.sql} - {rest}) as decimal({NUMERIC_PRECISION_MAX},0))", f"cast({rest} as {_REST})"
