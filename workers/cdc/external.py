"""The external database: sessions of our own kind, what they are asked, and what goes wrong there.

A session gives up by itself: it waits for no lock and no answer for long, and it is known by its name. What keeps it
from answering is an `AwayError`, which says why in words that hold no secret; the epoch goes on without the source.
"""

import os
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from psycopg.errors import error_from_result
from psycopg.pq.abc import PGconn
from psycopg.raw_cursor import RawCursor

from service.protocol.cdc import SYSTEM_POSTGRES, lsn_of
from service.protocol.quoting import quoted, quoted_text
from workers.cdc.apply import COPY_END, COPY_HEADER, is_refusal, reason_of
from workers.cdc.fold import Key, Values
from workers.cdc.keys import BEYOND, ExternalKey, ExternalTable, Stretch, regions_query, rows_query
from workers.cdc.pgoutput import ColumnSent, lsn_text, piece_of, text_of
from workers.cdc.snapshots import Snapshot

SETUP: Final = (
    "set statement_timeout = '60s'",
    # Behind whoever waits for an exclusive lock, everybody else would queue.
    "set lock_timeout = '2s'",
    # What a policy hides is refused, not left out.
    "set row_security = off",
    # A type outside of pg_catalog is printed with its schema, whatever the login's own path: so the plan has it too.
    "set search_path = pg_catalog",
    "set idle_in_transaction_session_timeout = '60s'",
    # Values travel as texts, which are to mean the same there and here.
    "set datestyle = 'ISO, YMD'",
    "set intervalstyle = 'postgres'",
    "set extra_float_digits = 3",
    "set bytea_output = 'hex'",
    "set timezone = 'UTC'",
    # A flush is waited for, a standby is not.
    "set synchronous_commit = 'local'",
    "set enable_seqscan = off",
    "set max_parallel_workers_per_gather = 0",
    "set jit = off",
)
LOG_TIMEOUT: Final = "set statement_timeout = '280s'"
"""The log streams for as long as its rows take to be written, millions of them where a transaction has so many; a
barrier has 300 seconds.
"""
_REACHED: Final[Mapping[str, Any]] = {
    "connect_timeout": 2,
    "keepalives": 1,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 15_000,
    "client_encoding": "UTF8",
}
_TAKEN_TOGETHER: Final = 256
"""Rows: what is done once for all of them costs each next to nothing, and a few hundred are no memory."""
_NO_ROW: Final = (0, len(COPY_END))
"""Sizes of what is no row: nothing more has arrived, or all has."""
_CHANGED: Final = ("42703", "42P01", "42804", "42883", "42846", "3F000")
"""SQLSTATEs of a table that is not the one that was described."""

_LOCKED, _CANCELLED, _FORBIDDEN = "55P03", "57014", "42501"
_HELD_UP: Final = (_LOCKED, _CANCELLED, _FORBIDDEN)
"""SQLSTATEs of what concerns one table, and passes: a lock, a limit of time, a privilege that was taken away."""

kept: Final[dict[tuple[int, str, str], psycopg.Connection]] = {}
"""The sessions of this process: one of each source."""


class AwayError(Exception):
    """The external database cannot be followed now; the text says why."""


class HeldUpError(AwayError):
    """What was asked for cannot be had now, other things can. `slow`: it took too long."""

    def __init__(self, reason: str, *, slow: bool = False) -> None:
        super().__init__(reason)
        self.slow = slow


class ChangedError(Exception):
    """The external table is not the one that was described; the text says why."""


def connect(conninfo: str, slot: str) -> psycopg.Connection:
    """Open a session. Raises AwayError."""
    try:
        connection = psycopg.connect(conninfo, autocommit=True, application_name=f"tidefill:cdc:{slot}", **_REACHED)
    except psycopg.OperationalError as error:
        raise AwayError(f"the external database does not answer: {reason_of(error)}") from error
    except psycopg.Error as error:
        # What it says may quote the connection string.
        raise AwayError("the source's connection settings are not valid") from error
    try:
        with asking():
            for statement in SETUP:
                connection.execute(_sql(statement))
    except BaseException:
        connection.close()
        raise
    return connection


