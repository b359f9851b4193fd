"""Write folded changes into the versioned tables: one transaction for all tables of a source in an epoch.

Rows are copied as texts into a temporary table. One SQL command then casts them to their types and writes them, as DML
does. A key may already have a version that begins in this epoch, written by an earlier part of the log or by a page.
The command then overwrites or deletes that version.
"""

from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

import psycopg
from psycopg import generators
from psycopg.abc import PQGen
from psycopg.errors import error_from_result
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGconn
from psycopg.waiting import Wait

from service.protocol.answering import words
from service.protocol.cdc import fitting_postgres
from service.protocol.columns import ColumnType, TypeName
from service.protocol.ids import Epoch, RelationId
from service.protocol.kept import nulled_query, or_null_postgres
from service.protocol.quoting import quoted
from service.protocol.relation import ALIVE, Relation, state_table
from service.protocol.vnodes import vnode_postgres
from workers.cdc import changes_log
from workers.cdc.fold import Folded, Key, Lacking, Values
from workers.cdc.pgoutput import NULL, Piece, piece_of
from workers.state_store.connections import ANYHOW, BY_KEY, WRITING
from workers.state_store.port import SqlStore
from workers.state_store.statements import ENDED_AND_MADE, live_version, write

SETUP: Final = (
    *WRITING,
    "set intervalstyle = 'postgres'",
    "set bytea_output = 'hex'",
    "set client_min_messages = 'warning'",
    "set statement_timeout = '240s'",
    # The transaction is idle while the external server decodes a large transaction.
    "set idle_in_transaction_session_timeout = '300s'",
)
COPY_HEADER: Final = b"PGCOPY\n\xff\r\n\0" + bytes(8)
COPY_END: Final = b"\xff\xff"
_TRUE: Final = b"\0\0\0\1\1"
_FALSE: Final = b"\0\0\0\1\0"
REFUSED: Final = ("22", "23502", "23514", "54")
"""Prefixes of the SQLSTATEs for a row that the table can never store."""
_NOT_KEPT: Final = "23514"
"""A check of the table refuses a value."""


@dataclass(frozen=True, slots=True)
class Written:
    """How many versions were inserted at new keys, and how many were ended or removed again."""

    made: int
    ended: int


@contextmanager
def applying(store: SqlStore) -> Generator["Applying"]:
    """Yield the writer of one source's epoch. The transaction is fenced and committed when the context ends."""
    with store.transaction(SETUP) as connection:
        yield Applying(connection)


