"""CREATE SOURCE, and the secrets of users. Neither a secret nor a password is shown, not even in an error message."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from service.domain.connectors import check_secrets
from service.domain.errors import Invalid
from service.domain.source import CONNECTOR, OPTIONS, PASSWORD, source_options, unsupported
from service.protocol.quoting import quoted, quoted_text
from service.sql.statements.lake import CreateLakeSource, is_in_place, parse_lake_source
from service.sql.statements.statement import Parsers, Statement
from service.sql.statements.target import Target
from service.sql.text.cursor import RESERVED_WORDS, Cursor, checked_name
from service.sql.text.options import Option, connector_of, discreet, read_options
from service.sql.text.tokens import syntax_error

HIDDEN = "'********'"
"""Shown in place of a password."""
BACKEND = "meta"
"""The only backend for secrets: the meta store."""
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


@dataclass(frozen=True, slots=True)
class CreateSecret(Statement):
    """CREATE SECRET."""

    name: str
    value: str = field(repr=False)
    if_not_exists: bool = False


@dataclass(frozen=True, slots=True)
class AlterSecret(Statement):
    """ALTER SECRET, which replaces the secret's value."""

    name: str
    value: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class DropSecret(Statement):
    """DROP SECRET."""

    name: str
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class ShowSecrets(Statement):
    """SHOW SECRETS, the names of the secrets."""


def _create(cursor: Cursor) -> CreateSource | CreateLakeSource:
    with discreet(cursor):
        if is_in_place(cursor.rest):
            return parse_lake_source(cursor)
        # The rest of the statement is that of another connector, and would be refused for reasons that mislead.
        named = connector_of(cursor.rest)
        if named is not None and named[0] != CONNECTOR:
            raise Invalid(unsupported(named[0]), position=named[1])
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
    shown = _options(given)
    hidden = HIDDEN if secret is None else f"secret {_quoted(secret)}"
    text = f"CREATE SOURCE {_quoted(name)} WITH ({shown}, {PASSWORD} = {hidden})"
    return CreateSource(checked_name(name, None), dict(given), text, secret, password, if_not_exists)


def lake_source_statement(
    name: str, given: Mapping[str, str], secrets: Mapping[str, str], *, if_not_exists: bool = False
) -> CreateLakeSource:
    """Return the statement that creates a place in a lake. Raises Invalid, whose pointer is an option."""
    check_secrets(given, secrets)
    shown = [_options(given), *(f"{_name(option)} = secret {_quoted(one)}" for option, one in sorted(secrets.items()))]
    text = f"CREATE SOURCE {_quoted(name)} WITH ({', '.join(shown)})"
    return CreateLakeSource(checked_name(name, None), Target(dict(given), dict(secrets)), text, if_not_exists)


def _options(given: Mapping[str, str]) -> str:
    return ", ".join(f"{_name(option)} = {quoted_text(value)}" for option, value in sorted(given.items()))


def _name(option: str) -> str:
    return ".".join(_quoted(part) for part in option.split("."))


def _quoted(name: str) -> str:
    """Return a name as SQL needs it: in double quotes unless it is a plain word."""
    plain = _PLAIN.fullmatch(name) is not None and name not in RESERVED_WORDS
    return name if plain else quoted(name)


def _password(option: Option) -> tuple[str | None, str | None]:
    """Return the name of a secret, or a password. Raises Invalid."""
    first = option.tokens[0]
    if option.secret is not None:
        return option.secret, None
    if len(option.tokens) != 1 or not first.is_text or not first.value:
        message = f'option "{PASSWORD}" takes a text that is not empty, or SECRET and a secret\'s name'
        raise Invalid(message, position=option.position)
    return None, first.value


def _shown(text: str, option: Option, *, hidden: bool) -> str:
    if not hidden:
        return text.strip()
    start, end = option.tokens[0].start, option.tokens[-1].end
    return (text[:start] + HIDDEN + text[end:]).strip()


def _create_secret(cursor: Cursor) -> CreateSecret:
    with discreet(cursor):
        if_not_exists = cursor.accept("if", "not", "exists")
        name = cursor.name()
        _backend(cursor)
        return CreateSecret(name, _secret_value(cursor), if_not_exists)


def _alter_secret(cursor: Cursor) -> AlterSecret:
    with discreet(cursor):
        name = cursor.name()
        _backend(cursor)
        return AlterSecret(name, _secret_value(cursor))


def _drop_secret(cursor: Cursor) -> DropSecret:
    if_exists = cursor.accept("if", "exists")
    name = cursor.name()
    cursor.expect_end()
    return DropSecret(name, if_exists)


def _backend(cursor: Cursor) -> None:
    if not cursor.accept("with"):
        return
    options = read_options(cursor, known=frozenset({"backend"}))
    given = options["backend"]
    if given.string() != BACKEND:
        raise Invalid(f"secrets are kept by backend '{BACKEND}' alone", position=given.position)


def _secret_value(cursor: Cursor) -> str:
    cursor.expect("as")
    token = cursor.advance()
    if not token.is_text:
        raise syntax_error(token)
    cursor.expect_end()
    if not token.value:
        raise Invalid("a secret is not empty", position=token.position)
    return token.value


PARSERS: Final[Parsers] = {
    ("create", "source"): _create,
    ("create", "secret"): _create_secret,
    ("alter", "secret"): _alter_secret,
    ("drop", "secret"): _drop_secret,
    ("show", "secrets"): ShowSecrets(),
}