@contextmanager
def cached(conninfo: str, slot: str) -> Generator[psycopg.Connection]:
    """Give this process's session of a source; one that met an error is closed. Raises AwayError."""
    key = (os.getpid(), conninfo, slot)
    connection = kept.pop(key, None) or connect(conninfo, slot)
    try:
        yield connection
    except BaseException:
        connection.close()
        raise
    kept[key] = connection


@contextmanager
def asking() -> Generator[None]:
    """Sort what goes wrong there: AwayError, ChangedError, or the refusal of a value as it is."""
    try:
        yield
    except psycopg.Error as error:
        if is_refusal(error):
            raise
        if error.sqlstate in _CHANGED:
            raise ChangedError(reason_of(error)) from error
        if error.sqlstate in _HELD_UP:
            reason = "somebody holds an exclusive lock on it" if error.sqlstate == _LOCKED else reason_of(error)
            raise HeldUpError(reason, slow=error.sqlstate == _CANCELLED) from error
        raise AwayError(reason_of(error)) from error


def stream(connection: psycopg.Connection, query: str) -> Generator[list[bytes]]:
    """Copy rows out in binary form, some at a time, as they come, without what comes before the first and after the
    last. Read to its end it is over; closed before that, it is cancelled.
    """
    with (
        asking(),
        connection.cursor() as cursor,
        cursor.copy(_sql(f"copy ({query}) to stdout (format binary)")) as rows,
    ):
        before = COPY_HEADER
        # Waiting costs more than a row does: it is done only when all that has arrived was taken.
        while sent := rows.read():
            assert sent[: len(before)] == before, "not the beginning of a binary COPY"
            row, before = sent[len(before) :], b""
            if len(row) > len(COPY_END):
                yield [row]  # pyright: ignore[reportReturnType] - a buffer of bytes
                yield from _arrived(connection.pgconn)


def _arrived(connection: PGconn) -> Iterator[list[bytes]]:
    taken: list[bytes] = []
    while True:
        size, row = connection.get_copy_data(1)
        if size < 0:
            result = connection.get_result()
            assert result is not None, "neither a row nor an end"
            raise error_from_result(result)
        if size in _NO_ROW:
            break
        taken.append(row)  # pyright: ignore[reportArgumentType] - a buffer of bytes
        if len(taken) == _TAKEN_TOGETHER:
            yield taken
            taken = []
    if taken:
        yield taken