@dataclass(frozen=True, slots=True)
class Applying:
    """One open transaction. `applying` ends it."""

    connection: psycopg.Connection

    def load(self, relation: Relation, folded: Folded) -> list[Key]:
        """Copy folded changes to the temporary table, and fill unsent values from the stored rows.

        Return the keys of the rows whose base row is not stored.
        """
        self._begin(relation)
        lacked = [tuple(NULL if value is None else value for value in row.values) for row in folded.lacking.values()]
        self._copy(_beside(relation), _rows(relation, chain(folded.made.values(), lacked), folded.ended))
        if not lacked:
            return []
        if relation.lake is not None:
            # The log stores no row that could be the base of another one.
            return list(folded.lacking)
        self._copy(_bases(relation), _base_rows(folded.lacking))
        found = self.connection.execute(_sql(lacking_query(relation)))
        lacking: list[Key] = [tuple(map(piece_of, row)) for row in found]
        self.connection.execute(_sql(fill_command(relation)))
        return lacking

    def replace(self, relation: Relation, rows: Sequence[tuple[Key, Values]], ended: Iterable[Key]) -> None:
        """Replace changes in the temporary table by rows read from the external database, and by keys without a row."""
        ended = tuple(ended)
        gone = _rows(relation, (), (*(key for key, _ in rows), *ended))
        self.connection.execute(
            _sql(f"create temp table if not exists asked (like {_beside(relation)}) on commit drop")
        )
        self._copy("pg_temp.asked", gone)
        keys = [f"c{place}" for place in key_places(relation)]
        same = " and ".join(f"b.{key} = a.{key}" for key in keys)
        self.connection.execute(_sql(f"delete from {_beside(relation)} b using pg_temp.asked a where {same}"))
        self.connection.execute("drop table pg_temp.asked")
        self._copy(_beside(relation), _rows(relation, [values for _, values in rows], ended))

    def begin(self, relation: Relation, epoch: Epoch, *, nulls: bool = False) -> None:
        """Send the command that writes the temporary table at `epoch`. Only `written` may use the connection next.

        `nulls`: a value that cannot be kept is stored as NULL.
        """
        for statement in BY_KEY:
            self.connection.execute(_sql(statement))
        self.connection.wait(sending(self.connection.pgconn, write_command(relation, epoch, nulls=nulls).encode()))

    def written(self) -> Written:
        """Wait for the command of `begin`. Raises the server's error."""
        (result,) = self.connection.wait(generators.fetch_many(self.connection.pgconn))
        if result.status != ExecStatus.TUPLES_OK:
            raise error_from_result(result)
        ended, made = (int(result.get_value(0, column) or b"") for column in (0, 1))
        for statement in ANYHOW:
            self.connection.execute(_sql(statement))
        return Written(made=made, ended=ended)

    def nulled(self, relation: Relation) -> int:
        """Return how many values this transaction has stored as NULL."""
        ((count,),) = self.connection.execute(_sql(nulled_query(relation.id))).fetchall()
        return int(count)

    def truncate(self, relation: Relation, epoch: Epoch) -> Written:
        """End every row, and delete the versions that begin in this epoch."""
        if relation.lake is not None:
            self.connection.execute(_sql(changes_log.truncate_command(relation.id, epoch)))
            return Written(made=0, ended=0)
        table = state_table(relation.id)
        alive = f"_to = {ALIVE}"
        ended = self.connection.execute(
            _sql(f"update {table} set _to = {epoch} where {alive} and _from < {epoch}")
        ).rowcount
        removed = self.connection.execute(_sql(f"delete from {table} where {alive} and _from = {epoch}")).rowcount
        return Written(made=0, ended=ended + removed)

    def undo(self, relation: Relation, prev: Epoch) -> None:
        """Roll the table back to `prev`, as a recovery does."""
        if relation.lake is not None:
            self.connection.execute(_sql(changes_log.undo_command(relation.id, prev)))
            return
        table = state_table(relation.id)
        self.connection.execute(_sql(f"delete from {table} where _from > {prev}"))
        self.connection.execute(_sql(f"update {table} set _to = {ALIVE} where _to > {prev} and _to <> {ALIVE}"))

    def truncated(self, relation: RelationId, *, after: Epoch, upto: Epoch) -> int | None:
        """Return the place of the last truncation in the log of a table in a lake, None if there is none."""
        query = changes_log.truncation_query(relation, after=after, upto=upto)
        ((place,),) = self.connection.execute(_sql(query)).fetchall()
        return place

    def trim(self, relation: RelationId, upto: Epoch) -> int:
        """Remove from a log what the table in the lake has, and return how many rows wait."""
        self.connection.execute(_sql(changes_log.trim_command(relation, upto)))
        return self.waiting(relation)

    def waiting(self, relation: RelationId) -> int:
        """Return how many rows the log of a table in a lake has."""
        ((rows,),) = self.connection.execute(_sql(changes_log.waiting_query(relation))).fetchall()
        return int(rows)

    def find_refused(
        self, relation: Relation, folded: Folded, epoch: Epoch, *, nulls: bool
    ) -> tuple[Key, psycopg.Error] | None:
        """Return the key of a row that the table refuses, and the error. None where all changes can be written."""
        rows = [*folded.made.items(), *folded.lacking.items()]
        refused = self._tried(relation, folded, epoch, nulls=nulls)
        if refused is None:
            return None
        while len(rows) > 1:
            half = rows[: len(rows) // 2]
            made = {key: row for key, row in half if not isinstance(row, Lacking)}
            lacking = {key: row for key, row in half if isinstance(row, Lacking)}
            error = self._tried(relation, Folded(made, lacking), epoch, nulls=nulls)
            rows, refused = (rows[len(half) :], refused) if error is None else (half, error)
        return rows[0][0], refused

    def _tried(self, relation: Relation, folded: Folded, epoch: Epoch, *, nulls: bool) -> psycopg.Error | None:
        refused = None
        try:
            with self.connection.transaction(force_rollback=True):
                self.load(relation, folded)
                self.begin(relation, epoch, nulls=nulls)
                self.written()
        except psycopg.Error as error:
            if not is_refusal(error):
                raise
            refused = error
        return refused

    def _begin(self, relation: Relation) -> None:
        columns = ", ".join(f"c{place} text" for place in range(len(relation.columns)))
        keys = ", ".join(f"k{place} text, b{place} text" for place in range(len(relation.key)))
        for table, layout in (
            (_beside(relation), f"_to boolean, {columns}"),
            (_bases(relation), f"{keys}, lacks text"),
        ):
            # The session keeps the table, because creating one in every epoch would bloat the catalog.
            self.connection.execute(
                _sql(f"create temp table if not exists {table.split('.')[1]} ({layout}) on commit delete rows")
            )
            self.connection.execute(_sql(f"truncate {table}"))

    def _copy(self, table: str, rows: Iterable[bytes]) -> None:
        with self.connection.cursor() as cursor, cursor.copy(_sql(f"copy {table} from stdin (format binary)")) as copy:
            copy.write(b"".join((COPY_HEADER, *rows, COPY_END)))


def is_refusal(error: psycopg.Error) -> bool:
    """Return whether a row's value caused the error, not the server or the worker."""
    return error.sqlstate is not None and error.sqlstate.startswith(REFUSED)


def way_out(error: psycopg.Error, relation: Relation) -> str:
    """Return what a user can do about a value that the table's type does not have. Empty for other refusals."""
    if error.sqlstate != _NOT_KEPT:
        return ""
    if any(part.name == error.diag.column_name for part in relation.key):
        # A key column can be neither text in another order nor NULL.
        return "; change the value there"
    other = "CREATE the table with this column as text, or with unkeepable.handling.mode = 'null'"
    return f"; change the value there, or {other}"


def reason_of(error: psycopg.Error) -> str:
    """Return the server's message, as one line of bounded length."""
    return words(error.diag.message_primary or next(iter(str(error).splitlines()), type(error).__name__))


def write_command(relation: Relation, epoch: Epoch, *, nulls: bool = False) -> str:
    """Return the command that writes the temporary table. `nulls` is as in `Applying.begin`.

    It returns one row: versions ended, and versions inserted at keys that had none of this epoch.
    """
    # Different texts may be the same key, so keys are compared only after the cast to their type.
    key = key_places(relation)
    typed = ", ".join(
        f"{_stored_as(f'c{place}', column.type, relation if nulls and place not in key else None)}"
        f" as {quoted(column.name)}"
        for place, column in enumerate(relation.columns)
    )
    vnode = vnode_postgres(
        [(f"typed.{quoted(part.name)}", kind) for part, kind in zip(relation.key, relation.key_types, strict=True)],
        relation.vnode_count,
    )
    # `_to` says whether the key has a row afterwards. The name is reserved, so no user's column has it.
    rows = f"select _to, {typed} from {_beside(relation)}"
    if relation.lake is not None:
        return changes_log.append_command(relation, rows, vnode, epoch)
    return (
        f"with typed as materialized ({rows}),"
        f" {write(relation, f'select {vnode} as _vnode, typed.* from typed', epoch)} select {ENDED_AND_MADE}"
    )


def merge_command(relation: Relation, source: str, epoch: Epoch, *, stamp: str | None) -> str:
    """Return the command that writes the rows of a table `source` that differ from the stored ones. Pure.

    It returns one row: versions ended, and versions made. A row differs if any value has another binary form, because
    equal numbers may have different digits. The time of its commit (`stamp`) does not count.
    """
    compared = [quoted(column.name) for column in relation.columns if column.name != stamp]
    old, new = (", ".join(f"{row}.{name}" for name in compared) for row in ("t", "p"))
    same = live_version(relation, "p", f"record_image_eq(row({old}), row({new})) as same")
    names = ", ".join(["_vnode", *(quoted(column.name) for column in relation.columns)])
    given = f"select {names}, true as _to from {source} p left join lateral ({same}) s on true where s.same is not true"
    return f"with {write(relation, given, epoch)} select {ENDED_AND_MADE}"


def _stored_as(text: str, kind: ColumnType, nulls: Relation | None) -> str:
    typed = _typed(text, kind)
    return typed if nulls is None else or_null_postgres(text, typed, kind, nulls.id)


def _typed(text: str, kind: ColumnType) -> str:
    return fitting_postgres(text, kind) if kind.name is TypeName.NUMERIC else f"{text}::{kind}"


def lacking_query(relation: Relation) -> str:
    """Return the query for the keys of rows with unsent values whose base row is not stored."""
    keys = ", ".join(f"k{place}" for place in range(len(relation.key)))
    return (
        f"with based as materialized ({_based(relation)}) select {keys} from based p"
        f" where not exists (select 1 from {state_table(relation.id)} t where {_stored(relation)})"
    )


def fill_command(relation: Relation) -> str:
    """Return the command that fills unsent values from the stored base rows."""
    filled = ", ".join(
        f"c{place} = case when {place} = any(p.lacks) then t.{quoted(column.name)}::text else b.c{place} end"
        for place, column in enumerate(relation.columns)
    )
    mine = " and ".join(f"b.c{place} = p.k{part}" for part, place in enumerate(key_places(relation)))
    return (
        f"with based as materialized ({_based(relation)}) update {_beside(relation)} b set {filled}"
        f" from based p join {state_table(relation.id)} t on {_stored(relation)} where b._to and {mine}"
    )


def _based(relation: Relation) -> str:
    parts = list(zip(relation.key, relation.key_types, strict=True))
    vnode = vnode_postgres([(f"b{place}::{kind}", kind) for place, (_, kind) in enumerate(parts)], relation.vnode_count)
    typed = ", ".join(f"b{place}::{kind} as {quoted(part.name)}" for place, (part, kind) in enumerate(parts))
    keys = ", ".join(f"k{place}" for place in range(len(parts)))
    return f"select {vnode} as _vnode, {typed}, {keys}, lacks::int[] as lacks from {_bases(relation)}"


def _stored(relation: Relation) -> str:
    # The key of a followed table has no NULL, so `=` suffices.
    columns = ("_vnode", *(quoted(part.name) for part in relation.key))
    return " and ".join((*(f"t.{name} = p.{name}" for name in columns), f"t._to = {ALIVE}"))


def key_places(relation: Relation) -> list[int]:
    """Return the positions of the key's columns among all columns."""
    names = [column.name for column in relation.columns]
    return [names.index(part.name) for part in relation.key]


def _rows(relation: Relation, made: Iterable[Values], ended: Iterable[Key]) -> Iterable[bytes]:
    """Yield whole rows, and keys without a row, in the form of binary COPY."""
    count, places = len(relation.columns), key_places(relation)
    head = (count + 1).to_bytes(2, "big")
    yes, no = head + _TRUE, head + _FALSE
    for values in made:
        yield yes + b"".join(values)  # pyright: ignore[reportCallIssue, reportArgumentType] - none is None
    for key in ended:
        row: list[Piece] = [NULL] * count
        for place, value in zip(places, key, strict=True):
            row[place] = value
        yield no + b"".join(row)  # pyright: ignore[reportCallIssue, reportArgumentType] - as above


def _base_rows(rows: Mapping[Key, Lacking]) -> Iterable[bytes]:
    for key, row in rows.items():
        lacks = ",".join(str(place) for place, value in enumerate(row.values) if value is None)
        pairs = [value for pair in zip(key, row.base, strict=True) for value in pair]
        fields = [*(NULL if value is None else value for value in pairs), piece_of(f"{{{lacks}}}")]
        yield len(fields).to_bytes(2, "big") + b"".join(fields)


def _beside(relation: Relation) -> str:
    # The number of columns is part of the name, because the session keeps the table, and a reload may add columns.
    return f"pg_temp.cdc_{relation.id}_{len(relation.columns)}"


def _bases(relation: Relation) -> str:
    return f"pg_temp.cdc_{relation.id}_base"


def sending(pgconn: PGconn, command: bytes) -> PQGen[None]:
    """Send a command without reading its results."""
    pgconn.send_query(command)
    while pgconn.flush():
        yield Wait.W


def _sql(text: str) -> Any:
    """Return `text` as a type that psycopg accepts: it wants literal strings, but these contain quoted identifiers."""
    return text
