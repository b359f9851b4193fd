"""Decide which queries the state store may compute: those that mean exactly the same in Postgres and in Spark.

Such a query passes columns on unchanged. Its conditions must be ones in which the engines cannot differ: comparisons of
exact types with columns and plain literals, IS NULL, and their combinations (the three-valued logic is the same). Spark
computes everything else, for example an operation that may overflow or round, a float, a pattern, or a time zone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sqlglot import exp

from service.domain.errors import Invalid
from service.protocol.columns import ColumnType, TypeName
from service.protocol.plan import Pushdown
from service.protocol.quoting import quoted, quoted_text
from service.sql.expressions import operators
from service.sql.expressions.scalar import Scope
from service.sql.expressions.typed import INTEGERS, Typed

_COMPARISON: Final[Mapping[type[exp.Expr], str]] = {
    exp.EQ: "=",
    exp.NEQ: "<>",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
}
_EXACT: Final = frozenset({*INTEGERS, TypeName.NUMERIC, TypeName.TEXT, TypeName.BOOLEAN, TypeName.DATE})
"""Both engines compare text byte by byte, because its columns are COLLATE "C"."""


@dataclass(frozen=True, slots=True)
class Condition:
    """A WHERE condition and the scope of its names; `sql` is the condition in Spark SQL."""

    scope: Scope
    node: exp.Expr
    sql: str


def push_down(outputs: Sequence[Typed], conditions: Sequence[Condition]) -> Pushdown | None:
    """Return the query in Postgres's SQL, or None if Spark has to compute it. All conditions have to hold."""
    columns = [output.column.name for output in outputs if output.column is not None]
    pushed = [_condition(condition.scope, condition.node) for condition in conditions]
    if len(columns) < len(outputs) or None in pushed:
        return None
    return Pushdown(columns=tuple(columns), predicate=all_of([condition for condition in pushed if condition]))


def all_of(conditions: Sequence[str]) -> str | None:
    """Return the condition that all of `conditions` hold, or None if there are none."""
    return f"({' and '.join(conditions)})" if len(conditions) > 1 else next(iter(conditions), None)


def _condition(scope: Scope, node: exp.Expr) -> str | None:
    match node:
        case exp.Paren():
            return _condition(scope, node.this)
        case exp.Not():
            negated = _condition(scope, node.this)
            return None if negated is None else f"(not {negated})"
        case exp.And() | exp.Or():
            sides = [_condition(scope, side) for side in (node.this, node.expression)]
            word = " and " if isinstance(node, exp.And) else " or "
            return None if None in sides else f"({word.join(filter(None, sides))})"
        case exp.Is() if isinstance(node.expression, exp.Null):
            column = _column(scope, node.this)
            word = "is not null" if node.args.get("negate") else "is null"
            return None if column is None else f"({column} {word})"
        case exp.Column():
            return _column(scope, node)
        case _ if type(node) in _COMPARISON:
            return _comparison(scope, node)
        case _:
            return None


def _comparison(scope: Scope, node: exp.Expr) -> str | None:
    sides = [node.this, node.args["expression"]]
    if not all(_plain(side) for side in sides):
        return None
    kind = operators.comparable([scope.bind(side) for side in sides], "a comparison")
    if kind.array or kind.name not in _EXACT:
        return None
    left, right = (_operand(scope, side, kind) for side in sides)
    return None if left is None or right is None else f"({left} {_COMPARISON[type(node)]} {right})"


def _plain(node: exp.Expr) -> bool:
    return isinstance(node, exp.Column | exp.Literal)


def _operand(scope: Scope, node: exp.Expr, kind: ColumnType) -> str | None:
    if isinstance(node, exp.Column):
        return _column(scope, node)
    text = str(node.this)
    if node.args.get("is_string"):
        # A text literal of another type is not pushed down, because that would depend on how Postgres reads the text.
        return quoted_text(text) + "::text" if kind.name is TypeName.TEXT else None
    return text if text.isdigit() and text.isascii() else None


def _column(scope: Scope, node: exp.Expr) -> str | None:
    if not isinstance(node, exp.Column):
        return None
    try:
        column = scope.bind(node).column
    except Invalid:
        return None
    return None if column is None else quoted(column.name)
