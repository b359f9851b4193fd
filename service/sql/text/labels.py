"""Name the columns of a query as Postgres does."""

from collections.abc import Mapping
from typing import Final

from sqlglot import exp

from service.sql.text.tokens import fold
from service.sql.text.tree import identifier


def label(node: exp.Expr) -> str | None:
    """Return the name that Postgres gives an expression without an alias, or None for `?column?`."""
    match node:
        case exp.Paren() | exp.Bracket() | exp.Filter() | exp.Window() | exp.WithinGroup():
            return label(node.this)
        case exp.Column():
            return identifier(node.this)
        case exp.Anonymous():
            return identifier(node.this) if isinstance(node.this, exp.Identifier) else fold(str(node.this))
        case exp.Cast():
            return label(node.this) or _TYPE_LABELS.get(str(node.args["to"].this.value).lower())
        case exp.Case():
            otherwise = node.args.get("default")
            return (otherwise is not None and label(otherwise)) or "case"
        case exp.Subquery() if isinstance(node.this, exp.Select) and node.this.expressions:
            first = node.this.expressions[0]
            return identifier(first.args["alias"]) if isinstance(first, exp.Alias) else label(first)
        case _:
            return _LABELS.get(type(node))


_LABELS: Final[Mapping[type[exp.Expr], str]] = {
    exp.Array: "array",
    exp.AtTimeZone: "timezone",
    exp.Boolean: "bool",
    exp.Exists: "exists",
    exp.Extract: "extract",
    exp.StrPosition: "position",
    exp.Overlay: "overlay",
    exp.Substring: "substring",
    exp.Trim: "btrim",
}
_TYPE_LABELS: Final[Mapping[str, str]] = {
    "bigint": "int8",
    "boolean": "bool",
    "date": "date",
    "decimal": "numeric",
    "double": "float8",
    "float": "float4",
    "int": "int4",
    "smallint": "int2",
    "text": "text",
    "timestamp": "timestamp",
    "timestamptz": "timestamptz",
    "varbinary": "bytea",
    "varchar": "varchar",
}
