"""CREATE SOURCE: its options with their positions, and the statement without its password."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from service.domain.errors import Invalid
from service.domain.source import OPTIONS, PASSWORD, source_options
from service.protocol.quoting import quoted, quoted_text
from service.sql.statements.secrets import discreet
from service.sql.statements.statement import Parsers, Statement
from service.sql.text.cursor import RESERVED_WORDS, Cursor, checked_name
from service.sql.text.options import Option, read_options
from service.sql.text.tokens import TokenKind

HIDDEN = "'********'"
"""Shown in place of a password."""
_PLAIN = re.compile(r"[a-z_][a-z0-9_]*")


@dataclass(frozen=True, slots=True)
class CreateSource(Statement):
    """CREATE SOURCE.

    `options` are the given options except the password. The password is either the value of the secret named `secret`,
    or `password`. `text` is the statement without a plain password. `positions` are the positions of the options'
    values.
    """

    name: str
    options: Mapping[str, str]
    text: str
    secret: str | None = None
    password: str | None = field(default=None, repr=False)
    if_not_exists: bool = False
    positions: Mapping[str, int] = field(default_factory=dict[str, int])


def _create(cursor: Cursor) -> CreateSource:
    with discreet(cursor):
        if_not_exists = cursor.accept("if", "not", "exists")
        name = cursor.relation()
        cursor.expect("with")
        options = read_options(cursor, known=OPTIONS)
        cursor.expect_end()
        place = cursor.before.position
        if PASSWORD not in options:
            raise Invalid(f'option "{PASSWORD}" is missing', position=place)
        given = {one.name: one.string() for one in options.values() if one.name != PASSWORD}
        positions = {one.name: one.position for one in options.values()}
        try:
            source_options(given)
        except Invalid as error:
            raise Invalid(error.message, position=positions.get(error.pointer or "", place)) from None
        secret, password = _password(options[PASSWORD])
        text = _shown(cursor.text, options[PASSWORD], hidden=secret is None)
        return CreateSource(name, given, text, secret, password, if_not_exists, positions)


def source_statement(
    name: str, given: Mapping[str, str], *, password: str | None, secret: str | None, if_not_exists: bool = False
) -> CreateSource:
    """Return the statement that creates a source with these options. Raises Invalid, whose pointer is an option."""
    source_options(given)
    shown = ", ".join(f"{_name(option)} = {quoted_text(value)}" for option, value in sorted(given.items()))
    hidden = HIDDEN if secret is None else f"secret {_quoted(secret)}"
    text = f"CREATE SOURCE {_quoted(name)} WITH ({shown}, {PASSWORD} = {hidden})"
    return CreateSource(checked_name(name, None), dict(given), text, secret, password, if_not_exists)


def _name(option: str) -> str:
    return ".".join(_quoted(part) for part in option.split("."))


def _quoted(name: str) -> str:
    """Return a name as SQL needs it: in double quotes unless it is a plain word."""
    plain = _PLAIN.fullmatch(name) is not None and name not in RESERVED_WORDS
    return name if plain else quoted(name)


def _password(option: Option) -> tuple[str | None, str | None]:
    """Return the name of a secret, or a password. Raises Invalid."""
    first = option.tokens[0]
    if first.is_word("secret") and len(option.tokens) == 2 and option.tokens[1].kind in _NAMES:
        return option.tokens[1].value, None
    if len(option.tokens) != 1 or not first.is_text or not first.value:
        message = f'option "{PASSWORD}" takes a text that is not empty, or SECRET and a secret\'s name'
        raise Invalid(message, position=option.position)
    return None, first.value


def _shown(text: str, option: Option, *, hidden: bool) -> str:
    if not hidden:
        return text.strip()
    start, end = option.tokens[0].start, option.tokens[-1].end
    return (text[:start] + HIDDEN + text[end:]).strip()


_NAMES = (TokenKind.NAME, TokenKind.QUOTED)
PARSERS: Final[Parsers] = {("create", "source"): _create}
