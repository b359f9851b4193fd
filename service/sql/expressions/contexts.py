"""Refuse a value in a place of an expression where Spark could not compute with it."""

from typing import Final

from sqlglot import exp

from service.domain.errors import Invalid
from service.sql.expressions.typed import Typed

SQL_MAX: Final = 2 << 20
"""Many templates repeat their arguments: `replace` within `replace` is five times as long with each level."""


def check_context(value: Typed, node: exp.Expr) -> None:
    """Raise Invalid for a literal interval or an unbounded numeric in an expression that cannot take it, and for an
    expression that has become too long.
    """
    if len(value.sql) > SQL_MAX and not isinstance(node, exp.Literal):
        raise Invalid(
            f"an expression that takes Spark more than {SQL_MAX >> 20} MiB of SQL is not supported in a view:"
            " make a part of it a column of a materialized view, and read that",
        )
    if value.span is not None and not _takes_span(node.parent):
        raise Invalid("an interval is supported in a view as something to add or subtract")
    if value.type is not None and value.type.unbounded and not passed_on(node):
        raise Invalid(
            f"a value of type {value.type} can only be passed on in a view over one relation, because Spark has no"
            " decimal without a precision: cast it in the query that makes it, as in sum(x)::numeric(38, 2)",
        )


def passed_on(node: exp.Expr) -> bool:
    """Whether an expression stands as a column of a SELECT, or compared with NULL."""
    parent = node.parent
    is_null = isinstance(parent, exp.Is) and isinstance(parent.args.get("expression"), exp.Null)
    return is_null or isinstance(parent, exp.Select | exp.Alias | exp.Paren)


def _takes_span(node: exp.Expr | None) -> bool:
    bins = isinstance(node, exp.Anonymous) and str(node.this).lower() == "date_bin"
    return bins or isinstance(node, exp.Add | exp.Sub | exp.Neg | exp.Paren)
