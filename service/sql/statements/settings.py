"""SET and SHOW of session variables, ALTER SYSTEM and SHOW PARAMETERS."""

from dataclasses import dataclass
from typing import Final

from service.domain.errors import Invalid
from service.sql.statements.statement import Parsers, Statement
from service.sql.text.cursor import Cursor
from service.sql.text.tokens import TokenKind, syntax_error


@dataclass(frozen=True, slots=True)
class SetVariable(Statement):
    """SET of a session variable. The value is its text, `default` for DEFAULT."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class ShowVariable(Statement):
    """SHOW of a session variable, or of all of them (None)."""

    name: str | None


@dataclass(frozen=True, slots=True)
class AlterSystem(Statement):
    """ALTER SYSTEM SET. The value is its text."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class ShowParameters(Statement):
    """SHOW PARAMETERS, the system parameters."""


def _set(cursor: Cursor) -> SetVariable:
    if cursor.token.is_word("local", "transaction", "constraints", "role"):
        raise Invalid(f"SET {cursor.token.text.upper()} is not supported", position=cursor.token.position)
    cursor.accept("session")
    if cursor.accept("time", "zone"):
        return SetVariable("timezone", _value(cursor))
    name = _variable(cursor)
    return SetVariable(name, _assigned(cursor))


def _show(cursor: Cursor) -> ShowVariable:
    name = _variable(cursor)
    cursor.expect_end()
    return ShowVariable(name)


def _alter_system(cursor: Cursor) -> AlterSystem:
    cursor.expect("set")
    name = _variable(cursor)
    return AlterSystem(name, _assigned(cursor))


def _variable(cursor: Cursor) -> str:
    # Postgres ignores the case of parameter names, even of quoted ones.
    return cursor.name().lower()


def _assigned(cursor: Cursor) -> str:
    if not cursor.accept("to"):
        cursor.expect_symbol("=")
    return _value(cursor)


def _value(cursor: Cursor) -> str:
    token = cursor.token
    sign = "-" if cursor.accept_symbol("-") else ""
    token = cursor.advance()
    kinds = (TokenKind.NUMBER,) if sign else (TokenKind.NAME, TokenKind.QUOTED, TokenKind.STRING, TokenKind.NUMBER)
    if token.kind not in kinds:
        raise syntax_error(token)
    cursor.expect_end()
    return sign + token.value


PARSERS: Final[Parsers] = {
    ("set",): _set,
    ("show",): _show,
    ("show", "all"): ShowVariable(None),
    ("show", "time", "zone"): ShowVariable("timezone"),
    ("alter", "system"): _alter_system,
    ("show", "parameters"): ShowParameters(),
}
