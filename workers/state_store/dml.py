"""DML on versioned tables: statements run in order in one transaction of their own login, a savepoint each.

Every statement comes down to two sets: *ended* (rows whose versions end) and *made* (rows that are there afterwards).
One SQL command then closes, removes and inserts, so that one net change per key and epoch remains and `_from = _to`
never exists:

- a version of an older epoch at an ended or made key gets `_to = epoch`;
- a version of this very epoch at an ended key that is not made again is deleted;
- a made row is inserted, or overwrites the version of this very epoch at its key.

The three touch different versions, which Postgres requires of one command.
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
from workers.state_store.statements import alive

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
_SERVERS_FAULT: Final = ("08", "40", "53", "55", "57", "58", "TF")
"""SQLSTATEs, by their beginning, of a server that is away, full or shutting down, or of a generation that is over."""


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
        """Run statements at `epoch` and commit. A bad one fails alone; raises psycopg.Error when the epoch cannot be
        written.
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


def _run_alone(connection: psycopg.Connection, statement: Statement, epoch: Epoch) -> tuple[StatementResult, int]:
    try:
        with connection.transaction():
            affected, delta = _apply(connection, statement, epoch)
    except psycopg.errors.CardinalityViolation:
        error = "the statement would give two rows the same key"
        return StatementResult(id=statement.id, affected=0, error=error, sqlstate="21000"), 0
    except psycopg.Error as error:
        if connection.closed or _is_servers_fault(error.sqlstate):
            raise
        message = error.diag.message_primary or str(error)
        return StatementResult(id=statement.id, affected=0, error=message, sqlstate=error.sqlstate), 0
    return StatementResult(id=statement.id, affected=affected), delta


def _is_servers_fault(state: str | None) -> bool:
    """Whether another try may do better. A statement that timed out, or needs more than Postgres allows, will not."""
    return state is None or (state.startswith(_SERVERS_FAULT) and state != "57014")


def _apply(connection: psycopg.Connection, statement: Statement, epoch: Epoch) -> tuple[int, int]:
    """Return (rows the user affected, change of the number of alive keys)."""
    row = connection.execute(_sql(command(statement, epoch))).fetchone()
    assert row is not None
    affected, ended, fresh = row
    return int(affected), int(fresh) - int(ended)


def command(statement: Statement, epoch: Epoch) -> str:
    """Return the SQL command of a statement; it gives one row: affected, versions ended, versions made anew."""
    relation = statement.relation
    match statement:
        case InsertValues(columns=columns, source=source):
            return _command(relation, None, _brought(relation, columns, source), epoch)
        case InsertStaged(columns=columns, first=first, last=last):
            names = ", ".join(quoted(name) for name in columns)
            slice_ = f"_row >= {first} and _row < {last}"
            source = f"select {names} from {staging_table(statement.id)} where {slice_} order by _row"
            return _command(relation, None, _brought(relation, columns, source), epoch)
        case Update(assignments=assignments, predicate=predicate):
            return _command(relation, _ended(relation, predicate), _assigned(relation, assignments), epoch)
        case Delete(predicate=predicate):
            return _command(relation, _ended(relation, predicate), None, epoch)


def _brought(relation: Relation, columns: Sequence[str], source: str) -> str:
    """The rows a statement brings, with every column of the relation; of two rows with one key the last wins."""
    given = ", ".join(quoted(name) for name in columns)
    values = ", ".join(_value(column, set(columns)) for column in relation.columns)
    keys = ", ".join(quoted(part.name) for part in relation.key)
    return (
        f"brought as materialized (select row_number() over () as _row, {values} from ({source}) as source({given})),"
        f" made as materialized (select distinct on ({keys}) * from brought order by {keys}, _row desc)"
    )


def _value(column: Column, given: set[str]) -> str:
    if column.name in given:
        value = f"source.{quoted(column.name)}"
    else:
        # A row id is made once, with the row: it is stored and never derived again.
        value = "nextval('state.row_ids')" if column.name == ROW_ID else "null"
    return f"{value}::{column.type} as {quoted(column.name)}"


