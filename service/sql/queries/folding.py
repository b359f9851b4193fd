"""Refuse what Spark would compute while it plans: calls of constants.

Its optimizer computes them in the driver, where no job runs that could be cancelled: one view with ninety calls of
`translate` over a constant text kept the worker of all for minutes (I13). The state store computes them while it plans
as well, and there they end at their time's limit.
"""

from typing import Final

from sqlglot import exp

from service.domain.errors import Invalid
from service.sql.expressions.allowed import called_name

_PATTERNS: Final = (exp.Like, exp.ILike, exp.SimilarTo, exp.RegexpLike, exp.RegexpILike)
_HARMLESS: Final = (
    exp.Cast, exp.Case, exp.If, exp.And, exp.Or, exp.Xor, exp.Coalesce, exp.Nullif, exp.Array, exp.Extract,
    exp.Greatest, exp.Least, exp.Pow, exp.AggFunc,
)  # fmt: skip
_LINEAR: Final = frozenset(
    (
        "abs", "ceil", "ceiling", "char_length", "concat", "coalesce", "date_part", "date_trunc", "exp", "floor",
        "greatest", "least", "length", "ln", "lower", "make_date", "make_timestamp", "mod", "nullif", "octet_length",
        "pi", "power", "round", "sign", "sqrt", "trunc", "upper",
    )
)  # fmt: skip
"""Functions that take no longer than their arguments are long, and whose results are no longer than these."""


def check_folded(node: exp.Expr) -> None:
    """Raise Invalid if a node calls a function with nothing but constants, and that may take long."""
    if not _may_take_long(node):
        return
    for part in node.walk(prune=lambda one: one is not node and _may_take_long(one)):
        if isinstance(part, exp.Column) or (part is not node and _may_take_long(part)):
            # An inner call is checked by itself.
            return
    raise Invalid("only the state store computes a call of constants, once for all rows: write its result instead")


def _may_take_long(node: exp.Expr) -> bool:
    if isinstance(node, exp.Anonymous):
        return called_name(node) not in _LINEAR
    return isinstance(node, _PATTERNS) or (isinstance(node, exp.Func) and not isinstance(node, _HARMLESS))
