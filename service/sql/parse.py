"""Parse the text of one statement to one value.

A known but unsupported statement is refused by name, any other text with Postgres's `syntax error at or near`. Parsing
reads no catalog, so a parsed statement may name relations that do not exist.
"""

from types import MappingProxyType
from typing import Final, Never

from service.domain.errors import Invalid
from service.sql.statements import (
    dml,
    indexes,
    jobs,
    logical_views,
    relations,
    select,
    settings,
    sinks,
    sources,
    tables,
    views,
)
from service.sql.statements.statement import Parsers, Statement
from service.sql.text.cursor import Cursor
from service.sql.text.tokens import QUERY_WORDS, Token, TokenKind, syntax_error, tokenize

FAMILIES: Final = (dml, indexes, jobs, logical_views, relations, select, settings, sinks, sources, tables, views)
"""The modules whose statements there are."""

_NOT_SUPPORTED: Final = frozenset(
    """abort analyze begin call checkpoint close cluster comment commit copy deallocate declare discard do end execute
    fetch grant import kill listen load lock merge move notify prepare reassign refresh reindex release reset revoke
    rollback savepoint security start unlisten use vacuum""".split()  # noqa: SIM905 - best read as words
)


_EACH_ALONE: Final = "each statement is a transaction of its own, and one INSERT takes many rows"
_KEPT: Final = "the service does it by itself"
_ROLES: Final = "what a caller may do is its token's role: tidefill token create"
_INSTEAD: Final = MappingProxyType(
    dict.fromkeys(("abort", "begin", "commit", "end", "rollback", "savepoint", "start"), _EACH_ALONE)
    | dict.fromkeys(("analyze", "checkpoint", "cluster", "reindex", "vacuum"), _KEPT)
    | dict.fromkeys(("grant", "reassign", "revoke"), _ROLES)
    | {
        "copy": "tidefill load sends files of rows, and POST /v1/relations/{table}/rows takes them",
        "merge": "INSERT replaces the row with the same key",
        "refresh": "a materialized view is kept current",
    }
)
"""What there is in place of a statement, by its first word."""
_CREATED_INSTEAD: Final = MappingProxyType(
    {
        "or": (
            "CREATE OR REPLACE",
            "DROP it and CREATE it again, or CREATE it under another name and move the readers",
        ),
        "temporary": ("CREATE TEMPORARY", "use WITH in the query, or a logical view"),
        "temp": ("CREATE TEMP", "use WITH in the query, or a logical view"),
        "unlogged": ("CREATE UNLOGGED", "leave the word out"),
        "sequence": ("CREATE SEQUENCE", "generate_series numbers rows in an INSERT .. SELECT"),
        "function": ("CREATE FUNCTION", "write its text where it is used"),
        "schema": ("CREATE SCHEMA", "every relation is in the schema public"),
        "database": ("CREATE DATABASE", "a service has one database"),
        "user": ("CREATE USER", _ROLES),
        "role": ("CREATE ROLE", _ROLES),
    }
)


def _refusal(token: Token) -> str:
    instead = _INSTEAD.get(token.value)
    return f"{token.text.upper()} is not supported" + ("" if instead is None else f": {instead}")


def parse(sql: str) -> Statement:
    """Return the one statement in `sql`. Raises Invalid with the position of the error."""
    return dml.parse_constants(sql) or _parse(sql)


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
    if token.is_symbol("("):
        return select.parse_select(cursor)
    if token.kind is not TokenKind.NAME:
        raise syntax_error(token)
    if token.value in _NOT_SUPPORTED:
        raise Invalid(_refusal(token), position=token.position)
    ahead = cursor.words(_WORDS_MAX)
    words = next((ahead[:count] for count in range(len(ahead), 0, -1) if ahead[:count] in PARSERS), None)
    if words is None:
        raise syntax_error(token)
    if token.value not in _READ_WHOLE:
        cursor.accept(*words)
    parser = PARSERS[words]
    if not isinstance(parser, Statement):
        return parser(cursor)
    cursor.expect_end()
    return parser


def _explain(cursor: Cursor) -> views.Explain | views.ExplainBackfill | views.ExplainSelect:
    return views.parse_explain(cursor, _statement)


def _refuse_create(cursor: Cursor) -> Never:
    token = cursor.token
    if token.kind is TokenKind.NAME and token.value in _CREATED_INSTEAD:
        what, instead = _CREATED_INSTEAD[token.value]
        raise Invalid(f"{what} is not supported: {instead}", position=token.position)
    raise cursor.unsupported("CREATE")


PARSERS: Final[Parsers] = MappingProxyType(
    {("create",): _refuse_create, ("explain",): _explain}
    | {words: parser for family in FAMILIES for words, parser in family.PARSERS.items()}
)
"""The parser of each statement, by its first words. Of several that match, the one with the most words parses it."""
_WORDS_MAX: Final = max(map(len, PARSERS))
_READ_WHOLE: Final = frozenset({*QUERY_WORDS, "insert", "update", "delete", "truncate"})
"""Statements whose first word belongs to the text that sqlglot parses."""
