"""CREATE MATERIALIZED VIEW, with its backfill order, and EXPLAIN of it. `service.sql.views` binds the query."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from service.domain.adaptive import Asked
from service.domain.errors import Invalid
from service.protocol.delta import IN_A_LAKE
from service.sql.statements.select import Select
from service.sql.statements.statement import Parser, Parsers, Statement
from service.sql.statements.target import Target
from service.sql.statements.using import accept_using, in_lake
from service.sql.text.cursor import Cursor, column_list
from service.sql.text.options import Option, discreet, rate_limit, read_options
from service.sql.text.tokens import QUERY_WORDS, Token, TokenKind, syntax_error
from service.sql.text.tree import Tree, parse_tree

_SERVERLESS: Final = "cloud.serverless_backfill_enabled"
_OPTIONS: Final = frozenset({"backfill_rate_limit", "backfill_order", "resource_group", _SERVERLESS})


@dataclass(frozen=True, slots=True)
class OrderedName:
    """A relation in a backfill order: `typed` as the user spelled it, at a 1-based `position`."""

    name: str
    typed: str
    position: int
    qualified: bool = False


@dataclass(frozen=True, slots=True)
class BackfillOrder:
    """The edges of `FIXED(a -> b)` as (before, after). Empty for DEFAULT, NONE and AUTO."""

    edges: tuple[tuple[OrderedName, OrderedName], ...] = ()
    auto: bool = False


CONSTANTS: Final = "rows of constants beside a relation are a materialized view of their own, which a view can read"
"""The way out where a query mixes the two."""


@dataclass(frozen=True, slots=True)
class CreateMaterializedView(Statement):
    """CREATE MATERIALIZED VIEW.

    `options` are the WITH options as written, by name; `backfill_rate_limit` and `order` are their parsed values.
    `limited` is True if the statement gives a limit (None: unlimited). Otherwise the session's limit applies. If
    `serverless` is None, the session decides about the worker too. `resource_group` is the profile of its worker.
    """

    name: str
    if_not_exists: bool
    options: dict[str, str]
    query: Tree = field(repr=False)
    text: str
    limited: bool = False
    backfill_rate_limit: Asked = None
    order: BackfillOrder = BackfillOrder()
    serverless: bool | None = None
    resource_group: str | None = None
    sql: str = field(default="", compare=False)
    """The query as written."""
    target: Target | None = None
    """The Delta table that has its rows, for a view `USING delta`."""


@dataclass(frozen=True, slots=True)
class Explain(Statement):
    """EXPLAIN, the plan that the view would have."""

    view: CreateMaterializedView


@dataclass(frozen=True, slots=True)
class ExplainSelect(Statement):
    """EXPLAIN of a SELECT, Postgres's plan of it. The SELECT begins at `offset` of the statement."""

    select: Select
    offset: int


@dataclass(frozen=True, slots=True)
class ExplainBackfill(Statement):
    """EXPLAIN (backfill, format dot), the backfill order that the view would have."""

    view: CreateMaterializedView


def _create(cursor: Cursor) -> CreateMaterializedView:
    if_not_exists = cursor.accept("if", "not", "exists")
    name = cursor.relation()
    columns = column_list(cursor)
    target, options = _placed(cursor)
    cursor.expect("as")
    if not cursor.token.begins_query:
        raise syntax_error(cursor.token)
    order = _order(options["backfill_order"].tokens) if "backfill_order" in options else BackfillOrder()
    return CreateMaterializedView(
        name=name,
        if_not_exists=if_not_exists,
        options={option.name: option.text for option in options.values()},
        query=parse_tree(cursor.text, cursor.rest).with_columns(columns),
        text=cursor.text.strip(),
        sql=cursor.text[cursor.rest[0].start : cursor.rest[-1].start],
        limited="backfill_rate_limit" in options,
        backfill_rate_limit=rate_limit(options.get("backfill_rate_limit")),
        order=order,
        serverless=options[_SERVERLESS].boolean() if _SERVERLESS in options else None,
        resource_group=options["resource_group"].string() if "resource_group" in options else None,
        target=target,
    )


def _placed(cursor: Cursor) -> tuple[Target | None, dict[str, Option]]:
    """Read where the rows of a view lie, with the options of that place, and the options of the view."""
    using = accept_using(cursor, "view")
    if using is None:
        return None, read_options(cursor, known=_OPTIONS) if cursor.accept("with") else {}
    with discreet(cursor):
        every = read_options(cursor, known=_OPTIONS | IN_A_LAKE) if cursor.accept("with") else {}
        return in_lake(using, every), every


def _order(tokens: Sequence[Token]) -> BackfillOrder:
    cursor = Cursor("", (*tokens, Token(TokenKind.END, "", "", tokens[-1].end, tokens[-1].end)))
    if cursor.accept("default") or cursor.accept("none"):
        cursor.expect_end()
        return BackfillOrder()
    if cursor.accept("auto"):
        cursor.expect_end()
        return BackfillOrder(auto=True)
    cursor.expect("fixed")
    cursor.expect_symbol("(")
    edges = [_edge(cursor)]
    while cursor.accept_symbol(","):
        edges.append(_edge(cursor))
    cursor.expect_symbol(")")
    cursor.expect_end()
    return BackfillOrder(tuple(edges))


def _edge(cursor: Cursor) -> tuple[OrderedName, OrderedName]:
    before = _name(cursor)
    dash = cursor.expect_symbol("-")
    arrow = cursor.expect_symbol(">")
    if arrow.start != dash.end:
        raise syntax_error(dash)
    return before, _name(cursor)


def _name(cursor: Cursor) -> OrderedName:
    first = cursor.token
    name, last = cursor.relation(), cursor.before
    typed = first.text if last is first else f"{first.text}.{last.text}"
    return OrderedName(name, typed, first.position, qualified=last is not first)


def parse_explain(cursor: Cursor, statement: Parser) -> Explain | ExplainBackfill | ExplainSelect:
    """Parse the rest of EXPLAIN; `statement` parses what is explained. Raises Invalid."""
    token = cursor.token
    of_backfill = token.is_symbol("(") and not cursor.rest[1].is_word(*QUERY_WORDS)
    if of_backfill:
        _explain_options(cursor)
    elif token.is_word("analyze", "verbose", "explain"):
        raise Invalid(f"EXPLAIN {token.text.upper()} is not supported", position=token.position)
    place, view = cursor.token.position, statement(cursor)
    if isinstance(view, Select) and not of_backfill:
        return ExplainSelect(view, place - 1)
    if not isinstance(view, CreateMaterializedView):
        command = "EXPLAIN (backfill)" if of_backfill else "EXPLAIN"
        others = "" if of_backfill else " and of SELECT"
        raise Invalid(f"{command} is of CREATE MATERIALIZED VIEW{others}", position=place)
    return ExplainBackfill(view) if of_backfill else Explain(view)


def _explain_options(cursor: Cursor) -> None:
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


PARSERS: Final[Parsers] = {("create", "materialized", "view"): _create}
