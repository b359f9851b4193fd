"""CREATE VIEW, a query with a name, and the relations that it reads. Postgres interprets the query."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from typing import Final

from sqlglot import exp

from service.domain.errors import Invalid
from service.sql.statements.select import check_query, named_relations, query_tree
from service.sql.statements.statement import Parsers, Statement
from service.sql.text.cursor import SCHEMA, Cursor, column_list
from service.sql.text.tokens import syntax_error
from service.sql.text.tree import Tree, identifier


@dataclass(frozen=True, slots=True)
class CreateView(Statement):
    """CREATE VIEW of a logical view.

    `sql` is the query as written. `reads` are the relations that it names, each with the 1-based position of its first
    occurrence. `selects_all` is whether the query names columns by a star, so that its columns depend on when it was
    read. `text` is the whole statement.
    """

    name: str
    if_not_exists: bool
    query: Tree = field(repr=False)
    sql: str
    reads: Mapping[str, int]
    selects_all: bool
    text: str


def _create(cursor: Cursor) -> CreateView:
    if_not_exists = cursor.accept("if", "not", "exists")
    name = cursor.relation()
    columns = column_list(cursor)
    if cursor.token.is_word("with"):
        raise Invalid("a view takes no options", position=cursor.token.position)
    cursor.expect("as")
    tokens = cursor.rest
    if not tokens[0].begins_query:
        raise syntax_error(tokens[0])
    check_query(tokens)
    tree = query_tree(cursor.text, tokens)
    if tree is None:
        message = "what the query reads cannot be told: a view takes plainer SQL than a SELECT by itself"
        raise Invalid(message, position=tokens[0].position)
    text = cursor.text[tokens[0].start : tokens[-1].start]
    query, whole = tree.with_columns(columns), cursor.text.strip()
    return CreateView(name, if_not_exists, query, text, _reads(tree), _selects_all(query), whole)


def query_reads(tree: Tree) -> frozenset[str]:
    """Return the names of the relations that a query reads."""
    return frozenset(identifier(table.this) for table in named_relations(tree.root))


def occurrences(tree: Tree, views: Mapping[str, Tree]) -> int:
    """Return how many relations a query reads once each logical view, one of `views`, is replaced by its query.

    Nothing is replaced here: views that each read the one below twice double with each of them.
    """
    counts: dict[str, int] = {}

    def count(query: Tree) -> int:
        return sum(counts.get(identifier(table.this), 1) for table in named_relations(query.root))

    for name in TopologicalSorter({name: query_reads(view) for name, view in views.items()}).static_order():
        counts[name] = count(views[name]) if name in views else 1
    return count(tree)


def _selects_all(query: Tree) -> bool:
    stars = (star.parent if isinstance(star.parent, exp.Column) else star for star in query.root.find_all(exp.Star))
    return any(isinstance(star.parent, exp.Select) for star in stars)


def _reads(tree: Tree) -> Mapping[str, int]:
    places: dict[str, int] = {}
    for table in named_relations(tree.root):
        schema = table.args.get("db")
        if schema is not None and identifier(schema) != SCHEMA:
            message = f'a view reads relations of "{SCHEMA}", not of "{identifier(schema)}"'
            raise Invalid(message, position=tree.position(schema))
        places.setdefault(identifier(table.this), tree.position(table))
    return places


PARSERS: Final[Parsers] = {("create", "view"): _create}
