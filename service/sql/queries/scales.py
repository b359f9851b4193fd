"""Tell how many digits behind the point the values of an expression have, if all of them have as many. Pure."""

from collections.abc import Iterator, Mapping
from decimal import Decimal, InvalidOperation

from sqlglot import exp

from service.protocol.columns import ColumnType, TypeName
from service.protocol.quoting import quoted
from service.sql.expressions.allowed import called_name
from service.sql.queries.nodes import parsed

_INTEGERS = frozenset({TypeName.SMALLINT, TypeName.INTEGER, TypeName.BIGINT})


def scale_of(text: str, columns: Mapping[str, int]) -> int | None:
    """Return the scale that all numerics of an expression have, or None if it can depend on the row.

    `columns` has the scale of each column that has one, by its printed name.
    """
    return _scale(parsed(text), columns)


def _scale(node: exp.Expr, columns: Mapping[str, int]) -> int | None:
    match node:
        case exp.Paren() | exp.Neg():
            return _scale(node.this, columns)
        case exp.Column():
            return columns.get(f"{quoted(node.table)}.{quoted(node.name)}")
        case exp.Literal():
            return _written(node.name)
        case exp.Cast():
            return _cast(node, columns)
        case exp.Add() | exp.Sub():
            both = _each(node, columns)
            return None if both is None else max(both)
        case exp.Mul():
            both = _each(node, columns)
            return None if both is None else sum(both)
        case exp.Case() | exp.Anonymous():
            found = {_scale(one, columns) for one in _chosen(node)}
            return found.pop() if len(found) == 1 else None
        case _:
            return None


def _each(node: exp.Expr, columns: Mapping[str, int]) -> tuple[int, int] | None:
    left, right = _scale(node.this, columns), _scale(node.expression, columns)
    return None if left is None or right is None else (left, right)


def _written(number: str) -> int | None:
    try:
        exponent = Decimal(number).as_tuple().exponent
    except InvalidOperation:
        return None
    return max(-exponent, 0) if isinstance(exponent, int) else None


def _cast(node: exp.Cast, columns: Mapping[str, int]) -> int | None:
    try:
        kind = ColumnType.parse(node.args["to"].sql("postgres"))
    except ValueError:
        return None
    if kind.name in _INTEGERS and not kind.array:
        return 0
    if kind.name is not TypeName.NUMERIC or kind.array:
        return None
    return _scale(node.this, columns) if kind.scale is None else kind.scale


def _chosen(node: exp.Case | exp.Anonymous) -> Iterator[exp.Expr]:
    """Yield the values of which a CASE or COALESCE chooses one, without NULL."""
    values = list(node.expressions)
    if isinstance(node, exp.Case):
        values = [one.args["true"] for one in node.args["ifs"]]
        values += [node.args["default"]] if node.args.get("default") is not None else []
    elif called_name(node) != "coalesce":
        yield exp.Null()
    yield from (one for one in values if not isinstance(one, exp.Null))
