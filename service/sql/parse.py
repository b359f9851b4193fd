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
    rollback savepoint security start truncate unlisten use vacuum""".split()  # noqa: SIM905 - best read as words
)


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
        raise Invalid(f"{token.text.upper()} is not supported", position=token.position)
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


def _explain(cursor: Cursor) -> views.Explain | views.ExplainBackfill:
    return views.parse_explain(cursor, _statement)


def _refuse_create(cursor: Cursor) -> Never:
    if cursor.token.is_word("or"):
        raise Invalid("CREATE OR REPLACE is not supported", position=cursor.token.position)
    raise cursor.unsupported("CREATE")


PARSERS: Final[Parsers] = MappingProxyType(
    {("create",): _refuse_create, ("explain",): _explain}
    | {words: parser for family in FAMILIES for words, parser in family.PARSERS.items()}
)
"""The parser of each statement, by its first words. Of several that match, the one with the most words parses it."""
_WORDS_MAX: Final = max(map(len, PARSERS))
_READ_WHOLE: Final = frozenset({*QUERY_WORDS, "insert", "update", "delete"})
"""Statements whose first word belongs to the text that sqlglot parses."""
