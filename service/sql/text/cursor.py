"""Read a statement's tokens from left to right, for the hand-written parsers."""

from collections.abc import Sequence
from itertools import takewhile
from typing import Final

from service.domain.errors import Invalid
from service.protocol.relation import why_reserved
from service.sql.text.tokens import Token, TokenKind, syntax_error

NAME_BYTES_MAX: Final = 63
"""Postgres truncates longer names, so two of them could become one."""

SCHEMA: Final = "public"

# Postgres's reserved words. As names they have to be quoted.
RESERVED_WORDS: Final = frozenset(
    """all analyse analyze and any array as asc asymmetric both case cast check collate column constraint create
    current_catalog current_date current_role current_time current_timestamp current_user default deferrable desc
    distinct do else end except false fetch for foreign from grant group having in initially intersect into lateral
    leading limit localtime localtimestamp not null offset on only or order placing primary references returning
    select session_user some symmetric system_user table then to trailing true union unique user using variadic
    when where window with""".split()  # noqa: SIM905 - a list of words reads best as words
)


class Cursor:
    """A position in a statement's tokens. `text` is the whole statement, to which the offsets of tokens refer."""

    def __init__(self, text: str, tokens: Sequence[Token]) -> None:
        assert tokens[-1].kind is TokenKind.END
        self.text, self._tokens, self._at = text, tokens, 0

    @property
    def token(self) -> Token:
        """The token to read next."""
        return self._tokens[self._at]

    @property
    def before(self) -> Token:
        """The token that was read last."""
        return self._tokens[max(self._at - 1, 0)]

    @property
    def rest(self) -> Sequence[Token]:
        """The tokens that are not read yet, the END included."""
        return self._tokens[self._at :]

    def words(self, count: int) -> tuple[str, ...]:
        """The plain words that come next, at most `count`."""
        ahead = takewhile(lambda token: token.kind is TokenKind.NAME, self._tokens[self._at : self._at + count])
        return tuple(token.value for token in ahead)

    def advance(self) -> Token:
        """Read one token. The cursor stays at the END."""
        token = self.token
        if token.kind is not TokenKind.END:
            self._at += 1
        return token

    def accept(self, *words: str) -> bool:
        """Read these words if all of them come next; otherwise read nothing."""
        ahead = self._tokens[self._at : self._at + len(words)]
        found = len(ahead) == len(words) and all(token.is_word(word) for token, word in zip(ahead, words, strict=True))
        self._at += len(words) if found else 0
        return found

    def accept_symbol(self, symbol: str) -> bool:
        """Read this character if it comes next."""
        found = self.token.is_symbol(symbol)
        self._at += found
        return found

    def expect(self, *words: str) -> None:
        """Read these words. Raises Invalid at the first other token."""
        for word in words:
            if not self.accept(word):
                raise syntax_error(self.token)

    def expect_symbol(self, symbol: str) -> Token:
        """Read this character and return its token. Raises Invalid at another token."""
        if not self.accept_symbol(symbol):
            raise syntax_error(self.token)
        return self.before

    def expect_end(self) -> None:
        """Raise Invalid unless every token is read."""
        if self.token.kind is not TokenKind.END:
            raise syntax_error(self.token)

    def unsupported(self, command: str) -> Invalid:
        """Return the error for a kind of relation that a command does not know."""
        if self.token.is_word("materialized"):
            self.expect("materialized", "view")
        if self.token.kind is not TokenKind.NAME:
            return syntax_error(self.token)
        return Invalid(f"{command} {self.token.text.upper()} is not supported", position=self.token.position)

    def name(self) -> str:
        """Read one name. Raises Invalid."""
        token = self.token
        if token.kind is not TokenKind.QUOTED and (token.kind is not TokenKind.NAME or token.value in RESERVED_WORDS):
            raise syntax_error(token)
        self.advance()
        return checked_name(token.value, token.position)

    def relation(self) -> str:
        """Read the name of a relation, which may be qualified with `public`. Raises Invalid."""
        first, place = self.name(), self.before.position
        if not self.accept_symbol("."):
            return first
        if first != SCHEMA:
            raise Invalid(f'schema "{first}" does not exist: relations live in "{SCHEMA}"', position=place)
        return self.name()

    def integer(self, *, maximum: int) -> int:
        """Read an integer, which may be negative. Raises Invalid."""
        place, negative = self.token.position, self.accept_symbol("-")
        token = self.token
        if token.kind is not TokenKind.NUMBER:
            raise syntax_error(token)
        self.advance()
        if not token.text.isascii() or not token.text.isdigit():
            raise Invalid(f"{token.text} is not a whole number", position=token.position)
        # A longer number cannot be in range, and parsing it would take time quadratic in its length.
        value = int(token.text) if len(token.text) <= len(str(maximum)) + 20 else maximum + 1
        if value > maximum:
            raise Invalid(f"{token.text[:40]} is out of range: at most {maximum}", position=place)
        return -value if negative else value


def checked_name(name: str, position: int | None) -> str:
    """Return `name` if Postgres would not truncate it. Raises Invalid."""
    if len(name.encode()) > NAME_BYTES_MAX:
        raise Invalid(f'identifier "{name[:20]}..." is longer than {NAME_BYTES_MAX} bytes', position=position)
    return name


def column_list(cursor: Cursor) -> tuple[str, ...]:
    """Read the names in parentheses behind a view's name. Empty if there are none."""
    names: list[str] = []
    if not cursor.accept_symbol("("):
        return ()
    while not names or cursor.accept_symbol(","):
        place = cursor.token.position
        names.append(checked_column(cursor.name(), place))
        if names[-1] in names[:-1]:
            raise Invalid(f'column "{names[-1]}" specified more than once', position=place)
    cursor.expect_symbol(")")
    return tuple(names)


def checked_column(name: str, position: int | None) -> str:
    """Return `name` if a user may give it to a column. Raises Invalid."""
    if reason := why_reserved(name):
        raise Invalid(reason, position=position)
    return checked_name(name, position)
