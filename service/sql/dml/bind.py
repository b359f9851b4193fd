"""Bind INSERT, UPDATE and DELETE to the existing relations.

The bound values are printed from the parsed tree in Postgres's SQL for the worker. Every value is cast to its column's
type, and every relation becomes its view of alive rows. The query of an INSERT .. SELECT is not printed. It runs as
written under the reader's login.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlglot import exp

from service.domain.errors import Invalid, NotFound
from service.protocol.columns import Column
from service.protocol.relation import Relation, RelationKind
from service.sql.dml.printing import RowScope, null_violation
from service.sql.statements.dml import Delete, Insert, Update, parse_insert
from service.sql.statements.select import Select
from service.sql.text.constants import printed
from service.sql.text.cursor import Cursor
from service.sql.text.tokens import tokenize
from service.sql.text.tree import Tree, given, identifier


@dataclass(frozen=True, slots=True)
class BoundInsert:
    """A bound INSERT. Exactly one of `source` and `query` is set.

    `source` is a printed VALUES that gives `columns` in order. `query` runs as written and its rows are staged. A query
    with fewer columns than `columns` fills the first ones.
    """

    relation: Relation
    columns: tuple[str, ...]
    source: str | None = None
    query: Select | None = None


@dataclass(frozen=True, slots=True)
class BoundUpdate:
    """A bound UPDATE, with the fields of `service.protocol.dml.Update`."""

    relation: Relation
    assignments: tuple[tuple[str, str], ...]
    predicate: str | None


@dataclass(frozen=True, slots=True)
class BoundDelete:
    """A bound DELETE, with the fields of `service.protocol.dml.Delete`."""

    relation: Relation
    predicate: str | None


def bind_insert(statement: Insert, relations: Mapping[str, Relation]) -> BoundInsert:
    """Return the bound INSERT. Raises Invalid and NotFound."""
    if statement.constants is not None:
        bound = bind_constants(statement, relations)
        if bound is not None:
            return bound
        # The parsed tree knows the position of the value to refuse.
        text = statement.constants.text
        return bind_insert(parse_insert(Cursor(text, tokenize(text))), relations)
    relation, columns = _filled(statement, relations)
    if statement.query is not None:
        return _bind_query(statement, statement.query, relation, columns)
    assert statement.tree is not None
    scope = RowScope(statement.tree, relation, frozenset(), relations, columns_visible=False)
    rows = [_row(scope, row, columns, exact=bool(statement.columns)) for row in statement.tree.root.expressions]
    width = len(rows[0])
    if any(len(row) != width for row in rows):
        raise Invalid("VALUES lists must all be the same length", position=statement.tree.start + 1)
    source = "VALUES " + ", ".join(f"({', '.join(row)})" for row in rows)
    return _bound_values(statement, relation, columns[:width], source)


def bind_constants(statement: Insert, relations: Mapping[str, Relation]) -> BoundInsert | None:
    """Return the bound INSERT of plain constants, in time linear in its length.

    None if the statement has no plain constants, or a value to refuse. Raises Invalid and NotFound.
    """
    if statement.constants is None:
        return None
    relation, columns = _filled(statement, relations)
    rows = statement.constants.rows
    source = printed(rows, columns, exact=bool(statement.columns))
    return None if source is None else _bound_values(statement, relation, columns[: len(rows[0])], source)


def _filled(statement: Insert, relations: Mapping[str, Relation]) -> tuple[Relation, tuple[Column, ...]]:
    """Return the target and the columns that the rows fill, in order. Raises Invalid and NotFound."""
    relation = _table(statement.target, statement.position, relations)
    if not statement.columns:
        return relation, relation.visible
    columns = tuple(_assignable(relation, name, place) for name, place in statement.columns)
    _refuse_twice([(column.name, place) for column, (_, place) in zip(columns, statement.columns, strict=True)])
    return relation, columns


def _bound_values(statement: Insert, relation: Relation, columns: tuple[Column, ...], source: str) -> BoundInsert:
    names = tuple(column.name for column in columns)
    _require_not_null(relation, set(names), statement.position)
    return BoundInsert(relation, names, source=source)


def bind_update(statement: Update, relations: Mapping[str, Relation]) -> BoundUpdate:
    """Return the bound UPDATE. Raises Invalid and NotFound."""
    relation = _table(statement.target, statement.position, relations)
    scope = _scope(statement.tree, relation, relations)
    pairs = [pair for item in statement.tree.root.expressions for pair in _pairs(statement.tree, item)]
    columns = [_assigned_column(scope, left) for left, _ in pairs]
    _refuse_twice(
        [(column.name, scope.tree.position(left)) for column, (left, _) in zip(columns, pairs, strict=True)],
        message='multiple assignments to same column "{}"',
    )
    assignments = tuple(
        (column.name, scope.value(right, column)) for column, (_, right) in zip(columns, pairs, strict=True)
    )
    return BoundUpdate(relation, assignments, scope.predicate())


def bind_delete(statement: Delete, relations: Mapping[str, Relation]) -> BoundDelete:
    """Return the bound DELETE. Raises Invalid and NotFound."""
    relation = _table(statement.target, statement.position, relations)
    scope = _scope(statement.tree, relation, relations)
    return BoundDelete(relation, scope.predicate())


def _scope(tree: Tree, relation: Relation, relations: Mapping[str, Relation]) -> RowScope:
    alias = tree.root.this.args.get("alias")
    return RowScope(tree, relation, frozenset({identifier(alias.this) if alias else relation.name}), relations)


def _table(name: str, position: int, relations: Mapping[str, Relation]) -> Relation:
    if name not in relations:
        raise NotFound(f'relation "{name}" does not exist', kind="relation", position=position)
    if relations[name].kind is not RelationKind.TABLE:
        raise Invalid(f'cannot change {relations[name].kind} "{name}"', position=position)
    return relations[name]


def _assignable(relation: Relation, name: str, position: int) -> Column:
    column = next((column for column in relation.visible if column.name == name), None)
    if column is None:
        message = f'column "{name}" of relation "{relation.name}" does not exist'
        raise NotFound(message, kind="column", position=position)
    return column


def _refuse_twice(names: Sequence[tuple[str, int]], message: str = 'column "{}" specified more than once') -> None:
    seen: set[str] = set()
    for name, position in names:
        if name in seen:
            raise Invalid(message.format(name), position=position)
        seen.add(name)


def _bind_query(statement: Insert, query: Select, relation: Relation, columns: tuple[Column, ...]) -> BoundInsert:
    count = _width(statement.tree)
    if count is not None:
        _check_width(count, len(columns), statement.position, exact=bool(statement.columns))
        columns = columns[:count]
    _require_not_null(relation, {column.name for column in columns}, statement.position)
    names = tuple(column.name for column in columns)
    return BoundInsert(relation, names, query=query)


def _width(tree: Tree | None) -> int | None:
    root = tree.root if tree is not None else None
    if not isinstance(root, exp.Select) or any(node.is_star for node in root.expressions):
        return None
    # A function may return a row of several columns, so only staging knows the number of columns.
    return len(root.expressions)


def _check_width(count: int, columns: int, position: int, *, exact: bool) -> None:
    if count > columns:
        raise Invalid("INSERT has more expressions than target columns", position=position)
    if exact and count < columns:
        raise Invalid("INSERT has more target columns than expressions", position=position)


def _row(scope: RowScope, row: exp.Expr, columns: Sequence[Column], *, exact: bool) -> list[str]:
    # The parser does not represent one value in parentheses as a row.
    items = row.expressions if isinstance(row, exp.Tuple) else [row.this if isinstance(row, exp.Paren) else row]
    _check_width(len(items), len(columns), scope.tree.position(row), exact=exact)
    return [scope.value(item, column) for item, column in zip(items, columns, strict=False)]


def _pairs(tree: Tree, item: exp.Expr) -> list[tuple[exp.Expr, exp.Expr]]:
    """Return the (column, value) pairs of one assignment; `(a, b) = (1, 2)` has several."""
    left, right = item.args.get("this"), item.args.get("expression")
    if not isinstance(item, exp.EQ) or left is None or right is None:
        raise Invalid("syntax error in SET", position=tree.position(item))
    if not isinstance(left, exp.Tuple):
        return [(left, right)]
    if not isinstance(right, exp.Tuple) or len(left.expressions) != len(right.expressions):
        raise Invalid("a list of columns takes as many values", position=tree.position(item))
    return list(zip(left.expressions, right.expressions, strict=True))


def _assigned_column(scope: RowScope, node: exp.Expr) -> Column:
    place = scope.tree.position(node)
    if not isinstance(node, exp.Column) or given(node) != frozenset({"this"}) or isinstance(node.this, exp.Star):
        raise Invalid("SET takes a column's name", position=place)
    return _assignable(scope.target, identifier(node.this), place)


def _require_not_null(relation: Relation, given_names: set[str], position: int) -> None:
    for column in relation.visible:
        if column.required and column.name not in given_names:
            raise null_violation(relation, column.name, position)
