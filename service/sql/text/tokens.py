"""Split a statement into tokens with their positions, by Postgres's lexical rules. The whole package reads these
tokens.

Comments nest and are dropped. Dollar quotes and doubled quotes are respected. Unquoted names are folded to lower case
(ASCII only, as in Postgres). Text whose meaning depends on a setting of Postgres (`U&"..."`) is refused.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from service.domain.errors import Invalid

NESTING_MAX: Final = 100
"""No handwritten statement nests deeper. The limit keeps recursive readers within Python's stack."""


class TokenKind(Enum):
    """The kind of a token."""

    NAME = auto()
    QUOTED = auto()
    STRING = auto()
    NUMBER = auto()
    PARAMETER = auto()
    SYMBOL = auto()
    END = auto()


@dataclass(frozen=True, slots=True)
class Token:
    """A token: `text` as written, `value` as meant (folded name, unquoted text). `start` and `end` are
    0-based offsets.
    """

    kind: TokenKind
    text: str
    value: str
    start: int
    end: int

    def is_word(self, *words: str) -> bool:
        """Whether the token is one of these unquoted words."""
        return self.kind is TokenKind.NAME and self.value in words

    def is_symbol(self, *symbols: str) -> bool:
        """Whether the token is one of these single characters."""
        return self.kind is TokenKind.SYMBOL and self.value in symbols

    @property
    def begins_query(self) -> bool:
        """Whether a query can begin with the token."""
        return self.is_symbol("(") or self.is_word(*QUERY_WORDS)

    @property
    def is_text(self) -> bool:
        """Whether the token is a string whose value is known: neither one with escapes nor a bit string."""
        return self.kind is TokenKind.STRING and self.text[0] in "'$"

    @property
    def position(self) -> int:
        """The 1-based position in the statement."""
        return self.start + 1


QUERY_WORDS: Final = ("select", "with", "values", "table")
"""The words that a query begins with."""
UNREADABLE: Final = re.compile("[\0\ud800-\udfff]")
"""Characters that are not text: zeros and lone surrogates."""

_LOWER: Final = {upper: upper + 32 for upper in range(ord("A"), ord("Z") + 1)}

_SCAN: Final = re.compile(
    r"""
      (?P<space>[ \t\r\n\f\v]+ | --[^\r\n]*)
    | (?P<comment>/\*)
    | (?P<escaped>[eE]'(?:[^'\\]++|\\.|'')*+')
    | (?P<special>[uU]&["'])
    | (?P<bits>[bBxXnN]'(?:[^']++|'')*+')
    | (?P<string>'(?:[^']++|'')*+')
    | (?P<quoted>"(?:[^"]++|"")*+")
    | (?P<dollar>\$(?P<tag>(?:[A-Za-z_\x80-\U0010ffff][A-Za-z0-9_\x80-\U0010ffff]*)?)\$)
    | (?P<parameter>\$[0-9]+)
    |
    (?P<number>(?:0[xX][0-9a-fA-F_]+|0[oO][0-7_]+|0[bB][01_]+|(?:[0-9][0-9_]*(?:\.[0-9_]*)?|\.[0-9][0-9_]*)(?:[eE][+-]?[0-9]+)?))
    | (?P<name>[A-Za-z_\x80-\U0010ffff][A-Za-z0-9_$\x80-\U0010ffff]*) | (?P<symbol>.) """,
    re.VERBOSE | re.DOTALL,
)
_KINDS: Final = {
    "escaped": TokenKind.STRING,
    "bits": TokenKind.STRING,
    "string": TokenKind.STRING,
    "quoted": TokenKind.QUOTED,
    "parameter": TokenKind.PARAMETER,
    "number": TokenKind.NUMBER,
    "name": TokenKind.NAME,
    "symbol": TokenKind.SYMBOL,
}
_WORD: Final = re.compile(r"[A-Za-z_\x80-\U0010ffff][A-Za-z0-9_\x80-\U0010ffff]*")
_COMMENT: Final = re.compile(r"/\*|\*/")


def fold(name: str) -> str:
    """Return an unquoted name as Postgres stores it."""
    return name.translate(_LOWER)


