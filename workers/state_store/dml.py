"""DML on versioned tables: statements run in order in one transaction of their own login, a savepoint each.

Every statement comes down to two sets: *ended* (rows whose versions end) and *brought* or *assigned* (rows that are
there afterwards). One SQL command then writes both, so that one net change per key and epoch remains.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import psycopg

from service.protocol.columns import Column
from service.protocol.dml import Delete, InsertStaged, InsertValues, Statement, StatementResult, Update, staging_table
from service.protocol.ids import Epoch, Generation, GraphId, RelationId
from service.protocol.quoting import quoted
from service.protocol.relation import ALIVE, ROW_ID, Relation, state_table
from service.protocol.vnodes import vnode_postgres
from workers.state_store.connections import ONLY_BY_KEY, application_name, psycopg_connection
from workers.state_store.postgres import hold_generation
from workers.state_store.statements import ENDED_AND_MADE, write

SETUP = (
    "set timezone = 'UTC'",
    "set jit = off",
    "set enable_seqscan = off",
    *ONLY_BY_KEY,
    "set idle_in_transaction_session_timeout = '60s'",
    "set lock_timeout = '30s'",
    # One statement must not outlast a barrier's deadline: its epoch would be tried again, and again in vain.
    "set statement_timeout = '240s'",
)
_CONNECTION_LOST: Final = ("08", "57P")
"""SQLSTATEs, by their beginning, of a connection or server that is gone. The text of a statement can raise every other
one, so that every other one is an error of that statement alone (I13).
"""


@dataclass(frozen=True, slots=True)
class DmlOutcome:
    """Results in the order of the statements, and how each relation's number of alive keys changed."""

    results: tuple[StatementResult, ...]
    relations: tuple[RelationId, ...]
    """The relation of each statement."""
    key_count_deltas: dict[RelationId, int]
    changed: frozenset[RelationId]


@dataclass(frozen=True, slots=True)
class DmlStore:
    """The login under which users' statements run."""

    url: str = field(repr=False)
    graph: GraphId
    generation: Generation

    def run(self, statements: Sequence[Statement], epoch: Epoch) -> DmlOutcome:
        """Run statements at `epoch` and commit. A bad one fails alone; raises psycopg.Error when the connection is lost
        or the generation is over. The fence is the last command, outside every statement's savepoint, so that no
        statement's own error is taken for the fence's.
        """
        results: list[StatementResult] = []
        deltas: dict[RelationId, int] = {}
        changed: set[RelationId] = set()
        name = application_name(self.graph, self.generation)
        with psycopg_connection(self.url, name, SETUP) as connection, connection.transaction():
            for statement in statements:
                result, delta = _run_alone(connection, statement, epoch)
                results.append(result)
                relation = statement.relation.id
                deltas[relation] = deltas.get(relation, 0) + delta
                if result.affected:
                    changed.add(relation)
            connection.execute(_sql(hold_generation(self.graph, self.generation)))
        relations = tuple(statement.relation.id for statement in statements)
        return DmlOutcome(tuple(results), relations, deltas, frozenset(changed))


class _SameKeyError(Exception):
    """A statement would give two rows the same key."""


def _run_alone(connection: psycopg.Connection, statement: Statement, epoch: Epoch) -> tuple[StatementResult, int]:
    try:
        with connection.transaction():
            affected, delta = _apply(connection, statement, epoch)
    except _SameKeyError:
        error = "the statement would give two rows the same key"
        return StatementResult(id=statement.id, affected=0, error=error, sqlstate="21000"), 0
    except psycopg.Error as error:
        if connection.closed or (error.sqlstate or "").startswith(_CONNECTION_LOST):
            raise
        message = error.diag.message_primary or str(error)
        return StatementResult(id=statement.id, affected=0, error=message, sqlstate=error.sqlstate), 0
    return StatementResult(id=statement.id, affected=affected), delta


def _apply(connection: psycopg.Connection, statement: Statement, epoch: Epoch) -> tuple[int, int]:
    """Return (rows the user affected, change of the number of alive keys)."""
    row = connection.execute(_sql(command(statement, epoch))).fetchone()
    assert row is not None
    affected, ended, made, lost = map(int, row)
    if lost:
        raise _SameKeyError
    return affected, made - ended


