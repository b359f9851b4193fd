"""Split a text into SQL statements, at semicolons outside of quotes, dollar quotes and comments.

Between statements a line may be a command: it begins with a backslash and ends with the line.
"""

import re
from collections.abc import Iterator
from typing import Final

_TOKEN: Final = re.compile(
    r"""
    '(?:[^']|'')*'            # a text
    | "(?:[^"]|"")*"          # a quoted name
    | \$(?P<tag>\w*)\$.*?\$(?P=tag)\$
    | --[^\n]*
    | /\*.*?\*/
    | (?P<end>;)
    | (?P<command>\\[^\n]*)    # where no statement has begun
    | .
    """,
    re.VERBOSE | re.DOTALL,
)


def split(text: str) -> Iterator[str]:
    """Yield each statement without its semicolon. The last one may have none. Empty statements are skipped."""
    start = 0
    for token in _TOKEN.finditer(text):
        if token["end"]:
            yield from _said(text[start : token.start()])
            start = token.end()
        elif token["command"] and not any(_said(text[start : token.start()])):
            yield token["command"].strip().rstrip(";").strip()
            start = token.end()
    yield from _said(text[start:])


def is_complete(text: str) -> bool:
    """Whether the text ends with a semicolon that ends a statement."""
    last = None
    for token in _TOKEN.finditer(text):
        if not token[0].isspace() and not token[0].startswith(("--", "/*")):
            last = token
    return last is not None and bool(last["end"])


def _said(piece: str) -> Iterator[str]:
    if any(not token[0].isspace() and not token[0].startswith(("--", "/*")) for token in _TOKEN.finditer(piece)):
        yield piece.strip()
