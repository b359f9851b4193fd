"""The external database: what it is asked, and what it answers. What goes wrong there is `workers.cdc.connecting`'s."""

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
from workers.cdc.keys import BEYOND, ExternalKey, ExternalTable, Stretch, regions_query, rows_query
from workers.cdc.log import MESSAGE_BYTES_MAX
from workers.cdc.log_stream import LaterError, LogStream
from workers.cdc.patience import Patience
from workers.cdc.pgoutput import ColumnSent, lsn_text, piece_of, text_of
from workers.cdc.snapshots import Snapshot
from workers.cdc.streaming import Streaming

LOG_TIMEOUT: Final = "set statement_timeout = 0"
"""The log is decoded for as long as it takes: it is looked at now and then whether something has come."""


def ask(connection: psycopg.Connection, query: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
    """Return what a query gives; parameters are `$1`, .. Raises AwayError or ChangedError."""
    with asking(), RawCursor(connection) as cursor:
        return cursor.execute(sql(query), values or None).fetchall()


@contextmanager
def reading(connection: psycopg.Connection, table: ExternalTable) -> Generator[Snapshot]:
    """Read the table in one short transaction, and give its snapshot.

    The lock comes before the snapshot: a rewrite of the table that was committed in between would leave it empty for
    this snapshot, and one that comes after waits.
    """
    only = "" if table.partitioned else "only "
    together = (
        "begin isolation level repeatable read read only",
        f"lock table {only}{table.name} in access share mode",
        "select pg_current_snapshot()::text",
    )
    try:
        with asking(), connection.cursor() as cursor:
            # They are sent together: a server that is far away is waited for once.
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


@dataclass(slots=True)
class Session:
    """The worker's own two sessions with a source: while changes stream through one, the other is asked."""

    slot: str
    publication: str
    control: Patient
    log: Patient
    stream: LogStream | None = field(default=None, init=False)
    """What was asked of the log and is not read yet."""
    moving: Streaming | None = field(default=None, init=False)
    """The slot's way to where it was told to be."""
    patience: Patience = field(default_factory=Patience, init=False)
    """How long the log is waited for."""
    moves: Patience = field(default_factory=Patience, init=False)
    """How long the slot is waited for."""

    @classmethod
    def open(cls, conninfo: str, slot: str, publication: str) -> "Session":
        """Open both. Raises AwayError."""
        control = connect(conninfo, slot)
        try:
            log = connect(conninfo, slot)
            with asking():
                log.execute(sql(LOG_TIMEOUT))
            with suppress(psycopg.Error):
                # Not every system can tell. Decoding for who is gone would keep the slot from who comes next.
                log.execute("set client_connection_check_interval = '5s'")
        except BaseException:
            control.close()
            raise
        return cls(slot, publication, control, log)

    def close(self) -> None:
        """End both; what still streams is cut off."""
        self.forget()
        for connection in (self.log, self.control):
            with suppress(psycopg.Error):
                connection.close()

    def look(self, offset: int) -> Seen:
        """Return how slot and log stand. Raises AwayError where the changes after `offset` cannot be had."""
        # First of all, and it costs nothing: a server that hangs is known by it.
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
        """Return what identifies the server; a copy of it is the same. None where it does not say."""
        try:
            ((system,),) = ask(self.control, SYSTEM_POSTGRES)
        except (AwayError, ChangedError):
            return None
        return str(system)

    def advance(self, offset: int, clock: Callable[[], float]) -> None:
        """Let the external database forget what ends at or before a committed offset. It reads all that. Raises
        AwayError, LaterError where that takes longer than an epoch may wait for it; then it is to be called again.
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
        """Return the end of the log now, once it is flushed: every transaction that anybody has seen ends before it."""
        text = "select pg_current_wal_insert_lsn()::text, pg_current_wal_flush_lsn()::text"
        inserted, flushed = map(lsn_of, ask(self.control, text)[0])
        if flushed < inserted:
            # A commit flushes all that comes before it, and nobody else may come for long.
            ask(self.control, "select pg_logical_emit_message(true, 'tidefill', '')")
        return inserted

    def asked(self, after: int, limit: int | None, now: float) -> LogStream | None:
        """Return what was asked of the log before and has not come yet, or ask for it up to its present end: the
        transactions that the slot has not forgotten, in the order of their commits; with a limit, about so many
        messages. None where nothing at all was written after `after`.

        The server reads record after record until one ends at or after that place, and sends a transaction when it
        reads the record of its commit. So every commit that ends at or before it is among them.
        """
        if self.stream is None:
            upto = self.high()
            if upto > after:
                self.stream = LogStream.begin(self.log, self._peek(upto, limit), upto, limit)
                self.patience.asked(now)
        return self.stream

    def forget(self) -> None:
        """Have done with what was asked of the log."""
        for rows in (self.moving, self.stream):
            if rows is not None:
                rows.close()
        self.stream = self.moving = None

    def _peek(self, upto: int, limit: int | None) -> str:
        # The publication's name is one of a list of identifiers.
        slot, publication = quoted_text(self.slot), quoted_text(quoted(self.publication))
        most = "null" if limit is None else limit
        return (
            # What is longer is taken by nobody, and is not sent.
            f"select substr(data, 1, {MESSAGE_BYTES_MAX + 1})"
            f" from pg_logical_slot_peek_binary_changes({slot}, '{lsn_text(upto)}', {most},"
            f" 'proto_version', '1', 'publication_names', {publication})"
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