def command(statement: Statement, epoch: Epoch) -> str:
    """Return the SQL command of a statement; it gives one row: affected, versions ended, versions made at keys that had
    none of this epoch, and rows lost to others with the same key.
    """
    relation = statement.relation
    match statement:
        case InsertValues(columns=columns, source=source):
            return _insert(relation, columns, source, epoch)
        case InsertStaged(columns=columns, first=first, last=last):
            names = ", ".join(quoted(name) for name in columns)
            slice_ = f"_row >= {first} and _row < {last}"
            source = f"select {names} from {staging_table(statement.id)} where {slice_} order by _row"
            return _insert(relation, columns, source, epoch)
        case Update(assignments=assignments, predicate=predicate):
            return _update(relation, assignments, predicate, epoch)
        case Delete(predicate=predicate):
            given = f"select *, false as _to from ({_alive(relation, predicate)}) ended"
            parts = f"with ended as materialized ({given}), {write(relation, 'select * from ended', epoch)}"
            return f"{parts} select (select count(*) from ended), {ENDED_AND_MADE}, 0"


def _insert(relation: Relation, columns: Sequence[str], source: str, epoch: Epoch) -> str:
    """Of two rows with one key the last wins: their number has a name that no column of a user's has."""
    given = ", ".join(quoted(name) for name in columns)
    values = ", ".join(_value(column, set(columns)) for column in relation.columns)
    rows = f"select {_vnode(relation, 'brought')} as _vnode, brought.*, true as _to from brought"
    return (
        f"with brought as materialized (select row_number() over () as _from, {values}"
        f" from ({source}) as source({given})), {write(relation, rows, epoch, prefer='g._from desc')}"
        f" select (select count(*) from brought), {ENDED_AND_MADE}, 0"
    )


def _update(relation: Relation, assignments: Sequence[tuple[str, str]], predicate: str | None, epoch: Epoch) -> str:
    """Rows that keep their key are made again; where the key was assigned, there is none at the old one."""
    by_name = dict(assignments)
    name = quoted(relation.name)
    names = ", ".join(quoted(column.name) for column in relation.columns)
    values = ", ".join(
        f"({by_name[column.name]})::{column.type} as {quoted(column.name)}"
        if column.name in by_name
        else f"{name}.{quoted(column.name)}"
        for column in relation.columns
    )
    rows = (
        f"select {_vnode(relation, 'assigned')} as _vnode, {names}, true as _to from assigned"
        f" union all select _vnode, {names}, false from ended"
    )
    return (
        f"with ended as materialized ({_alive(relation, predicate)}),"
        f" assigned as materialized (select {values} from ended as {name}), {write(relation, rows, epoch)}"
        f" select (select count(*) from ended), {ENDED_AND_MADE},"
        " (select count(*) from assigned) - (select count(*) from found where _to)"
    )


def _alive(relation: Relation, predicate: str | None) -> str:
    # The alias is the user's own name for the table, so that the predicate may qualify its columns.
    names = ", ".join(["_vnode", *(quoted(column.name) for column in relation.columns)])
    where = f" and ({predicate})" if predicate is not None else ""
    return f"select {names} from {state_table(relation.id)} as {quoted(relation.name)} where _to = {ALIVE}{where}"


def _vnode(relation: Relation, rows: str) -> str:
    key = [(f"{rows}.{quoted(part.name)}", relation.column(part.name).type) for part in relation.key]
    return vnode_postgres(key, relation.vnode_count)


def _value(column: Column, given: set[str]) -> str:
    if column.name in given:
        value = f"source.{quoted(column.name)}"
    else:
        # A row id is made once, with the row: it is stored and never derived again.
        value = "nextval('state.row_ids')" if column.name == ROW_ID else "null"
    return f"{value}::{column.type} as {quoted(column.name)}"


def _sql(text: str) -> Any:
    """Psycopg wants literal strings; these are printed from quoted identifiers and checked expressions."""
    return text
