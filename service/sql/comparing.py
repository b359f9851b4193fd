"""Comparisons in Spark SQL that lose no digit: numerics that have more than Spark's 38 between them are compared in two
parts, before the point and behind it.
"""

from collections.abc import Sequence
from typing import Final

from service.protocol.columns import NUMERIC_PRECISION_MAX, ColumnType, TypeName
from service.sql.typed import INSTANTS, Typed, coerced, digits

_REST: Final = f"decimal({NUMERIC_PRECISION_MAX},{NUMERIC_PRECISION_MAX})"
_FLOATS: Final = (TypeName.REAL, TypeName.DOUBLE)


def compared(sign: str, left: Typed, right: Typed, kind: ColumnType) -> str:
    """Return `left <sign> right`, both of which meet in `kind`, with NULL as Postgres has it."""
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
    """Return `the first = one of the others`."""
    first, *others = (_operand(value, kind) for value in values)
    if _too_wide(first, *others):
        # Spark would bring all of them to one type.
        return f"({' or '.join(compared('=', first, other, kind) for other in others)})"
    return f"({first.sql} in ({', '.join(other.sql for other in others)}))"


def _operand(value: Typed, kind: ColumnType) -> Typed:
    """Spark meets integers by themselves and numerics by themselves. An integer beside a literal with a point it takes
    for decided where the literal is out of the integer's range, and forgets NULL.
    """
    met = value.type is not None and kind.name not in (TypeName.NUMERIC, *_FLOATS, *INSTANTS)
    return value if met else coerced(value, kind)


def _too_wide(*values: Typed) -> bool:
    if all(value.name is not TypeName.NUMERIC for value in values):
        return False
    held = [digits(value.type) for value in values if value.type is not None]
    return sum(max(side) for side in zip(*held, strict=True)) > NUMERIC_PRECISION_MAX


def _parts(value: Typed) -> tuple[str, str]:
    """A number cut off at the point, and the rest, both with its sign: in this order they are ordered as it is."""
    assert value.type is not None
    if value.name is not TypeName.NUMERIC or not digits(value.type)[1]:
        # Of NULL both are: a rest of 0 would decide what NULL leaves open.
        return value.sql, f"(case when {value.sql} is not null then cast(0 as {_REST}) end)"
    rest = f"({value.sql} % 1BD)"
    return f"cast(({value.sql} - {rest}) as decimal({NUMERIC_PRECISION_MAX},0))", f"cast({rest} as {_REST})"
