"""How much work parsing a text may be, estimated from its tokens in linear time.

sqlglot tries a type and then an expression where a name is followed by a bracket, at each level of nesting, and a join
with and without its condition: the time doubles with each level and with each JOIN. The estimate is the sum over the
tokens of two to the power of these.
"""

from typing import Final

from service.domain.errors import Invalid
from service.sql.tokens import tokenize

SHORT: Final = 1_000
"""Characters whose tokens are read in less than a millisecond."""
LIGHT: Final = 2_000
"""Weight that takes some 20 milliseconds; a hand-written query of 100 tokens without nesting weighs 100."""


def is_light(text: str) -> bool:
    """Whether a text, or its refusal, takes a few milliseconds."""
    return len(text) <= SHORT and _weight(text) <= LIGHT


def _weight(text: str) -> int:
    try:
        tokens = tokenize(text)
    except Invalid:
        return 0  # the parser reads no further either
    depth = joins = weight = 0
    for token in tokens:
        depth += token.is_symbol("(", "[") - token.is_symbol(")", "]")
        joins += token.is_word("join")
        weight += 1 << max(depth + joins, 0)
    return weight
