"""Tell how many digits behind the point the values of an expression have, if all of them have as many. Pure."""

from collections.abc import Iterator, Mapping
from decimal import Decimal, InvalidOperation

from sqlglot import exp

from service.protocol.columns import ColumnType, TypeName
from service.sql.expressions.allowed import called_name

Scales = Mapping[tuple[str, str], int]
"""The scale of each column that has one, by the input and the name."""
_INTEGERS = frozenset({TypeName.SMALLINT, TypeName.INTEGER, TypeName.BIGINT})
_FRACTIONS = frozenset({"SECOND", "MILLISECONDS", "MICROSECONDS", "EPOCH", "JULIAN"})
"""Fields of which EXTRACT may show digits behind the point, depending on the type of its value."""


def row_scale(node: exp.Expr, columns: Scales) -> tuple[exp.Expr, list[int]] | None:
    """Return an expression of the scale of a row's value, and the scales that it can be, least first.

    None if more than CASE, COALESCE and arithmetic decide it.
    """
    found = _row_scale(node, columns)
    if found is None:
        return None
    shown, scales = found
    return (shown, sorted(scales)) if scales else None


def _row_scale(node: exp.Expr, columns: Scales) -> tuple[exp.Expr, set[int]] | None:
    known = scale_of(node, columns)
    if known is not None:
        return exp.Literal.number(known), {known}
    match node:
        case exp.Null():
            return exp.Null(), set()
        case exp.Paren() | exp.Neg():
            return _row_scale(node.this, columns)
        case exp.Cast() if _is_unbounded(node):
            return _row_scale(node.this, columns)
        case exp.Add() | exp.Sub() | exp.Mul():
            return _row_scale_of_two(node, columns)
        case exp.Case() | exp.Anonymous():
            return _chosen_row_scale(node, columns)
        case _:
            return None


def _chosen_row_scale(node: exp.Case | exp.Anonymous, columns: Scales) -> tuple[exp.Expr, set[int]] | None:
    if isinstance(node, exp.Case):
        conditions = [one.this for one in node.args["ifs"]]
    elif called_name(node) == "coalesce":
        conditions = [exp.Not(this=exp.Is(this=one.copy(), expression=exp.Null())) for one in node.expressions]
    else:
        return None
    found = [_row_scale(one, columns) for one in _values(node)]
    known = [one for one in found if one is not None]
    if len(known) < len(found):
        return None
    branches = [exp.If(this=one.copy(), true=scale) for one, (scale, _) in zip(conditions, known, strict=False)]
    otherwise = known[len(branches)][0] if len(known) > len(branches) else None
    subject = node.this.copy() if isinstance(node, exp.Case) and node.this is not None else None
    return exp.Case(this=subject, ifs=branches, default=otherwise), set[int]().union(*(one for _, one in known))


def _row_scale_of_two(node: exp.Binary, columns: Scales) -> tuple[exp.Expr, set[int]] | None:
    left, right = _row_scale(node.this, columns), _row_scale(node.expression, columns)
    if left is None or right is None:
        return None
    (one, scales), (other, others) = left, right
    if isinstance(node, exp.Mul):
        return exp.Add(this=one, expression=other), {first + second for first in scales for second in others}
    greatest = exp.Anonymous(this="greatest", expressions=[one, other])
    return greatest, {max(first, second) for first in scales for second in others}


def scale_of(node: exp.Expr, columns: Scales) -> int | None:
    """Return the scale that all numerics of an expression have, or None if it can depend on the row."""
    match node:
        case exp.Column() | exp.Literal() | exp.Extract():
            return _leaf(node, columns)
        case exp.Paren() | exp.Neg():
            return scale_of(node.this, columns)
        case exp.Cast():
            return _cast(node, columns)
        case exp.Add() | exp.Sub():
            both = _each(node, columns)
            return None if both is None else max(both)
        case exp.Mul():
            both = _each(node, columns)
            return None if both is None else sum(both)
        case exp.Case() | exp.Anonymous():
            found = {scale_of(one, columns) for one in _chosen(node)}
            return found.pop() if len(found) == 1 else None
        case _:
            return None


def _leaf(node: exp.Column | exp.Literal | exp.Extract, columns: Scales) -> int | None:
    if isinstance(node, exp.Column):
        return columns.get((node.table, node.name))
    if isinstance(node, exp.Literal):
        return _written(node.name)
    return None if node.name.upper() in _FRACTIONS else 0


def _each(node: exp.Expr, columns: Scales) -> tuple[int, int] | None:
    left, right = scale_of(node.this, columns), scale_of(node.expression, columns)
    return None if left is None or right is None else (left, right)


def _written(number: str) -> int | None:
    try:
        exponent = Decimal(number).as_tuple().exponent
    except InvalidOperation:
        return None
    return max(-exponent, 0) if isinstance(exponent, int) else None


def _cast(node: exp.Cast, columns: Scales) -> int | None:
    try:
        kind = ColumnType.parse(node.args["to"].sql("postgres"))
    except ValueError:
        return None
    if kind.name in _INTEGERS and not kind.array:
        return 0
    if kind.name is not TypeName.NUMERIC or kind.array:
        return None
    return scale_of(node.this, columns) if kind.scale is None else kind.scale


def _is_unbounded(node: exp.Cast) -> bool:
    return node.args["to"].sql("postgres").lower() in ("numeric", "decimal")


def _chosen(node: exp.Case | exp.Anonymous) -> Iterator[exp.Expr]:
    """Yield the values of which a CASE or COALESCE chooses one, without NULL."""
    if not isinstance(node, exp.Case) and called_name(node) != "coalesce":
        yield exp.Null()
    yield from (one for one in _values(node) if not isinstance(one, exp.Null))


def _values(node: exp.Expr) -> list[exp.Expr]:
    """Return the values of which a CASE or COALESCE chooses one."""
    if not isinstance(node, exp.Case):
        return list(node.expressions)
    default = node.args.get("default")
    return [*(one.args["true"] for one in node.args["ifs"]), *([] if default is None else [default])]
