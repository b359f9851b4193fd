"""Refuse what Spark would compute while it plans: calls of constants.

Its optimizer computes them in the driver, where no job runs that could be cancelled: one view with ninety calls of
`translate` over a constant text kept the worker of all for minutes (I13). The state store computes them while it plans
as well, and there they end at their time's limit.
"""

from collections.abc import Iterator
from math import prod
from typing import Final

from sqlglot import exp

from service.domain.errors import Invalid
from service.sql.expressions.allowed import called_name

_HARMLESS: Final = (exp.Cast, exp.Case, exp.If, exp.And, exp.Or, exp.Array, exp.Extract, exp.Pow)
CALLS_MAX: Final = 2
CHARACTERS_MAX: Final = 200
PATTERN_MAX: Final = 30
NUMBERS_MAX: Final = 200_000
"""So many calls with so long literals take no time, nor does a pattern with its text. The product of all numbers may be
how often a text is repeated.
"""


def check_folded(node: exp.Expr) -> None:
    """Raise Invalid if a node calls functions with nothing but constants, and they may take long."""
    if not _is_call(node):
        return
    parts: list[exp.Expr] = []
    for part in _parts(node):
        if isinstance(part, exp.Column):
            return
        parts.append(part)
    literals = [part for part in parts if isinstance(part, exp.Literal)]
    most = PATTERN_MAX if any(isinstance(part, exp.Like) for part in parts) else CHARACTERS_MAX
    texts = sum(len(str(one.this)) for one in literals if one.is_string)
    numbers = prod(max(float(str(one.this)), 1.0) for one in literals if not one.is_string)
    if sum(map(_is_call, parts)) > CALLS_MAX or texts > most or numbers > NUMBERS_MAX:
        raise Invalid("only the state store computes long calls of constants: write their result instead")


def _parts(node: exp.Expr) -> Iterator[exp.Expr]:
    """Yield what a value is made of. Spark takes only the first value of a `coalesce` that begins with a constant."""
    yield node
    below = list(node.iter_expressions())
    is_coalesce = isinstance(node, exp.Anonymous) and called_name(node) == "coalesce"
    for one in below[:1] if is_coalesce and below[0].find(exp.Column) is None else below:
        yield from _parts(one)


def _is_call(node: exp.Expr) -> bool:
    return isinstance(node, exp.Like) or (isinstance(node, exp.Func) and not isinstance(node, _HARMLESS))
