"""INSERT, UPDATE and DELETE. `service.sql.dml` binds them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from sqlglot import exp

from service.domain.errors import Invalid
from service.sql.statements.select import Select, check_query, parse_select, query_tree
from service.sql.statements.statement import Parsers, Statement
from service.sql.text.constants import Constants, constants_of
from service.sql.text.cursor import SCHEMA, Cursor
from service.sql.text.tokens import QUERY_WORDS, Token, syntax_error, tokenize
from service.sql.text.tree import Tree, given, identifier, parse_tree


@dataclass(frozen=True, slots=True)
class Insert(Statement):
    """INSERT into `target` at `position`; `dml.bind_insert` binds it.

    `columns` are (name, position), empty if the statement has no list. The rows of VALUES are `constants`, or else in
    `tree`. For any other query, `query` is the query as written, and `tree` is sqlglot's tree of it, if sqlglot can
    parse it.
    """

    target: str
    position: int
    columns: tuple[tuple[str, int], ...]
    tree: Tree | None = field(repr=False)
    query: Select | None = None
    constants: Constants | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Update(Statement):
    """UPDATE of `target` at `position`; `dml.bind_update` binds it."""

    target: str
    position: int
    tree: Tree = field(repr=False)


@dataclass(frozen=True, slots=True)
class Delete(Statement):
    """DELETE from `target` at `position`, or TRUNCATE; `dml.bind_delete` binds it."""

    target: str
    position: int
    tree: Tree = field(repr=False)
    truncate: bool = False


def parse_insert(cursor: Cursor) -> Insert:
    """Parse INSERT INTO name [(columns)] {VALUES | query}. Raises Invalid."""
    target, place, columns = _insert_into(cursor)
    if cursor.token.is_word("overriding", "default"):
        raise Invalid(f"{cursor.token.text.upper()} is not supported in INSERT", position=cursor.token.position)
    tokens = cursor.rest
    _refuse_clauses(tokens)
    if not tokens[0].begins_query:
        raise syntax_error(tokens[0])
    if tokens[0].is_word("values") and not tokens[1].is_symbol("("):
        raise syntax_error(tokens[1])
    if tokens[0].is_word("values") and tokens[2].is_symbol(")"):
        raise syntax_error(tokens[2])
    check_query(tokens)
    tree = parse_tree(cursor.text, tokens) if tokens[0].is_word("values") else query_tree(cursor.text, tokens)
    if tree is not None and isinstance(tree.root, exp.Values) and given(tree.root) == frozenset({"expressions"}):
        return Insert(target, place, columns, tree)
    return Insert(target, place, columns, tree, parse_select(cursor))


def parse_constants(text: str) -> Insert | None:
    """Parse an INSERT of plain constants. None for any other statement, and for one with an error to report."""
    constants = constants_of(text)
    if constants is None:
        return None
    cursor = Cursor(text, tokenize(text[: constants.start]))
    try:
        target, place, columns = _insert_into(cursor)
        cursor.expect("values")
        cursor.expect_end()
    except Invalid:
        return None
    return Insert(target, place, columns, None, constants=constants)


def _insert_into(cursor: Cursor) -> tuple[str, int, tuple[tuple[str, int], ...]]:
    cursor.expect("insert", "into")
    place = cursor.token.position
    target = cursor.relation()
    if cursor.accept("as"):
        cursor.name()
    return target, place, _column_list(cursor)


def _update(cursor: Cursor) -> Update:
    tree = _changing(cursor, "update")
    if not isinstance(tree.root, exp.Update):
        raise syntax_error(cursor.token)
    if not tree.root.expressions:
        raise syntax_error(cursor.rest[-1])
    if extra := given(tree.root) - {"this", "expressions", "where"}:
        raise Invalid(f"UPDATE .. {_clause(extra)} is not supported: use a subquery", position=tree.start + 1)
    return Update(*_target(tree), tree)


def _delete(cursor: Cursor) -> Delete:
    tree = _changing(cursor, "delete", "from")
    if not isinstance(tree.root, exp.Delete):
        raise syntax_error(cursor.token)
    if extra := given(tree.root) - {"this", "where"}:
        raise Invalid(f"DELETE .. {_clause(extra)} is not supported: use a subquery", position=tree.start + 1)
    return Delete(*_target(tree), tree)


def _truncate(cursor: Cursor) -> Delete:
    cursor.expect("truncate")
    cursor.accept("table")
    first = cursor.token
    target = cursor.relation()
    sql = f"delete from {cursor.text[first.start : cursor.before.end]}"
    if cursor.token.is_symbol(","):
        raise Invalid("TRUNCATE takes one table", position=cursor.token.position)
    if not cursor.accept("restart", "identity"):
        cursor.accept("continue", "identity")
    if cursor.token.is_word("cascade"):
        raise Invalid("TRUNCATE .. CASCADE is not supported: truncate each table", position=cursor.token.position)
    cursor.accept("restrict")
    cursor.expect_end()
    return Delete(target, first.position, parse_tree(sql, tokenize(sql)), truncate=True)


def _changing(cursor: Cursor, *words: str) -> Tree:
    """Parse a whole UPDATE or DELETE. Its first words are skipped by the check, because a query must
    not contain them.
    """
    tokens = cursor.rest
    _refuse_clauses(tokens)
    cursor.expect(*words)
    check_query(cursor.rest)
    return parse_tree(cursor.text, tokens)


def _target(tree: Tree) -> tuple[str, int]:
    table = tree.root.this
    if not isinstance(table, exp.Table) or not isinstance(table.this, exp.Identifier):
        raise Invalid("syntax error", position=tree.start + 1)
    if extra := given(table) - {"this", "db", "alias"}:
        raise Invalid(f"{min(extra).upper()} is not supported here", position=tree.position(table))
    schema = table.args.get("db")
    if schema is not None and identifier(schema) != SCHEMA:
        raise Invalid(f'schema "{identifier(schema)}" does not exist', position=tree.position(schema))
    return identifier(table.this), tree.position(table.this)


def _clause(extra: frozenset[str]) -> str:
    return min(extra).strip("_").upper()


def _refuse_clauses(tokens: Sequence[Token]) -> None:
    depth = 0
    for token, after in pairwise(tokens):
        depth += token.is_symbol("(") - token.is_symbol(")")
        if depth == 0 and token.is_word("returning"):
            raise Invalid("RETURNING is not supported", position=token.position)
        if depth == 0 and token.is_word("on") and after.is_word("conflict"):
            message = "ON CONFLICT is not supported: an INSERT overwrites the row of an existing key"
            raise Invalid(message, position=token.position)


def _column_list(cursor: Cursor) -> tuple[tuple[str, int], ...]:
    opened = cursor.token.is_symbol("(")
    if not opened or cursor.rest[1].is_symbol("(") or cursor.rest[1].is_word(*QUERY_WORDS):
        return ()
    cursor.expect_symbol("(")
    columns = [(cursor.name(), cursor.before.position)]
    while cursor.accept_symbol(","):
        columns.append((cursor.name(), cursor.before.position))
    cursor.expect_symbol(")")
    return tuple(columns)


PARSERS: Final[Parsers] = {
    ("insert",): parse_insert,
    ("update",): _update,
    ("delete",): _delete,
    ("truncate",): _truncate,
}
