"""Parse `WITH (name = value, ...)`: options by name with their positions, without duplicates or unknown names."""

from collections.abc import Collection, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from service.domain.adaptive import AUTO, Asked
from service.domain.errors import Invalid
from service.domain.parameters import parse_bool
from service.protocol.mutation import RATE_LIMIT_MAX
from service.sql.text.cursor import Cursor
from service.sql.text.tokens import Token, TokenKind, syntax_error

VNODE_COUNT_MAX: Final = 1 << 15
_PLAIN: Final = (TokenKind.NAME, TokenKind.QUOTED, TokenKind.NUMBER)


@dataclass(frozen=True, slots=True)
class Option:
    """The value of one option: its tokens, and its text as written."""

    name: str
    tokens: tuple[Token, ...]
    text: str
    place: int
    """The 1-based position of the name."""

    @property
    def position(self) -> int:
        """The 1-based position of the value."""
        return self.tokens[0].position

    def integer(self) -> int:
        """Return an integer, which may be written as a string. Raises Invalid."""
        text = "".join(token.value for token in self.tokens).strip()
        if not text.isascii() or not text.lstrip("-").isdigit() or len(text) > len("-9223372036854775807"):
            raise Invalid(f'option "{self.name}" takes an integer, not {self.text}', position=self.position)
        return int(text)

    def string(self) -> str:
        """Return a text, a word or a number. Raises Invalid."""
        first = self.tokens[0]
        if len(self.tokens) != 1 or not (first.is_text or first.kind in _PLAIN):
            raise Invalid(f'option "{self.name}" takes a text', position=self.position)
        return first.value

    @property
    def secret(self) -> str | None:
        """The name of the secret that is the value, as in `SECRET name`."""
        named = len(self.tokens) == 2 and self.tokens[1].kind in (TokenKind.NAME, TokenKind.QUOTED)
        return self.tokens[1].value if named and self.tokens[0].is_word("secret") else None

    def boolean(self) -> bool:
        """Return a boolean, which may be written as a string. Raises Invalid."""
        try:
            return parse_bool(self.name, "".join(token.value for token in self.tokens))
        except Invalid:
            raise Invalid(f'option "{self.name}" takes a boolean, not {self.text}', position=self.position) from None


def text_option(name: str, at: Token, text: str) -> Option:
    """Return an option that a clause, which begins `at` a token, stands for."""
    token = Token(TokenKind.STRING, "'", text, at.start, at.end)
    return Option(name, (token,), text, at.position)


def read_options(cursor: Cursor, *, known: Collection[str] | None) -> dict[str, Option]:
    """Read the options from the opening to the closing parenthesis; with `known` None, of any name. Raises Invalid, in
    RisingWave's words.
    """
    cursor.expect_symbol("(")
    options: dict[str, Option] = {}
    while True:
        option = _option(cursor)
        if option.name in options:
            raise Invalid(f"Duplicated option: {option.name}", position=option.place)
        options[option.name] = option
        if not cursor.accept_symbol(","):
            break
    cursor.expect_symbol(")")
    if known is not None and (unknown := [option for name, option in options.items() if name not in known]):
        raise unexpected_options(unknown)
    return options


@contextmanager
def discreet(cursor: Cursor) -> Generator[None]:
    """Parse a statement that may contain a secret. An error that would quote one of its strings gives the position
    only.
    """
    strings = [token.text for token in cursor.rest if token.kind is TokenKind.STRING]
    try:
        yield
    except Invalid as error:
        if any(text in error.message for text in strings):
            raise Invalid("syntax error", position=error.position) from None
        raise


def unexpected_options(options: Iterable[Option]) -> Invalid:
    """Return the refusal of options, in RisingWave's words."""
    names = {option.name: option.place for option in options}
    listed = ", ".join(f'"{name}"' for name in sorted(names))
    return Invalid(f"unexpected options in WITH clause: [{listed}]", position=min(names.values()))


def connector_of(tokens: Sequence[Token]) -> tuple[str, int] | None:
    """Return the value of the option `connector` in a statement, wherever that stands, with its position."""
    for name, equal, value in zip(tokens, tokens[1:], tokens[2:], strict=False):
        if name.value.lower() == "connector" and equal.is_symbol("=") and value.is_text:
            return value.value, value.position
    return None


def vnode_count(option: Option) -> int:
    """Return the vnode count of a table. Raises Invalid."""
    count = option.integer()
    if not 1 <= count <= VNODE_COUNT_MAX:
        raise Invalid(f"vnode_count is 1 to {VNODE_COUNT_MAX}", position=option.position)
    return count


def rate_limit(option: Option | None) -> Asked:
    """Return the requested limit, or None for no limit. Raises Invalid."""
    if option is None:
        return None
    if len(option.tokens) == 1 and option.tokens[0].value.strip().lower() == AUTO:
        return AUTO
    limit = option.integer()
    if limit > RATE_LIMIT_MAX:
        raise Invalid(f"{option.text} is out of range: at most {RATE_LIMIT_MAX}", position=option.position)
    return limit if limit >= 0 else None


def _option(cursor: Cursor) -> Option:
    place, name = cursor.token.position, _dotted_name(cursor)
    cursor.expect_symbol("=")
    tokens: list[Token] = []
    depth = 0
    while depth or not cursor.token.is_symbol(",", ")"):
        token = cursor.advance()
        if token.kind is TokenKind.END:
            raise syntax_error(token)
        depth += token.is_symbol("(") - token.is_symbol(")")
        tokens.append(token)
    if not tokens:
        raise syntax_error(cursor.token)
    return Option(name, tuple(tokens), cursor.text[tokens[0].start : tokens[-1].end], place)


def _dotted_name(cursor: Cursor) -> str:
    parts = [_word(cursor)]
    while cursor.accept_symbol("."):
        parts.append(_word(cursor))
    return ".".join(parts)


def _word(cursor: Cursor) -> str:
    token = cursor.token
    if token.kind not in (TokenKind.NAME, TokenKind.QUOTED, TokenKind.STRING):
        raise syntax_error(token)
    return cursor.advance().value
