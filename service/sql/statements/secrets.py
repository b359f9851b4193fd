"""Statements about secrets, which are kept out of error messages."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from service.domain.errors import Invalid
from service.sql.statements.statement import Parsers, Statement
from service.sql.text.cursor import Cursor
from service.sql.text.options import read_options
from service.sql.text.tokens import TokenKind, syntax_error

BACKEND = "meta"
"""The only backend for secrets: the meta store."""


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


def _create(cursor: Cursor) -> CreateSecret:
    with discreet(cursor):
        if_not_exists = cursor.accept("if", "not", "exists")
        name = cursor.name()
        _backend(cursor)
        return CreateSecret(name, _value(cursor), if_not_exists)


def _alter(cursor: Cursor) -> AlterSecret:
    with discreet(cursor):
        name = cursor.name()
        _backend(cursor)
        return AlterSecret(name, _value(cursor))


def _drop(cursor: Cursor) -> DropSecret:
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


def _value(cursor: Cursor) -> str:
    cursor.expect("as")
    token = cursor.advance()
    if not token.is_text:
        raise syntax_error(token)
    cursor.expect_end()
    if not token.value:
        raise Invalid("a secret is not empty", position=token.position)
    return token.value


PARSERS: Final[Parsers] = {
    ("create", "secret"): _create,
    ("alter", "secret"): _alter,
    ("drop", "secret"): _drop,
    ("show", "secrets"): ShowSecrets(),
}
