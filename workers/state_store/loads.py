"""Move slices of staged rows into versioned tables, by two sessions at a time.

A slice whose keys are all new is only inserted. That one probe for each vnode shows, because keys mostly come in
ranges: a row identity or a date. Any other slice is written by key, like an INSERT.

A large slice is divided in two by vnode, or by row where the keys are generated, so that the halves have no key in
common. A second session moves one half, fences and commits it while the epoch's transaction is still open. If that
transaction is then not committed, the epoch is abandoned, and the recovery rolls back both by their epoch.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any, Final

import psycopg

from service.protocol.columns import TypeName
from service.protocol.dml import InsertStaged, staging_table
from service.protocol.ids import Epoch
from service.protocol.quoting import quoted
from service.protocol.relation import ROW_ID, Relation, state_table
from service.protocol.vnodes import vnode_postgres
from workers.state_store.statements import ENDED, MADE, left_out, stored_columns, write

DIVIDED_ROWS: Final = 20_000
"""The least number of rows of a slice that is divided. A smaller one is moved before a second session has begun."""
SETTINGS: Final = ("set local enable_bitmapscan = on", "set local work_mem = '64MB'")
"""A slice is found by a BRIN index, and sorted in memory."""
_RANGED: Final = frozenset(TypeName) - {TypeName.BOOLEAN, TypeName.BYTEA, TypeName.UUID}
"""Types of which Postgres computes the least and the greatest value."""

Half = int | None
"""Which half of a slice is meant; None is all of it."""


def move(
    connection: psycopg.Connection,
    beside: Callable[[], AbstractContextManager["Beside"]] | None,
    statement: InsertStaged,
    epoch: Epoch,
) -> tuple[int, int]:
    """Return (rows moved, change of the number of live keys). `beside` opens a second session, if there may be one."""
    for setting in SETTINGS:
        connection.execute(_sql(setting))
    row = connection.execute(_sql(any_found(statement))).fetchone()
    assert row is not None
    print_one = overwriting if row[0] else inserting
    if beside is None or statement.last - statement.first < DIVIDED_ROWS:
        return statement.last - statement.first, _moved(connection, print_one(statement, epoch, None))
    with beside() as other:
        running = other.start(print_one(statement, epoch, 1))
        delta = _moved(connection, print_one(statement, epoch, 0))
        return statement.last - statement.first, delta + running()


class Beside:
    """A second session of an epoch. It is committed when the block of `session` ends."""

    def __init__(self, connection: psycopg.Connection, threads: ThreadPoolExecutor) -> None:
        self._connection, self._threads = connection, threads

    def start(self, command: str) -> Callable[[], int]:
        """Begin to run a command, and return how to wait for its result."""
        for setting in SETTINGS:
            self._connection.execute(_sql(setting))
        return self._threads.submit(_moved, self._connection, command).result


def _moved(connection: psycopg.Connection, command: str) -> int:
    """Run a command, and return by how many the live keys become more."""
    row = connection.execute(_sql(command)).fetchone()
    assert row is not None
    return int(row[0])


def any_found(statement: InsertStaged) -> str:
    """Print a query whether any key of a slice may have a version already, by the first column of the key.

    Generated keys are new. A NULL is in no range.
    """
    relation = statement.relation
    table, first = state_table(relation.id), relation.key[0].name
    if first not in statement.columns:
        return f"select {'false' if first == ROW_ID else 'true'}"
    column = relation.column(first)
    if column.nullable or column.type.name not in _RANGED:
        return f"select exists (select from {table})"
    name = quoted(first)
    return (
        f"select exists (select from (select min({name}) as low, max({name}) as high from {_staged(statement)}) ends"
        f" cross join generate_series(0, {relation.vnode_count - 1}) vnode cross join lateral"
        f" (select from {table} t where t._vnode = vnode::smallint and t.{name} >= low and t.{name} <= high limit 1) f)"
    )


def inserting(statement: InsertStaged, epoch: Epoch, half: Half) -> str:
    """Print the command for rows whose keys are new. Of several rows with the same key, the last one wins."""
    relation = statement.relation
    names = ", ".join(map(quoted, stored_columns(relation)[:-1]))
    key = _key(relation)
    return (
        f"with made as (insert into {state_table(relation.id)} ({names}, _from) select distinct on ({key}) {names},"
        f" {epoch} from ({_rows(statement, half)}) brought order by {key}, _from desc returning 1)"
        " select count(*) from made"
    )


def overwriting(statement: InsertStaged, epoch: Epoch, half: Half) -> str:
    """Print the command for rows whose keys may have versions."""
    given = f"select *, true as _to from ({_rows(statement, half)}) brought"
    return f"with {write(statement.relation, given, epoch, prefer='g._from desc')} select {MADE} - ({ENDED})"


def _rows(statement: InsertStaged, half: Half) -> str:
    """Print a query of a half's rows: `_vnode`, the table's columns, and `_from`, which is the row's number."""
    relation = statement.relation
    values = ", ".join(
        f"{quoted(column.name) if column.name in statement.columns else left_out(column)}::{column.type}"
        f" as {quoted(column.name)}"
        for column in relation.columns
    )
    generated = relation.key[0].name == ROW_ID
    among = "" if half is None or not generated else f" where _row % 2 = {half}"
    key = [(quoted(part.name), relation.column(part.name).type) for part in relation.key]
    # Each OFFSET 0 keeps an expression from being evaluated twice: a generated key, and the vnode.
    rows = f"select {values}, _row as _from from {_staged(statement)}{among} offset 0"
    placed = f"select {vnode_postgres(key, relation.vnode_count)} as _vnode, numbered.* from ({rows}) numbered offset 0"
    return placed if half is None or generated else f"select * from ({placed}) placed where _vnode % 2 = {half}"


def _staged(statement: InsertStaged) -> str:
    within = f"_row >= {statement.first} and _row < {statement.last}"
    return f"(select * from {staging_table(statement.id)} where {within}) staged"


def _key(relation: Relation) -> str:
    return ", ".join(["_vnode", *(quoted(part.name) for part in relation.key)])


def _sql(text: str) -> Any:
    """Cast for psycopg, which wants literal strings. The text has quoted identifiers only."""
    return text
