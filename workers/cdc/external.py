"""Query the external database. `workers.cdc.connecting` classifies its errors."""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final

import psycopg
from psycopg.raw_cursor import RawCursor

from service.protocol.cdc import SYSTEM_POSTGRES, lsn_of
from service.protocol.quoting import quoted, quoted_text
from workers.cdc.connecting import ANSWER_SECONDS, BRIEF_SECONDS, AwayError, ChangedError, Patient, asking, connect, sql
from workers.cdc.fold import Key, Values
from workers.cdc.keys import BEYOND, ExternalKey, ExternalTable, Stretch, present_query, regions_query, rows_query
from workers.cdc.log import MESSAGE_BYTES_MAX
from workers.cdc.log_stream import LaterError, LogStream
from workers.cdc.patience import Patience
from workers.cdc.pgoutput import ColumnSent, lsn_text, piece_of, text_of
from workers.cdc.snapshots import Snapshot
from workers.cdc.streaming import Streaming

LOG_TIMEOUT: Final = "set statement_timeout = 0"
"""Decoding the log has no time limit on the server, because epochs poll for its answer (`workers.cdc.patience`)."""


def ask(connection: psycopg.Connection, query: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
    """Return the rows of a query with parameters `$1`, .. Raises AwayError or ChangedError."""
    with asking(), RawCursor(connection) as cursor:
        return cursor.execute(sql(query), values or None).fetchall()


@contextmanager
def reading(connection: psycopg.Connection, table: ExternalTable) -> Generator[Snapshot]:
    """Open a short transaction to read the table, and yield its snapshot. Raises AwayError or ChangedError.

    The table is locked before the snapshot is taken. If a rewrite of the table committed in between, the snapshot would
    see an empty table. A later rewrite waits for the lock.
    """
    only = "" if table.partitioned else "only "
    together = (
        "begin isolation level repeatable read read only",
        f"lock table {only}{table.name} in access share mode",
        "select pg_current_snapshot()::text",
    )
    try:
        with asking(), connection.cursor() as cursor:
            # Sent together, so that a distant server costs one round trip.
            cursor.execute(sql("; ".join(together)))
            while cursor.nextset():
                pass
            found = cursor.fetchall()
        yield Snapshot.parse(str(found[0][0]))
        with asking():
            connection.execute("commit")
    except BaseException:
        with suppress(psycopg.Error):
            connection.execute("rollback")
        raise


@dataclass(frozen=True, slots=True)
class Seen:
    """The state of the slot and the log."""

    confirmed: int
    restart: int | None
    inserted: int
    snapshot: Snapshot
    now: int
    """The server's clock, in microseconds since 1970."""

    def lag_ms(self, committed_at: int | None) -> float | None:
        """Return the age of a commit in milliseconds, by the clock of the server that stamped it."""
        return None if committed_at is None else (self.now - committed_at) / 1000


@dataclass(slots=True)
class Session:
    """The worker's two sessions with a source: changes stream through `log`, while `control` answers queries."""

    slot: str
    publication: str
    control: Patient
    log: Patient
    stream: LogStream | None = field(default=None, init=False)
    """The answer to the last request for the log, until it is read."""
    moving: Streaming | None = field(default=None, init=False)
    """The answer to the last request to advance the slot, until it has come."""
    patience: Patience = field(default_factory=Patience, init=False)
    """How long epochs wait for the log."""
    moves: Patience = field(default_factory=Patience, init=False)
    """How long epochs wait for the slot to advance."""

    @classmethod
    def open(cls, conninfo: str, slot: str, publication: str) -> "Session":
        """Open both sessions. Raises AwayError."""
        control = connect(conninfo, slot)
        try:
            log = connect(conninfo, slot)
            with asking():
                log.execute(sql(LOG_TIMEOUT))
            with suppress(psycopg.Error):
                # Not every system supports this. A server that decodes for a worker that is gone keeps the slot busy.
                log.execute("set client_connection_check_interval = '5s'")
        except BaseException:
            control.close()
            raise
        return cls(slot, publication, control, log)

    def close(self) -> None:
        """Close both sessions, and cut off what still streams."""
        self.forget()
        for connection in (self.log, self.control):
            with suppress(psycopg.Error):
                connection.close()

    def look(self, offset: int) -> Seen:
        """Return the state of slot and log. Raises AwayError where the changes after `offset` are not available."""
        # This trivial query comes first, with a short time limit, because it detects a server that hangs.
        self.control.patience = BRIEF_SECONDS
        found = ask(
            self.control,
            "select s.wal_status, s.confirmed_flush_lsn::text, s.restart_lsn::text,"
            " pg_current_wal_insert_lsn()::text, pg_current_snapshot()::text,"
            " s.database = current_database() and s.plugin = 'pgoutput',"
            " (extract(epoch from clock_timestamp()) * 1000000)::bigint"
            " from (select) one left join pg_replication_slots s on s.slot_name = $1",
            [self.slot],
        )
        self.control.patience = ANSWER_SECONDS
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
        """Return the system identifier of the server, which a copy of it shares. None where it is not readable."""
        try:
            ((system,),) = ask(self.control, SYSTEM_POSTGRES)
        except (AwayError, ChangedError):
            return None
        return str(system)

    def advance(self, offset: int, clock: Callable[[], float]) -> None:
        """Advance the slot to a committed offset, so that the external database may drop older log. It reads that log.

        Raises AwayError, and LaterError where that takes longer than an epoch may wait. Call it again then.
        """
        if self.moving is None:
            query = f"select end_lsn from pg_replication_slot_advance({quoted_text(self.slot)}, '{lsn_text(offset)}')"
            self.moving = Streaming.begin(self.log, query)
            self.moves.asked(clock())
        while not self.moving.over:
            if self.moving.take(self.moves.allows()) is None:
                self.moves.missed(clock())
                raise LaterError("the external database is still reading what its slot may forget")
        self.moves.came()
        self.moving = None

    def high(self) -> int:
        """Return the present end of the log, after it is flushed. Every visible transaction ends before it."""
        text = "select pg_current_wal_insert_lsn()::text, pg_current_wal_flush_lsn()::text"
        inserted, flushed = map(lsn_of, ask(self.control, text)[0])
        if flushed < inserted:
            # A commit flushes all log before it. Other sessions may not commit for a long time, so commit here.
            ask(self.control, "select pg_logical_emit_message(true, 'tidefill', '')")
        return inserted

    def asked(self, after: int, limit: int | None, now: float) -> LogStream | None:
        """Return the pending request for the log, or request it up to its present end.

        The answer has the transactions after the slot's confirmed place, in commit order; with a limit, about that many
        messages. None where nothing was written after `after`.

        The server reads records until one ends at or after the requested end. It sends a transaction when it reads the
        commit record. So the answer has every commit that ends at or before that end.
        """
        if self.stream is None:
            upto = self.high()
            if upto > after:
                self.stream = LogStream.begin(self.log, self._peek(upto, limit), upto, limit)
                self.patience.asked(now)
        return self.stream

    def forget(self) -> None:
        """Close the pending requests for the log and for the slot."""
        for rows in (self.moving, self.stream):
            if rows is not None:
                rows.close()
        self.stream = self.moving = None

    def _peek(self, upto: int, limit: int | None) -> str:
        # `publication_names` is a list of identifiers, so the name is quoted as an identifier and then as a text.
        slot, publication = quoted_text(self.slot), quoted_text(quoted(self.publication))
        most = "null" if limit is None else limit
        return (
            # One byte more than the limit shows that a message is too long. The rest of it need not be sent.
            f"select substr(data, 1, {MESSAGE_BYTES_MAX + 1})"
            f" from pg_logical_slot_peek_binary_changes({slot}, '{lsn_text(upto)}', {most},"
            f" 'proto_version', '1', 'publication_names', {publication})"
        )

    def snapshot(self) -> Snapshot:
        """Return a snapshot of the transactions that are visible now."""
        return Snapshot.parse(str(ask(self.control, "select pg_current_snapshot()::text")[0][0]))

    def older(self, snapshot: Snapshot, xid: int) -> str:
        """Return a text that names running transactions older than `xid`."""
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
        """Return the types of columns with their modifiers, as Postgres prints them."""
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
        """Return the regions of keys that were read: `SETTLED`, or `FRESH` + actor. Unread keys are left out."""
        if not any((settled, *fresh.values())) or not keys:
            return {}
        found = ask(self.control, regions_query(table, settled, fresh), _arrays(keys))
        return {keys[place - 1]: region for place, region in found if region != BEYOND}

    def rows(self, table: ExternalTable, keys: Sequence[Key]) -> tuple[dict[Key, Values], Snapshot]:
        """Return the current rows of these keys, and the snapshot in which they were read."""
        with reading(self.control, table) as snapshot:
            found = ask(self.control, rows_query(table), _arrays(keys))
        rows: dict[Key, Values] = {keys[place - 1]: tuple(map(piece_of, row)) for place, *row in found}
        return rows, snapshot

    def present(self, table: ExternalTable, keys: Sequence[Key]) -> tuple[set[Key], Snapshot]:
        """Return which of these keys the table has, and the snapshot in which they were looked up."""
        with reading(self.control, table) as snapshot:
            found = ask(self.control, present_query(table), _arrays(keys))
        return {keys[place - 1] for (place,) in found}, snapshot

    def table(self, table: ExternalTable) -> ExternalTable | None:
        """Return the table as the external catalog has it, with the collations of its key. None where it is missing.

        Raises AwayError, and ChangedError where a key column is missing.
        """
        found = ask(
            self.control,
            # Without a length, which may grow while the table is read: a cast would cut off the rest of a key.
            "select c.relkind = 'p', c.oid, a.attname, format_type(a.atttypid, -1),"
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
