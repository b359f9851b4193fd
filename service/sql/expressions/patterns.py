"""Print LIKE and ILIKE in Spark SQL, at a cost of at most the length of the text times that of the pattern.

In Spark's own LIKE each `%` is a `.*` of a Java regex, and they backtrack into each other. A row of 60 characters can
take it hours, for which everybody waits (I13). Yet the first place where the part behind a `%` fits is always as good
as any later one. So here each part is an atomic group, which gives up no place that it has found.
"""

import re
from typing import Final

from service.domain.errors import Invalid
from service.sql.expressions.typed import TEXT, Typed, coerced, quoted

WILDCARDS_MAX: Final = 1000
"""Java's regexes recurse for each. At several times as many the stack of a task overflows."""
_TOO_MANY: Final = f"a LIKE pattern of more than {WILDCARDS_MAX} wildcards and escapes is not supported in a view"
_ENDS: Final = "LIKE pattern must not end with escape character"
_SPARKS: Final = re.compile(r"(?s:(\\.|[^%\\])*+%?(\\.|[^%\\])*+|%+[^%_\\]+%+)")
"""The patterns that Spark's LIKE matches without a second `.*`. Most of them become no regex at all."""

# The literals are quoted, each escaped character alone: an unquoted `%` or `_` never stands behind `\Q`.
_LITERALS: Final = (r"(?s)\\(.)|([^%_\\]+)", r"\\Q$1$2\\E")
_ONE: Final = (r"(?<!\\Q)_", ".")
_ANY: Final = (r"(?<!\\Q)%+", ")(?>.*?")
_FIRST, _LAST, _ESCAPE, _SPECIAL = (quoted(part) for part in (r"(?s)\A(?>", r"\z)", "\\", "%_\\"))


def like(value: Typed, pattern: Typed, escape: str, *, folded: bool) -> str:
    """Return `value LIKE pattern ESCAPE escape`, ILIKE if `folded`, in Spark SQL. Raises Invalid."""
    text = coerced(value, TEXT).sql
    if pattern.type is not None or pattern.literal is None:
        if escape != "\\":
            raise Invalid("ESCAPE takes a literal pattern in a view")
        return _checked(text, coerced(pattern, TEXT).sql, folded=folded)
    literal = _escaped(pattern.literal, escape)
    shown = quoted(literal)
    if sum(map(literal.count, "%_\\")) > WILDCARDS_MAX:
        raise Invalid(_TOO_MANY)
    if _SPARKS.fullmatch(literal):
        return f"({text} {'ilike' if folded else 'like'} {shown})"
    return _matched(text, shown, folded=folded)


def _checked(text: str, pattern: str, *, folded: bool) -> str:
    """Return a match of a pattern that each row has of its own. Spark checks it, for a text that is not NULL."""
    wildcards = f"char_length({pattern}) - char_length(translate({pattern}, {_SPECIAL}, ''))"
    return (
        f"(case when {text} is null then null when {wildcards} > {WILDCARDS_MAX} then raise_error('{_TOO_MANY}')"
        f" when right({_replaced(pattern, _LITERALS)}, 1) = {_ESCAPE} then raise_error('{_ENDS}')"
        f" else {_matched(text, pattern, folded=folded)} end)"
    )


def _matched(text: str, pattern: str, *, folded: bool) -> str:
    if folded:
        text, pattern = f"lower({text})", f"lower({pattern})"
    for step in (_LITERALS, _ONE, _ANY):
        pattern = _replaced(pattern, step)
    return f"({text} rlike concat({_FIRST}, {pattern}, {_LAST}))"


def _replaced(text: str, step: tuple[str, str]) -> str:
    regex, replacement = (quoted(part) for part in step)
    return f"regexp_replace({text}, {regex}, {replacement})"


def _escaped(literal: str, escape: str) -> str:
    """Return the pattern with a backslash for its escape, and only where one is needed: Spark refuses others."""
    shown, characters = "", iter(literal)
    for character in characters:
        if escape and character == escape:
            following = next(characters, None)
            if following is None:
                raise Invalid(_ENDS)
            shown += "\\" + following if following in "%_\\" else following
        else:
            shown += "\\\\" if character == "\\" else character
    return shown
