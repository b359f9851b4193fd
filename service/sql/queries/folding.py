"""Refuse what Spark would compute while it plans: calls of constants.

Its optimizer computes them in the driver, where no job runs that could be cancelled: one view with ninety calls of
`translate` over a constant text kept the worker of all for minutes (I13). The state store computes them while it plans
as well, and there they end at their time's limit.
"""

from collections.abc import Iterator
from typing import Final

from sqlglot import exp

from service.domain.errors import Invalid
from service.sql.expressions.allowed import called_name

_PATTERNS: Final = (exp.Like, exp.ILike, exp.SimilarTo, exp.RegexpLike, exp.RegexpILike)
_HARMLESS: Final = (
    exp.Cast, exp.Case, exp.If, exp.And, exp.Or, exp.Xor, exp.Coalesce, exp.Nullif, exp.Array, exp.Extract,
    exp.Greatest, exp.Least, exp.Pow, exp.AggFunc,
)  # fmt: skip
CALLS_MAX: Final = 2
CHARACTERS_MAX: Final = 200
NUMBER_MAX: Final = 1_000
"""So many calls with so long literals take no time. The number may be how often a text is repeated."""


def check_folded(node: exp.Expr) -> None:
    """Raise Invalid if a node calls functions with nothing but constants, and they may take long."""
    if not _is_call(node):
        return
    parts = list(_parts(node))
    if any(isinstance(part, exp.Column) for part in parts):
        return
    literals = [part for part in parts if isinstance(part, exp.Literal)]
    calls = sum(map(_is_call, parts)) <= CALLS_MAX and not any(isinstance(part, _PATTERNS) for part in parts)
    texts = sum(len(str(one.this)) for one in literals) <= CHARACTERS_MAX
    if not (calls and texts and all(_is_small(one) for one in literals)):
        raise Invalid("only the state store computes long calls of constants: write their result instead")


def _parts(node: exp.Expr) -> Iterator[exp.Expr]:
    """Yield what a value is made of. Spark takes only the first value of a `coalesce` that begins with a constant."""
    yield node
    below = list(node.iter_expressions())
    is_coalesce = isinstance(node, exp.Coalesce) or (
        isinstance(node, exp.Anonymous) and called_name(node) == "coalesce"
    )
    for one in below[:1] if is_coalesce and below[0].find(exp.Column) is None else below:
        yield from _parts(one)


def _is_call(node: exp.Expr) -> bool:
    return isinstance(node, _PATTERNS) or (isinstance(node, exp.Func) and not isinstance(node, _HARMLESS))


def _is_small(literal: exp.Literal) -> bool:
    return bool(literal.is_string) or float(str(literal.this)) <= NUMBER_MAX
