"""Statements about a relation of any kind: DROP, SHOW CREATE, DESCRIBE, and lists of relations."""

from dataclasses import dataclass
from typing import Final

from service.domain.errors import Invalid
from service.protocol.relation import RelationKind
from service.sql.statements.statement import Parsers, Statement
from service.sql.text.cursor import Cursor


@dataclass(frozen=True, slots=True)
class Drop(Statement):
    """DROP. `kind` is the kind that the user names; the caller refuses another kind.

    `purge`, Spark's word, also removes the files of a table in a lake.
    """

    kind: RelationKind
    name: str
    if_exists: bool = False
    cascade: bool = False
    purge: bool = False


@dataclass(frozen=True, slots=True)
class ShowRelations(Statement):
    """SHOW TABLES, SHOW MATERIALIZED VIEWS, SHOW VIEWS, SHOW SOURCES or SHOW SINKS."""

    kind: RelationKind


@dataclass(frozen=True, slots=True)
class ShowInternalTables(Statement):
    """SHOW INTERNAL TABLES, in which the scans of jobs keep their positions."""


@dataclass(frozen=True, slots=True)
class ShowCreate(Statement):
    """SHOW CREATE TABLE, MATERIALIZED VIEW, VIEW, SOURCE, SINK or INDEX."""

    kind: RelationKind
    name: str


@dataclass(frozen=True, slots=True)
class Describe(Statement):
    """DESCRIBE, or SHOW COLUMNS FROM."""

    name: str


def job_kind(cursor: Cursor, command: str) -> RelationKind:
    """Read TABLE, MATERIALIZED VIEW or SINK, the kinds that have a job. Raises Invalid."""
    if cursor.accept("table"):
        return RelationKind.TABLE
    if cursor.accept("materialized", "view"):
        return RelationKind.MATERIALIZED_VIEW
    if cursor.accept("sink"):
        return RelationKind.SINK
    raise cursor.unsupported(command)


def _any_kind(cursor: Cursor, command: str) -> RelationKind:
    if cursor.accept("source"):
        return RelationKind.SOURCE
    return RelationKind.VIEW if cursor.accept("view") else job_kind(cursor, command)


def _drop(cursor: Cursor) -> Drop:
    kind = _any_kind(cursor, "DROP")
    if_exists = cursor.accept("if", "exists")
    name = cursor.relation()
    if cursor.token.is_symbol(","):
        raise Invalid("DROP takes one relation", position=cursor.token.position)
    cascade = cursor.accept("cascade")
    if not cascade:
        cursor.accept("restrict")
    purge = cursor.accept("purge")
    cursor.expect_end()
    return Drop(kind, name, if_exists, cascade, purge)


def _show_create(cursor: Cursor) -> ShowCreate:
    kind = RelationKind.INDEX if cursor.accept("index") else _any_kind(cursor, "SHOW CREATE")
    name = cursor.relation()
    cursor.expect_end()
    return ShowCreate(kind, name)


def _describe(cursor: Cursor) -> Describe:
    name = cursor.relation()
    cursor.expect_end()
    return Describe(name)


PARSERS: Final[Parsers] = {
    ("drop",): _drop,
    ("show", "tables"): ShowRelations(RelationKind.TABLE),
    ("show", "materialized", "views"): ShowRelations(RelationKind.MATERIALIZED_VIEW),
    ("show", "views"): ShowRelations(RelationKind.VIEW),
    ("show", "sources"): ShowRelations(RelationKind.SOURCE),
    ("show", "sinks"): ShowRelations(RelationKind.SINK),
    ("show", "internal", "tables"): ShowInternalTables(),
    ("show", "create"): _show_create,
    ("show", "columns", "from"): _describe,
    ("desc",): _describe,
    ("describe",): _describe,
}
