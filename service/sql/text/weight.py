"""Estimate the work of parsing a text from its tokens, in linear time.

sqlglot backtracks in two places. Where a bracket follows a name, it tries a type and then an expression, at each level
of nesting. It also tries each join with and without its condition. The time doubles with each level and with each JOIN.
The weight of a token is two to the power of the levels and JOINs before it, and the estimate is the sum of weights.
"""

from typing import Final

from service.domain.errors import Invalid
from service.sql.text.tokens import tokenize

SHORT: Final = 1_000
"""A text of this many characters is tokenized in less than a millisecond."""
LIGHT: Final = 2_000
"""A text of this weight takes some 20 milliseconds. A query of 100 tokens without nesting weighs 100."""


def is_light(text: str) -> bool:
    """Whether parsing or refusing a text takes at most some 20 milliseconds."""
    return len(text) <= SHORT and _weight(text) <= LIGHT


def _weight(text: str) -> int:
    try:
        tokens = tokenize(text)
    except Invalid:
        return 0  # The parser stops at the same character.
    depth = joins = weight = 0
    for token in tokens:
        depth += token.is_symbol("(", "[") - token.is_symbol(")", "]")
        joins += token.is_word("join")
        weight += 1 << max(depth + joins, 0)
    return weight
