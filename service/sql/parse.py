"""Parse the text of one statement to one value. This package reads commands; `tree` and `select` read queries.

A known but unsupported statement is refused by name, any other text with Postgres's `syntax error at or near`. Parsing
reads no catalog, so a parsed statement may name relations that do not exist.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from service.domain.errors import Invalid
from service.sql.dml.bind import parse_constants, parse_delete, parse_insert, parse_update
from service.sql.statements.ast import CreateMaterializedView, Explain, ExplainBackfill, Flush, Recover, Statement
from service.sql.statements.commands import (
    parse_alter,
    parse_cancel,
    parse_describe,
    parse_drop,
    parse_set,
    parse_show,
    parse_wait,
)
from service.sql.statements.logical import parse_create_logical_view
from service.sql.statements.secrets import parse_create_secret
from service.sql.statements.select import parse_select
from service.sql.statements.sources import parse_create_source
from service.sql.statements.tables import parse_create_table
from service.sql.text.cursor import Cursor
from service.sql.text.tokens import Token, TokenKind, syntax_error, tokenize
from service.sql.views.bind import parse_create_view

_NOT_SUPPORTED: Final = frozenset(
    """abort analyze begin call checkpoint close cluster comment commit copy deallocate declare discard do end execute
    fetch grant import kill listen load lock merge move notify prepare reassign refresh reindex release reset revoke
    rollback savepoint security start truncate unlisten use vacuum""".split()  # noqa: SIM905 - best read as words
)


def parse(sql: str) -> Statement:
    """Return the one statement in `sql`. Raises Invalid with the position of the error."""
    return parse_constants(sql) or _parse(sql)


def _parse(sql: str) -> Statement:
    tokens = _one_statement(tokenize(sql))
    try:
        return _statement(Cursor(sql, tokens))
    except RecursionError:
        raise Invalid("the statement is nested too deeply", position=tokens[0].position) from None


def _one_statement(tokens: tuple[Token, ...]) -> tuple[Token, ...]:
    """Return the tokens of the only statement, followed by an END. Raises Invalid if there is none or more than one."""
    while tokens[0].is_symbol(";"):
        tokens = tokens[1:]
    if tokens[0].kind is TokenKind.END:
        raise Invalid("the statement is empty", position=1)
    length = next((at for at, token in enumerate(tokens) if token.is_symbol(";")), len(tokens) - 1)
    behind = next((token for token in tokens[length:-1] if not token.is_symbol(";")), None)
    if behind is not None:
        raise Invalid("cannot run more than one statement in a call", position=behind.position)
    # The END stands directly after the last token, so that a trailing comment does not belong to a query.
    end = tokens[length - 1].end
    return (*tokens[:length], Token(TokenKind.END, "", "", end, end))


def _statement(cursor: Cursor) -> Statement:
    token = cursor.token
    if token.is_symbol("(") or token.is_word("select", "with", "values", "table"):
        return parse_select(cursor)
    if token.kind is not TokenKind.NAME:
        raise syntax_error(token)
    if token.value in _NOT_SUPPORTED:
        raise Invalid(f"{token.text.upper()} is not supported", position=token.position)
    reader = _READERS.get(token.value)
    if reader is None:
        raise syntax_error(token)
    if token.value not in ("insert", "update", "delete"):
        cursor.advance()
    return reader(cursor)


def _create(cursor: Cursor) -> Statement:
    token = cursor.token
    if cursor.accept("materialized", "view"):
        return parse_create_view(cursor)
    for word, reader in _CREATED.items():
        if cursor.accept(word):
            return reader(cursor)
    if token.is_word("or"):
        raise Invalid("CREATE OR REPLACE is not supported", position=token.position)
    if token.is_word("materialized"):
        cursor.expect("materialized", "view")
    if token.kind is not TokenKind.NAME:
        raise syntax_error(token)
    raise Invalid(f"CREATE {token.text.upper()} is not supported", position=token.position)


def _flush(cursor: Cursor) -> Statement:
    cursor.expect_end()
    return Flush()


def _recover(cursor: Cursor) -> Statement:
    cursor.expect_end()
    return Recover()


def _explain(cursor: Cursor) -> Statement:
    token = cursor.token
    if token.is_symbol("(") and not cursor.rest[1].is_word("select", "with", "values", "table"):
        return _explain_backfill(cursor)
    if token.is_word("analyze", "verbose", "explain"):
        raise Invalid(f"EXPLAIN {token.text.upper()} is not supported", position=token.position)
    return Explain(_explained(cursor, "EXPLAIN"))


def _explain_backfill(cursor: Cursor) -> Statement:
    opening = cursor.advance()
    asked: set[str] = set()
    while True:
        option = cursor.token
        if not (cursor.accept("backfill") or cursor.accept("format", "dot")):
            raise Invalid("EXPLAIN takes the options (backfill, format dot)", position=option.position)
        asked.add(option.value)
        if not cursor.accept_symbol(","):
            break
    cursor.expect_symbol(")")
    if asked != {"backfill", "format"}:
        raise Invalid("EXPLAIN takes the options (backfill, format dot)", position=opening.position)
    return ExplainBackfill(_explained(cursor, "EXPLAIN (backfill)"))


def _explained(cursor: Cursor, command: str) -> CreateMaterializedView:
    place = cursor.token.position
    explained = _statement(cursor)
    if not isinstance(explained, CreateMaterializedView):
        raise Invalid(f"{command} is of CREATE MATERIALIZED VIEW", position=place)
    return explained


_CREATED: Final[Mapping[str, Callable[[Cursor], Statement]]] = MappingProxyType(
    {
        "secret": parse_create_secret,
        "source": parse_create_source,
        "table": parse_create_table,
        "view": parse_create_logical_view,
    }
)
_READERS: Final[Mapping[str, Callable[[Cursor], Statement]]] = MappingProxyType(
    {
        "alter": parse_alter,
        "cancel": parse_cancel,
        "create": _create,
        "delete": parse_delete,
        "desc": parse_describe,
        "describe": parse_describe,
        "drop": parse_drop,
        "explain": _explain,
        "flush": _flush,
        "insert": parse_insert,
        "recover": _recover,
        "set": parse_set,
        "show": parse_show,
        "update": parse_update,
        "wait": parse_wait,
    }
)
