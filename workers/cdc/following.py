"""Process the log of one source in one epoch, after its pages: decode, fold and write it in one transaction.

The end of the log is determined after the pages were read. Every transaction that a page shows therefore ends before
it. Afterwards each table equals the external table, up to its positions, as of the last commit that was read (I1). A
row that was requested from the external database may be newer than that commit. Then the epoch determines a new end of
the log and reads on.

While the state store writes one part of the log, the worker decodes and folds the next. Before that write is complete,
it requests no row for the next part and copies none of it to the store.

After the log was read up to its determined end, the offset moves to that end, even if there was no transaction.
Otherwise the slot would retain the log of idle tables for ever.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import psycopg

from service.protocol.barrier import Barrier
from service.protocol.ids import Epoch, FragmentId
from workers.cdc.apply import Applying, applying, is_refusal, reason_of, way_out
from workers.cdc.budget import Budget
from workers.cdc.connecting import PART_SECONDS, AwayError, ChangedError
from workers.cdc.external import Seen, Session, ask
from workers.cdc.fold import Applies, Change, Folded, Key, Values, fold
from workers.cdc.keys import FRESH, SETTLED, keyed
from workers.cdc.log import ROW_TOO_LARGE, LogReader, Part, Picked, Truncated, picked, undecodable
from workers.cdc.log_stream import LaterError, LogStream
from workers.cdc.pgoutput import TableSent, text_of
from workers.cdc.snapshots import Snapshot
from workers.cdc.table_epoch import TableEpoch, altered, has_other_names, look_at_publication
from workers.state_store.port import SqlStore

_TRIES: Final = 100
"""How often a row is read again until it shows all decoded transactions.