def _ended(relation: Relation, predicate: str | None) -> str:
    # The alias is the user's own name for the table, so that the predicate may qualify its columns.
    where = f" and ({predicate})" if predicate is not None else ""
    return (
        f"ended as materialized (select * from {state_table(relation.id)} as {quoted(relation.name)}"
        f" where _to = {ALIVE}{where})"
    )


def _assigned(relation: Relation, assignments: Sequence[tuple[str, str]]) -> str:
    by_name = dict(assignments)
    values = ", ".join(
        f"({by_name[column.name]})::{column.type} as {quoted(column.name)}"
        if column.name in by_name
        else f"{quoted(relation.name)}.{quoted(column.name)}"
        for column in relation.columns
    )
    return f"made as materialized (select {values} from ended as {quoted(relation.name)})"


def _command(relation: Relation, ended: str | None, made: str | None, epoch: Epoch) -> str:
    parts = [part for part in (ended, made) if part is not None]
    vnode = vnode_postgres(
        [(f"made.{quoted(part.name)}", relation.column(part.name).type) for part in relation.key],
        relation.vnode_count,
    )
    if made is not None:
        # In storage order: whoever reads the table by vnode finds rows of one vnode together, as does the index.
        parts.append(f"placed as materialized (select {vnode} as _vnode, made.* from made order by {_key(relation)})")
    parts += [_touched(relation, ended=ended is not None, made=made is not None), _closed(relation, epoch)]
    if ended is not None:
        parts.append(_removed(relation, epoch))
    if made is not None:
        parts.append(_inserted(relation, epoch))
    removed = "(select count(*) from removed)" if ended is not None else "0"
    fresh = "(select count(*) from inserted where fresh)" if made is not None else "0"
    return (
        f"with {', '.join(parts)} select (select count(*) from {'brought' if ended is None else 'ended'}),"
        f" (select count(*) from closed) + {removed}, {fresh}"
    )


def _touched(relation: Relation, *, ended: bool, made: bool) -> str:
    """Every key once, and whether a row is there afterwards."""
    key = _key(relation)
    sources = [(name, there) for name, there, given in (("ended", "false", ended), ("placed", "true", made)) if given]
    halves = " union all ".join(f"select {key}, {there} as _there from {name}" for name, there in sources)
    grouped = f"select {key}, bool_or(_there) as _there from ({halves}) h group by {key} order by {key}"
    return f"touched as materialized ({grouped})"


def _closed(relation: Relation, epoch: Epoch) -> str:
    return (
        f"closed as (update {state_table(relation.id)} t set _to = {epoch} from touched k"
        f" where {_same(relation, 't', 'k')} and {alive('t')} and t._from < {epoch} returning 1)"
    )


def _removed(relation: Relation, epoch: Epoch) -> str:
    return (
        f"removed as (delete from {state_table(relation.id)} t using touched k"
        f" where {_same(relation, 't', 'k')} and not k._there and t._from = {epoch} and {alive('t')} returning 1)"
    )


def _inserted(relation: Relation, epoch: Epoch) -> str:
    names = [quoted(column.name) for column in relation.columns]
    columns = ", ".join(names)
    overwrite = ", ".join(f"{name} = excluded.{name}" for name in names)
    return (
        f"inserted as (insert into {state_table(relation.id)} (_vnode, {columns}, _from)"
        f" select _vnode, {columns}, {epoch} from placed"
        f" on conflict ({_key(relation)}, _from) do update set {overwrite} returning (xmax = 0) as fresh)"
    )


def _key(relation: Relation) -> str:
    return ", ".join(["_vnode", *(quoted(part.name) for part in relation.key)])


def _same(relation: Relation, left: str, right: str) -> str:
    """NULL is a key's value like any other; what cannot be NULL is compared so that the index serves."""
    key = [relation.column(part.name) for part in relation.key]
    compared = [(quoted(column.name), "is not distinct from" if column.nullable else "=") for column in key]
    return " and ".join(f"{left}.{name} {by} {right}.{name}" for name, by in (("_vnode", "="), *compared))


def _sql(text: str) -> Any:
    """Psycopg wants literal strings; these are printed from quoted identifiers and checked expressions."""
    return text
