"""Parse CREATE, ALTER and DROP SECRET, and keep secrets out of error messages."""

from collections.abc import Generator
from contextlib import contextmanager

from service.domain.errors import Invalid
from service.sql.statements.ast import AlterSecret, CreateSecret, DropSecret
from service.sql.text.cursor import Cursor
from service.sql.text.options import read_options
from service.sql.text.tokens import TokenKind, syntax_error

BACKEND = "meta"
"""The only backend for secrets: the meta store."""


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


def parse_create_secret(cursor: Cursor) -> CreateSecret:
    """Parse the rest of CREATE SECRET. Raises Invalid."""
    with discreet(cursor):
        if_not_exists = cursor.accept("if", "not", "exists")
        name = cursor.name()
        _backend(cursor)
        return CreateSecret(name, _value(cursor), if_not_exists)


def parse_alter_secret(cursor: Cursor) -> AlterSecret:
    """Parse the rest of ALTER SECRET. Raises Invalid."""
    with discreet(cursor):
        name = cursor.name()
        _backend(cursor)
        return AlterSecret(name, _value(cursor))


def parse_drop_secret(cursor: Cursor) -> DropSecret:
    """Parse the rest of DROP SECRET. Raises Invalid."""
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