A transaction is in the log shortly before it is visible. The delay is longer only where it waits for a standby.
"""
WRITING_SECONDS: Final = 150.0
"""How long one transaction may take, because one epoch writes all of it, and all barriers wait for that."""
READING_SECONDS: Final = 20.0
"""After this time an epoch stops at the next commit."""
ENDING_SECONDS: Final = 200.0
"""After this time an epoch is undone, because a barrier has 300 seconds in total."""
TOO_LONG: Final = f"a transaction takes more than {WRITING_SECONDS:.0f} s to be written"


@dataclass(frozen=True, slots=True)
class Followed:
    """The state of the source after the epoch."""

    offset: int
    undecided: tuple[int, ...]
    changes: int
    commit_lag_ms: float | None
    """The age of the last commit in milliseconds after it was written."""
    seen: Seen
    """The state of slot and log after that."""


def follow(
    session: Session,
    store: SqlStore,
    tables: Sequence[TableEpoch],
    *,
    offset: int,
    undecided: Sequence[int],
    limit: int | None,
    barrier: Barrier,
    clock: Callable[[], float],
) -> Followed:
    """Read and write the log from `offset` to its present end, or about `limit` messages, or for READING_SECONDS.

    When it returns, all changes are durable. Raises AwayError, and LaterError where the next epoch shall try again at
    once. Then nothing is written, but broken tables stay broken. Raises what the state store raises.
    """
    with applying(store) as writing:
        by_id = {table.fragment: table for table in tables}
        one = _Epoch(session, writing, by_id, barrier.curr, session.snapshot(), offset, clock)
        try:
            end = one.run(limit)
        except LaterError:
            raise
        except AwayError as error:
            # Up to Postgres 17, log from a time without the publication cannot be decoded, even if it exists again.
            with suppress(AwayError):
                look_at_publication(session, tables)
            if any(table.broken is not None for table in tables):
                # The next try does not include the broken tables, so it may succeed.
                raise LaterError(str(error)) from error
            raise
        session.control.allow(PART_SECONDS)
        # Check again after reading, because a change of slot or publication in the meantime may have lost changes.
        seen = session.look(offset)
        look_at_publication(session, tables)
        for table in tables:
            if table.broken is not None:
                writing.undo(table.table.relation, barrier.prev)
            elif table.nulls:
                table.nulled += writing.nulled(table.table.relation)
    hidden = seen.snapshot.hidden([*undecided, *one.reader.xids])
    return Followed(end, hidden, one.reader.changes, seen.lag_ms(one.reader.committed_at), seen)


@dataclass
class _Epoch:
    session: Session
    writing: Applying
    tables: Mapping[FragmentId, TableEpoch]
    curr: Epoch
    now: Snapshot
    offset: int
    clock: Callable[[], float]

    def __post_init__(self) -> None:
        self.began = self.clock()
        self.reader = LogReader(self.offset, self.now, self._describe, self._enough)
        self.budget = Budget(self.began)
        self.log: LogStream | None = None
        """The answer that is being read."""
        self.second = False
        """Whether this epoch has already read the log once."""
        self.stopped = False
        self.asked = False
        self.under_way: Generator[None] | None = None
        """The write in progress, suspended until the state store has finished."""
        self.charged: FragmentId | None = None
        """The table to which the write's time is charged. None where its transaction has ended."""

    def run(self, limit: int | None) -> int:
        """Read and write the log, and return the new offset."""
        try:
            return self._run(limit)
        finally:
            self._written()

    def _run(self, limit: int | None) -> int:
        while True:
            self.asked, self.stopped, before = False, False, self.reader.at
            self.log = log = self.session.asked(before, limit, self.clock())
            if log is None:
                # The external database has written nothing since, so there is no log to read.
                self.session.patience.slow = False
                return before
            told, limit = self._read(log), log.limit
            if self.stopped and any(table.fresh for table in self.tables.values()):
                # The log takes precedence. The next epoch reads no pages, so it can keep its part of the log.
                raise LaterError("the log takes long to be read")
            if self.asked:
                limit = None
            elif self.stopped or (limit is not None and told >= limit and self.reader.at > before):
                return self.reader.at
            elif limit is None or told < limit:
                return max(log.upto, self.reader.at)
            else:
                # All messages belong to transactions that were read before, so request more.
                limit *= 4
            self.second = True

    def _read(self, log: LogStream) -> int:
        """Read and write one answer, and return its number of messages."""
        told, patience = 0, self.session.patience
        self.budget = Budget(self.clock() - log.waited)
        seconds = patience.allows(second=self.second)
        log.collecting = log.collecting or (patience.stalled and not self.second)
        try:
            for part in self.reader.read(log.messages(seconds, until=self.began + ENDING_SECONDS, clock=self.clock)):
                told += part.messages
                self._take(part)
            self._written()
        except LaterError:
            patience.missed(self.clock(), second=self.second)
            patience.stalled = patience.stalled or log.collecting
            raise
        except BaseException:
            self.session.forget()
            raise
        self.session.forget()
        patience.came()
        patience.slow = patience.slow or self.stopped
        return told

    def _enough(self) -> bool:
        """Return whether to stop at this commit.

        It does not stop after a row was requested. That row is newer, so the log must be read up to the time of the
        row.
        """
        self.stopped = not (self.second or self.asked) and self.clock() - self.began > READING_SECONDS
        return self.stopped

    def _take(self, part: Part | Truncated) -> None:
        if isinstance(part, Truncated):
            self._written()
            for fragment in part.fragments:
                self._truncate(self.tables[fragment])
                self._charge(fragment)
            return
        for fragment, key in self.reader.too_large.items():
            table = self.tables[fragment]
            table.breaks(f"{ROW_TOO_LARGE} at {_keyed(table, key)}" if key else ROW_TOO_LARGE)
        if part.changes:
            self.session.control.allow(PART_SECONDS)
            # The tables were decoded together, so the time is charged to the table with the most changes.
            self._charge(max(part.changes, key=lambda fragment: len(part.changes[fragment])))
        for fragment, changes in part.changes.items():
            self._write(self.tables[fragment], changes)
        self.reader.drop({fragment for fragment, table in self.tables.items() if table.broken is not None})
        if part.ended:
            self.charged = None
            self.budget.ended()
        elif (most := self.budget.exceeded(WRITING_SECONDS)) is not None:
            self.tables[most].breaks(TOO_LONG)
            raise AwayError(self.tables[most].broken)

    def _charge(self, fragment: FragmentId | None) -> None:
        assert self.log is not None
        self.budget.charge(fragment, self.clock() - self.log.waited)

    def _written(self) -> None:
        """Wait for the write in progress. Raises its error."""
        under_way, self.under_way = self.under_way, None
        if under_way is not None:
            next(under_way, None)
            self._charge(self.charged)

    def _truncate(self, table: TableEpoch) -> None:
        if table.broken is not None:
            return
        written = self.writing.truncate(table.table.relation, self.curr)
        table.ended += written.ended
        table.changes += 1
        # All rows from here on are newer than the truncation, and the log has all of their changes.
        table.truncated, table.patched = True, {}

    def _write(self, table: TableEpoch, changes: Sequence[Change]) -> None:
        if table.broken is not None:
            return
        try:
            folded = fold(changes, *self._counting(table, changes))
        except (ChangedError, psycopg.DataError) as error:
            altered(self.session, table, str(error))
            return
        if not (folded.made or folded.lacking or folded.ended or folded.asked):
            return
        self._charge(table.fragment)
        self._written()
        if table.broken is None:
            self.under_way, self.charged = self._writing(table, folded, len(changes)), table.fragment
            next(self.under_way, None)
            self._charge(table.fragment)

    def _writing(self, table: TableEpoch, folded: Folded, changes: int) -> Generator[None]:
        """Start to write folded changes. The second `next` waits for the result and records it."""
        relation = table.table.relation
        try:
            with self.writing.connection.transaction():
                self._bring(table, folded)
                self.writing.begin(relation, self.curr, nulls=table.nulls)
                yield
                written = self.writing.written()
        except psycopg.Error as error:
            if not is_refusal(error):
                raise
            found = self.writing.find_refused(relation, folded, self.curr, nulls=table.nulls)
            key, cause = ("", error) if found is None else (f" at {_keyed(table, found[0])}", found[1])
            table.breaks(f"{reason_of(cause)}{key}{way_out(cause, relation)}")
            return
        table.made, table.ended = table.made + written.made, table.ended + written.ended
        table.changes += changes

    def _bring(self, table: TableEpoch, folded: Folded) -> None:
        relation = table.table.relation
        asked = [*folded.asked, *self.writing.load(relation, folded)]
        if asked:
            rows, snapshot = self._ask(table, asked)
            self.writing.replace(relation, list(rows.items()), [key for key in asked if key not in rows])
            table.patched.update(dict.fromkeys(asked, snapshot))
            self.asked = True

    def _ask(self, table: TableEpoch, keys: Sequence[Key]) -> tuple[dict[Key, Values], Snapshot]:
        """Return the current rows, which include every transaction decoded so far. Raises AwayError."""
        hidden: Sequence[int] = ()
        for _ in range(_TRIES):
            rows, snapshot = self.session.rows(table.table, keys)
            hidden = snapshot.hidden(self.reader.begun)
            if not hidden:
                return rows, snapshot
            ask(self.session.control, "select pg_sleep(0.02)")
        raise AwayError(f"transaction {max(hidden)} is committed, but does not become visible")

    def _counting(self, table: TableEpoch, changes: Sequence[Change]) -> tuple[Applies, Callable[[Key], bool]]:
        """Return which halves of these changes count, and at which keys the stored row may be stale."""
        patched, reload = table.patched, table.table.over_stored
        if table.complete:
            return _unless_patched(patched), lambda _: False
        keys = list({key for _, *halves, _ in changes for key in halves if key is not None})
        regions = self.session.regions(table.table, keys, table.settled, table.fresh)
        snapshots = {FRESH + actor: snapshot for actor, snapshot in table.snapshots.items()}

        def applies(key: Key, xid: int) -> bool:
            shown = patched.get(key)
            if shown is not None:
                return not shown.shows(xid)
            region = regions.get(key)
            if region is None:
                return reload
            return region == SETTLED or table.truncated or not snapshots[region].shows(xid)

        def stale(key: Key) -> bool:
            return reload and not table.truncated and regions.get(key) != SETTLED and key not in patched

        return applies, stale

    def _describe(self, sent: TableSent) -> Sequence[Picked]:
        whole = [one for one in self.tables.values() if one.broken is None]
        known = [(one, one.table.named == (sent.schema, sent.name)) for one in whole]
        mine = [(one, same) for one, same in known if same or one.table.oid == sent.oid]
        if not mine:
            return ()
        types = self.session.types(sent.columns)
        kept: list[Picked] = []
        for table, same in mine:
            outdated = undecodable(table.table, sent, types) is not None or has_other_names(table, sent)
            if outdated and table.table.scan.reloaded_at > self.reader.commit:
                # The pages show this transaction, which is older than the reload.
                continue
            renamed = f"it was renamed to {sent.schema}.{sent.name}, if only for some time"
            reason = self._undecodable(table, sent, types) if same else renamed
            if reason is None:
                kept.append(picked(table.table, table.fragment, sent))
            else:
                table.breaks(reason)
        return kept

    def _undecodable(self, table: TableEpoch, sent: TableSent, types: Sequence[str]) -> str | None:
        """Return why the log's description of a table is not the one that is followed, None where it is."""
        reason = undecodable(table.table, sent, types)
        if reason is None and not has_other_names(table, sent):
            return None
        # The catalog has the cause, unless the table was altered again, or the change is not visible yet.
        look_at_publication(self.session, [table])
        if table.broken is None and has_other_names(table, sent):
            return "its columns had other names when a row was changed, so a value may be that of another column"
        return reason


def _unless_patched(patched: Mapping[Key, Snapshot]) -> Applies:
    def applies(key: Key, xid: int) -> bool:
        shown = patched.get(key)
        return shown is None or not shown.shows(xid)

    return applies if patched else lambda _key, _xid: True


def _keyed(table: TableEpoch, key: Key) -> str:
    return keyed(table.table, tuple(text_of(piece) for piece in key))
