"""Which nodes of a query in Spark's SQL have the same meaning in tidefill, as sqlglot prints them for Postgres."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from sqlglot import exp

from service.sql.text.tree import given

INTEGERS: Final = frozenset({exp.DType.TINYINT, exp.DType.SMALLINT, exp.DType.INT, exp.DType.BIGINT})
_FLOATS: Final = frozenset({exp.DType.DOUBLE, exp.DType.FLOAT})
_TYPES: Final = _FLOATS | {exp.DType.DATE, exp.DType.TIMESTAMP, exp.DType.TIMESTAMPTZ, exp.DType.TIMESTAMPNTZ}
"""Types to which a cast means the same from any type that both languages cast."""
_PARTS_OF_DATES: Final = (exp.Year, exp.Month, exp.Day, exp.Extract)
RESULTS: Final[Mapping[type[exp.Expr], exp.DType]] = {
    **dict.fromkeys(_PARTS_OF_DATES, exp.DType.INT),
    exp.TimestampTrunc: exp.DType.TIMESTAMPTZ,
}
"""The types of functions in Spark that have another type here: their results are cast."""
_UNITS: Final = frozenset({"YEAR", "QUARTER", "MONTH", "WEEK", "DAY", "HOUR", "MINUTE", "SECOND"})
_PARTS: Final = frozenset({"YEAR", "QUARTER", "MONTH", "DAY"})

Check = Callable[..., str | None]
"""Takes a node of its class, and returns why it is refused, None if it is permitted."""


def _cast(node: exp.Cast) -> str | None:
    kind, value = node.to.this, node.this
    if kind in _TYPES or (kind is exp.DType.DECIMAL and node.to.expressions):
        return None
    if kind in INTEGERS and isinstance(value, (exp.Literal, exp.Count, *_PARTS_OF_DATES)):
        return None
    if kind is exp.DType.TEXT and isinstance(value, exp.Literal):
        return None
    if kind in INTEGERS:
        return "a cast to an integer cuts digits in Spark and rounds here: cast to DECIMAL(20, 0), which rounds in both"
    if kind is exp.DType.DECIMAL:
        return "DECIMAL needs a precision and a scale: DECIMAL(10, 0) is Spark's default"
    if kind is exp.DType.TEXT:
        return "a cast to STRING is not supported: numbers and times have other texts here"
    return f"a cast to {node.to.sql('databricks')} is not supported"


def _is_float(node: exp.Expr) -> bool:
    return isinstance(node, exp.Cast) and node.to.this in _FLOATS


def _division(node: exp.Div) -> str | None:
    if _is_float(node.this) or _is_float(node.expression):
        return None
    return "the result of / depends on types: cast one side to DOUBLE"


def _average(node: exp.Avg) -> str | None:
    return None if _is_float(node.this) else "the digits of an average depend on types: avg(CAST(x AS DOUBLE))"


def _round(node: exp.Round) -> str | None:
    if node.args.get("decimals") is not None:
        return None
    return "round of a float has other results here: give the digits, round(CAST(x AS DECIMAL(20, 6)), 2)"


def _substring(node: exp.Substring) -> str | None:
    start = node.args.get("start")
    counted = isinstance(start, exp.Literal) and not start.is_string and start.name.isdecimal() and int(start.name) > 0
    return None if counted else "substring begins at a literal position from 1 on: others mean something else here"


def _distinct(node: exp.Distinct) -> str | None:
    several = isinstance(node.parent, exp.Count) and len(node.expressions) > 1
    if several:
        return "count(DISTINCT ..) takes one column"
    return _only("on")(node)


def _join(node: exp.Join) -> str | None:
    if node.method:
        return f"{node.method} JOIN is not supported: write ON or USING"
    if node.kind in {"SEMI", "ANTI"}:
        select = node.parent
        last = isinstance(select, exp.Select) and select.args["joins"][-1] is node
        return None if last and node.args.get("on") else f"a {node.kind} JOIN is the last one and has ON: use EXISTS"
    return None if node.kind in {"", "INNER", "OUTER", "CROSS"} else f"{node.kind} JOIN is not supported"


def _literal(node: exp.Literal) -> str | None:
    if node.is_string or "e" not in node.name.lower():
        return None
    return f"{node.name} is a DOUBLE in Spark: write CAST({node.name} AS DOUBLE) with plain digits"


def _unit(node: exp.TimestampTrunc) -> str | None:
    unit = node.args.get("unit")
    return None if unit is not None and unit.name.upper() in _UNITS else "date_trunc takes a unit as a literal"


def _extracted(node: exp.Extract) -> str | None:
    return None if node.name.upper() in _PARTS else "extract takes YEAR, QUARTER, MONTH or DAY"


def _only(*refused: str) -> Check:
    """Return a check that refuses arguments of a node."""

    def check(node: exp.Expr) -> str | None:
        found = sorted(given(node).intersection(refused))
        return f"{found[0].strip('_').replace('_', ' ').upper()} is not supported here" if found else None

    return check


def _group(node: exp.Group) -> str | None:
    return None if given(node) <= {"expressions"} else "GROUP BY takes expressions, and no ALL, CUBE, ROLLUP or SETS"


def _row(node: exp.Tuple) -> str | None:
    return (
        None
        if isinstance(node.parent, exp.Values)
        else "a row in parentheses equals another one with NULLs in Spark only"
    )


def _values(node: exp.Values) -> str | None:
    alias = node.args.get("alias")
    named = isinstance(alias, exp.TableAlias) and alias.columns
    return None if named else "VALUES needs names for its columns: VALUES (1, 2) AS t(a, b)"


def _permitted(_node: exp.Expr) -> str | None:
    return None


_SAME: Final = (
    # Queries.
    *(exp.From, exp.Where, exp.Having, exp.Order, exp.Ordered, exp.Limit, exp.Offset, exp.With, exp.CTE),
    *(exp.Subquery, exp.Window, exp.WindowSpec, exp.Alias, exp.TableAlias, exp.Table),
    *(exp.Column, exp.Identifier, exp.Null, exp.Boolean, exp.Paren, exp.Var, exp.DataType, exp.DataTypeParam),
    # Operators.
    *(exp.Add, exp.Sub, exp.Mul, exp.Mod, exp.Neg, exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE, exp.Is),
    *(exp.And, exp.Or, exp.Not, exp.In, exp.Between, exp.Like, exp.NullSafeEQ, exp.DPipe, exp.Concat, exp.Exists),
    *(exp.Case, exp.If, exp.Coalesce, exp.Nullif, exp.Greatest, exp.Least),
    # Functions.
    *(exp.Count, exp.Sum, exp.Min, exp.Max, exp.Filter, exp.RowNumber, exp.Rank, exp.DenseRank, exp.Lag, exp.Lead),
    *(exp.FirstValue, exp.LastValue, exp.Abs, exp.Length, exp.Lower, exp.Upper, exp.TsOrDsToDate),
    *(exp.Year, exp.Month, exp.Day),
)
_CHECKS: Final[Mapping[type[exp.Expr], Check]] = MappingProxyType[type[exp.Expr], Check](
    {
        **dict.fromkeys(_SAME, _permitted),
        **dict.fromkeys((exp.Union, exp.Intersect, exp.Except), _only("by_name", "side", "kind", "on")),
        **dict.fromkeys((exp.Floor, exp.Ceil), _only("decimals", "to")),
        exp.Select: _only("kind", "hint", "into", "operation_modifiers"),
        exp.Star: _only("except_", "replace", "rename", "except"),
        exp.Trim: _only("collation", "position", "expression"),
        exp.Cast: _cast,
        exp.Div: _division,
        exp.Avg: _average,
        exp.Round: _round,
        exp.Substring: _substring,
        exp.Distinct: _distinct,
        exp.Join: _join,
        exp.Literal: _literal,
        exp.TimestampTrunc: _unit,
        exp.Extract: _extracted,
        exp.Group: _group,
        exp.Tuple: _row,
        exp.Values: _values,
    }
)
"""The check of each node that is permitted, by its class itself: a subclass may mean something else."""


def reason(node: exp.Expr) -> str | None:
    """Return why a node is refused, None if it has the same meaning in tidefill."""
    check = _CHECKS.get(type(node))
    if check is not None:
        return check(node)
    name = node.name if isinstance(node, exp.Anonymous) else type(node).__name__
    what = f"function {name.lower()}" if isinstance(node, exp.Func) else name
    return f"{what} has no translation with the same meaning"
