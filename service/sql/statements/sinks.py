"""CREATE SINK: rows of a relation or a query for an external system. A sink is planned like a materialized view."""

from dataclasses import dataclass
from typing import Final

from service.domain.connectors import SINKS, check_connector
from service.domain.errors import Invalid
from service.sql.statements.statement import Parsers, Statement
from service.sql.statements.target import Target, target_of
from service.sql.statements.views import CreateMaterializedView
from service.sql.text.cursor import Cursor
from service.sql.text.options import connector_of, discreet, rate_limit, read_options
from service.sql.text.tokens import Token, TokenKind, syntax_error, tokenize
from service.sql.text.tree import Tree, parse_tree

_LIMIT: Final = "backfill_rate_limit"


@dataclass(frozen=True, slots=True)
class CreateSink(Statement):
    """CREATE SINK. `query` is the view whose rows the sink takes; `target` names the connector and what it needs."""

    query: CreateMaterializedView
    target: Target


def _create(cursor: Cursor) -> CreateSink:
    with discreet(cursor):
        return _created(cursor)


def _created(cursor: Cursor) -> CreateSink:
    # The rest of the statement is that of its connector.
    check_connector(connector_of(cursor.rest), SINKS)
    if_not_exists = cursor.accept("if", "not", "exists")
    name = cursor.relation()
    if cursor.accept("from"):
        first = cursor.token
        cursor.relation()
        sql = f"select * from {cursor.text[first.start : cursor.before.end]}"
        query, options = parse_tree(sql, tokenize(sql)), cursor
    else:
        cursor.expect("as")
        query, options = _query(cursor)
        sql = query.text[query.start : query.end]
    options.expect("with")
    given = read_options(options, known=None)
    options.expect_end()
    limit = given.pop(_LIMIT, None)
    view = CreateMaterializedView(
        name=name,
        if_not_exists=if_not_exists,
        options={},
        query=query,
        text=cursor.text.strip(),
        limited=limit is not None,
        backfill_rate_limit=rate_limit(limit),
        sql=sql,
    )
    return CreateSink(view, target_of(given))


def _query(cursor: Cursor) -> tuple[Tree, Cursor]:
    """Return the query, and a cursor before the WITH behind it."""
    tokens = cursor.rest
    if not tokens[0].begins_query:
        raise syntax_error(tokens[0])
    depth, behind = 0, None
    for at, token in enumerate(tokens[1:], 1):
        depth += token.is_symbol("(") - token.is_symbol(")")
        if depth == 0 and token.is_word("with"):
            behind = at
    if behind is None:
        raise Invalid("a sink names its connector: WITH (connector = ..)", position=tokens[-1].position)
    end = tokens[behind - 1].end
    query = parse_tree(cursor.text, (*tokens[:behind], Token(TokenKind.END, "", "", end, end)))
    return query, Cursor(cursor.text, tuple(tokens[behind:]))


PARSERS: Final[Parsers] = {("create", "sink"): _create}