def ask(connection: psycopg.Connection, query: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
    """Return what a query gives; parameters are `$1`, .. Raises AwayError or ChangedError."""
    with asking(), RawCursor(connection) as cursor:
        return cursor.execute(_sql(query), values or None).fetchall()


@contextmanager
def reading(connection: psycopg.Connection, table: ExternalTable) -> Generator[Snapshot]:
    """Read the table in one short transaction, and give its snapshot.

    The lock comes before the snapshot: a rewrite of the table that was committed in between would leave it empty for
    this snapshot, and one that comes after waits.
    """
    try:
        with asking():
            connection.execute("begin isolation level repeatable read read only")
            only = "" if table.partitioned else "only "
            connection.execute(_sql(f"lock table {only}{table.name} in access share mode"))
        yield Snapshot.parse(str(ask(connection, "select pg_current_snapshot()::text")[0][0]))
        with asking():
            connection.execute("commit")
    except BaseException:
        with suppress(psycopg.Error):
            connection.execute("rollback")
        raise


@dataclass(frozen=True, slots=True)
class Seen:
    """How slot and log stand."""

    confirmed: int
    restart: int | None
    inserted: int
    snapshot: Snapshot
    now: int
    """The server's clock, in microseconds since 1970."""

    def lag_ms(self, committed_at: int | None) -> float | None:
        """Return how old a commit is by the clock that stamped it."""
        return None if committed_at is None else (self.now - committed_at) / 1000


@dataclass(frozen=True, slots=True)
class Session:
    """The worker's own two sessions with a source: while changes stream through one, the other is asked."""

    slot: str
    publication: str
    control: psycopg.Connection
    log: psycopg.Connection

    @classmethod
    def open(cls, conninfo: str, slot: str, publication: str) -> "Session":
        """Open both. Raises AwayError."""
        control = connect(conninfo, slot)
        try:
            log = connect(conninfo, slot)
            with asking():
                log.execute(_sql(LOG_TIMEOUT))
        except BaseException:
            control.close()
            raise
        return cls(slot, publication, control, log)

    def close(self) -> None:
        """End both; what still streams is cut off."""
        for connection in (self.log, self.control):
            with suppress(psycopg.Error):
                connection.close()

    def look(self, offset: int) -> Seen:
        """Return how slot and log stand. Raises AwayError where the changes after `offset` cannot be had."""
        found = ask(
            self.control,
            "select s.wal_status, s.confirmed_flush_lsn::text, s.restart_lsn::text,"
            " pg_current_wal_insert_lsn()::text, pg_current_snapshot()::text,"
            " s.database = current_database() and s.plugin = 'pgoutput',"
            " (extract(epoch from clock_timestamp()) * 1000000)::bigint"
            " from (select) one left join pg_replication_slots s on s.slot_name = $1",
            [self.slot],
        )
        status, confirmed, restart, inserted, snapshot, ours, now = found[0]
        again = "DROP and CREATE the source and its tables again"
        if confirmed is None or not ours:
            raise AwayError(f'the slot "{self.slot}" was dropped: {again}')
        if status == "lost":
            raise AwayError(f'the slot "{self.slot}" was invalidated, its log is removed: {again}')
        if lsn_of(confirmed) > offset:
            raise AwayError(f'the slot "{self.slot}" was made anew or moved on without us, to {confirmed}: {again}')
        if lsn_of(inserted) < offset:
            lost = f"its log ends at {inserted}, before {lsn_text(offset)}, up to which it was read"
            raise AwayError(f"the server is another one, or has lost what it had: {lost}; {again}")
        start = None if restart is None else lsn_of(restart)
        return Seen(lsn_of(confirmed), start, lsn_of(inserted), Snapshot.parse(snapshot), int(now))

    def system(self) -> str | None:
        """Return what identifies the server; a copy of it is the same. None where it does not say."""
        try:
            ((system,),) = ask(self.control, SYSTEM_POSTGRES)
        except (AwayError, ChangedError):
            return None
        return str(system)

    def advance(self, offset: int) -> None:
        """Let the external database forget what ends at or before a committed offset."""
        ask(self.control, "select pg_replication_slot_advance($1, $2::pg_lsn)", [self.slot, lsn_text(offset)])

    def high(self) -> int:
        """Return the end of the log now, once it is flushed: every transaction that anybody has seen ends before it."""
        text = "select pg_current_wal_insert_lsn()::text, pg_current_wal_flush_lsn()::text"
        inserted, flushed = map(lsn_of, ask(self.control, text)[0])
        if flushed < inserted:
            # A commit flushes all that comes before it, and nobody else may come for long.
            ask(self.control, "select pg_logical_emit_message(true, 'tidefill', '')")
        return inserted

    def changes(self, upto: int, limit: int | None) -> Iterator[bytes]:
        """Give the messages of the transactions that the slot has not forgotten, in the order of their commits, up to a
        place in the log that is flushed; with a limit, about so many.

        The server reads record after record until one ends at or after `upto`, and sends a transaction when it reads
        the record of its commit. So every commit that ends at or before `upto` is among them.
        """
        for rows in stream(self.log, self._peek(upto, limit)):
            # One field: their number, its length, the message.
            yield from [bytes(row[6:]) for row in rows]

    def _peek(self, upto: int, limit: int | None) -> str:
        # The publication's name is one of a list of identifiers.
        slot, publication = quoted_text(self.slot), quoted_text(quoted(self.publication))
        return (
            f"select data from pg_logical_slot_peek_binary_changes({slot}, '{lsn_text(upto)}',"
            f" {'null' if limit is None else limit}, 'proto_version', '1', 'publication_names', {publication})"
        )

    def snapshot(self) -> Snapshot:
        """Return what is visible now."""
        return Snapshot.parse(str(ask(self.control, "select pg_current_snapshot()::text")[0][0]))

    def older(self, snapshot: Snapshot, xid: int) -> str:
        """Say which transactions that are older than `xid` still run."""
        found = ask(
            self.control,
            "select 'process ' || pid || ' since ' || date_trunc('second', xact_start)::text from pg_stat_activity"
            " where backend_xid is not null and age(backend_xid) > $1 union all"
            " select 'prepared transaction ' || gid || ' since ' || date_trunc('second', prepared)::text"
            " from pg_prepared_xacts where age(transaction) > $1 limit 5",
            [max(snapshot.xmax - xid, 0)],
        )
        return ", ".join(str(text) for (text,) in found) or f"transaction {snapshot.xmin}"

    def types(self, columns: Sequence[ColumnSent]) -> list[str]:
        """Return the full types of columns."""
        found = ask(
            self.control,
            "select format_type(o, m) from unnest($1::oid[], $2::int[]) with ordinality u(o, m, n) order by n",
            [[column.oid for column in columns], [column.modifier for column in columns]],
        )
        return [str(kind) for (kind,) in found]

    def regions(
        self,
        table: ExternalTable,
        keys: Sequence[Key],
        settled: Sequence[Stretch],
        fresh: Mapping[int, Sequence[Stretch]],
    ) -> dict[Key, int]:
        """Say where keys lie that are not beyond what was read."""
        if not any((settled, *fresh.values())) or not keys:
            return {}
        found = ask(self.control, regions_query(table, settled, fresh), _arrays(keys))
        return {keys[place - 1]: region for place, region in found if region != BEYOND}

    def rows(self, table: ExternalTable, keys: Sequence[Key]) -> tuple[dict[Key, Values], Snapshot]:
        """Return the rows that have these keys now, and the snapshot in which they were read."""
        with reading(self.control, table) as snapshot:
            found = ask(self.control, rows_query(table), _arrays(keys))
        rows: dict[Key, Values] = {keys[place - 1]: tuple(map(piece_of, row)) for place, *row in found}
        return rows, snapshot

    def table(self, table: ExternalTable) -> ExternalTable | None:
        """Return the table as it is in the catalog, with the order of its key. None: it is not there."""
        found = ask(
            self.control,
            "select c.relkind = 'p', c.oid, a.attname, format_type(a.atttypid, a.atttypmod),"
            " quote_ident(n.nspname) || '.' || quote_ident(l.collname)"
            " from pg_class c join pg_namespace s on s.oid = c.relnamespace and s.nspname = $1"
            " left join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped"
            " left join pg_collation l on l.oid = a.attcollation left join pg_namespace n on n.oid = l.collnamespace"
            " where c.relname = $2 and c.relkind in ('r', 'p')",
            [table.scan.external_schema, table.scan.external_table],
        )
        if not found:
            return None
        known = {name: ExternalKey(name, kind, collation) for _, _, name, kind, collation in found}
        missing = [part.name for part in table.key if part.name not in known]
        if missing:
            raise ChangedError(f'it has no column "{missing[0]}" any more')
        partitioned, oid, *_ = found[0]
        key = tuple(known[part.name] for part in table.key)
        return ExternalTable(table.relation, table.scan, key, partitioned, oid)


def _arrays(keys: Sequence[Key]) -> list[list[str | None]]:
    return [[text_of(piece) for piece in column] for column in zip(*keys, strict=True)]


def _sql(text: str) -> Any:
    """Psycopg wants literal strings; these are printed from quoted identifiers and literals."""
    return text