def tokenize(sql: str) -> tuple[Token, ...]:
    """Return the tokens of `sql`, with an END token last. Raises Invalid at a character that cannot be read."""
    if (bad := UNREADABLE.search(sql)) is not None:
        raise Invalid("the statement contains a character that is not text", position=bad.start() + 1)
    tokens = [*_tokens(sql), Token(TokenKind.END, "", "", len(sql), len(sql))]
    _check_nesting(tokens)
    return tuple(tokens)


def without_literals(sql: str) -> str:
    """Return a statement with `***` for the text of each string, and without comments. Raises Invalid."""
    shown, end = "", 0
    for token in tokenize(sql):
        gap = " " if token.start > end else ""
        shown += gap + ("'***'" if token.kind is TokenKind.STRING else token.text)
        end = token.end
    return shown.strip()


def needs_tokens(sql: str) -> bool:
    """Whether only its tokens tell which names are in a statement. A megabyte of them takes 2 s."""
    return '""' in sql or "$" in sql


def mentioned(sql: str) -> frozenset[str]:
    """Return a superset of the names in a statement, in which most entries are other words.

    This is faster than tokenizing a statement with thousands of values. Raises Invalid.
    """
    if needs_tokens(sql):
        return frozenset(token.value for token in tokenize(sql) if token.kind in {TokenKind.NAME, TokenKind.QUOTED})
    # Text between two quotes may be a name, because it is unknown which quote opens one.
    return frozenset(fold(word) for word in _WORD.findall(sql)).union(sql.split('"')[1:-1])


def syntax_error(token: Token) -> Invalid:
    """Return Postgres's error for an unexpected token."""
    if token.kind is TokenKind.END:
        return Invalid("syntax error at end of input", position=token.position)
    return Invalid(f'syntax error at or near "{token.text}"', position=token.position)


def _tokens(sql: str) -> Iterator[Token]:
    at = 0
    while at < len(sql):
        found = _SCAN.match(sql, at)
        assert found is not None
        kind, start = found.lastgroup or "", at
        if found["dollar"] is not None:
            end = _end_of_dollar(sql, found)
            yield Token(TokenKind.STRING, sql[start:end], sql[found.end() : end - len(found["dollar"])], start, end)
            at = end
        elif kind == "comment":
            at = _end_of_comment(sql, at)
        else:
            at = found.end()
            if kind == "number" and (junk := _WORD.match(sql, at)) is not None:
                text = found[0] + junk[0]
                raise Invalid(f'trailing junk after numeric literal at or near "{text}"', position=start + 1)
            if kind != "space":
                yield _token(kind, found[0], start)


def _token(kind: str, text: str, start: int) -> Token:
    if kind == "special":
        raise Invalid('U&"..." is not supported: write the characters themselves', position=start + 1)
    if kind == "symbol" and text in "'\"":
        raise Invalid(f"unterminated quoted {'string' if text == chr(39) else 'identifier'}", position=start + 1)
    if text == '""':
        raise Invalid("zero-length delimited identifier", position=start + 1)
    return Token(_KINDS[kind], text, _value(kind, text), start, start + len(text))


def _value(kind: str, text: str) -> str:
    match kind:
        case "name":
            return fold(text)
        case "quoted":
            return text[1:-1].replace('""', '"')
        case "string":
            return text[1:-1].replace("''", "'")
        case _:
            return text


def _end_of_comment(sql: str, start: int) -> int:
    depth, at = 0, start
    while found := _COMMENT.search(sql, at):
        depth, at = depth + (1 if found[0] == "/*" else -1), found.end()
        if depth == 0:
            return at
    raise Invalid("unterminated /* comment", position=start + 1)


def _end_of_dollar(sql: str, found: re.Match[str]) -> int:
    end = sql.find(found["dollar"], found.end())
    if end < 0:
        raise Invalid("unterminated dollar-quoted string", position=found.start() + 1)
    return end + len(found["dollar"])


def _check_nesting(tokens: list[Token]) -> None:
    depth = 0
    for token in tokens:
        depth += token.is_symbol("(", "[") - token.is_symbol(")", "]")
        if depth > NESTING_MAX:
            raise Invalid(f"the statement is nested more than {NESTING_MAX} deep", position=token.position)
