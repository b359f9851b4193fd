"""One epoch of one source, after its pages were read: the log is decoded, folded, and written, in one transaction.

The place up to which the log is read is asked for after the pages: what a page shows is committed before it. So the
tables are afterwards the external database as it was after the last commit that was read, each up to its positions
(I1). Where a row had to be asked for, which may be newer than that, a new place is asked for, and the log read on.

While the state store writes a part of the log, the next one is decoded and folded. Nothing of it is asked for or
brought to the store before the writing is over.

Where the whole log up to a place was read, nothing was committed before it that was not read: the offset moves there
even if nothing was, or the slot would hold the log of idle tables for ever.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import psycopg

from service.protocol.barrier import Barrier
from service.protocol.ids import Epoch, FragmentId
from workers.cdc.apply import Applying, applying, is_refusal, reason_of
from workers.cdc.budget import Budget
from workers.cdc.connecting import PART_SECONDS, AwayError, ChangedError
from workers.cdc.external import Seen, Session, ask
from workers.cdc.fold import Applies, Change, Folded, Key, Values, fold
from workers.cdc.keys import FRESH, SETTLED, ExternalTable, Stretch, keyed
from workers.cdc.log import ROW_TOO_LARGE, LogReader, Part, Picked, Truncated, drift, picked
from workers.cdc.log_stream import LaterError, LogStream
from workers.cdc.pgoutput import TableSent, text_of
from workers.cdc.publication import unpublished
from workers.cdc.snapshots import Snapshot
from workers.state_store.port import SqlStore

_TRIES: Final = 100
"""A transaction is committed before others see it, for a moment; longer only where it waits for a standby."""
WRITING_SECONDS: Final = 150.0
"""How long one transaction may take: an epoch writes it whole, and all barriers wait for that."""
READING_SECONDS: Final = 20.0
"""An epoch that has read for so long stops at the next commit."""
ENDING_SECONDS: Final = 200.0
"""An epoch that has read for so long is undone: a barrier has 300 seconds, with what comes before and after."""
TOO_LONG: Final = f"a transaction takes more than {WRITING_SECONDS:.0f} s to be written"
REBUILD: Final = "DROP and CREATE the table again"


@dataclass
class TableEpoch:
    """One table in one epoch. `settled` was read before it; `fresh` was read in it, by actor, in `snapshots`."""

    fragment: FragmentId
    table: ExternalTable
    settled: Sequence[Stretch]
    complete: bool
    """Whether all of it was read before this epoch: then every key counts, and nobody has to be asked."""
    fresh: Mapping[int, Sequence[Stretch]] = field(default_factory=dict[int, Sequence[Stretch]])
    snapshots: Mapping[int, Snapshot] = field(default_factory=dict[int, Snapshot])
    paged: int = 0
    """Rows that pages brought."""
    broken: str | None = None
    partitions: set[str] = field(default_factory=set[str])
    """Those that came to it since it is followed."""
    patched: dict[Key, Snapshot] = field(default_factory=dict[Key, Snapshot])
    """Keys whose row was asked for, and in which snapshot it was read."""
    truncated: bool = False
    changes: int = 0
    made: int = 0
    ended: int = 0

    @property
    def delta(self) -> int:
        """By how many the number of keys grew."""
        return self.paged + self.made - self.ended

    def breaks(self, reason: str) -> None:
        """Stop to follow it; what the epoch wrote of it is taken back. The first reason counts."""
        self.broken = self.broken or f"{reason}: {REBUILD}"


@dataclass(frozen=True, slots=True)
class Followed:
    """Where the source stands now."""

    offset: int
    undecided: tuple[int, ...]
    changes: int
    commit_lag_ms: float | None
    """How old the last commit was when it was written."""
    seen: Seen
    """Slot and log after that."""


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
    """Read the log from `offset` to its present end, or about `limit` changes of it, or what can be read in
    READING_SECONDS; when it returns, all of it is durable. Raises AwayError, LaterError where the next epoch is to try
    again at once: then nothing of it is written, but tables that broke stay broken. Raises what the state store raises.
    """
    with applying(store) as writing:
        by_id = {table.fragment: table for table in tables}
        one = _Epoch(session, writing, by_id, barrier.curr, session.snapshot(), offset, clock)
        try:
            end = one.run(limit)
        except LaterError:
            raise
        except AwayError as error:
            # Up to Postgres 17 nothing can be decoded of a time without the publication, though it be there again.
            with suppress(AwayError):
                _look_at_publication(session, tables)
            if any(table.broken is not None for table in tables):
                # Without them the next try is another one.
                raise LaterError(str(error)) from error
            raise
        session.control.allow(PART_SECONDS)
        # Looked at again, now that all was read: what happened to slot and publication meanwhile may have cost changes.
        seen = session.look(offset)
        _look_at_publication(session, tables)
        for table in tables:
            if table.broken is not None:
                writing.undo(table.table.relation.id, barrier.prev)
    hidden = seen.snapshot.hidden([*undecided, *one.reader.xids])
    return Followed(end, hidden, one.reader.changes, seen.lag_ms(one.reader.committed_at), seen)


def _look_at_publication(session: Session, tables: Sequence[TableEpoch]) -> None:
    """Break the tables of which the publication may not have told everything."""
    external, partitions = [table.table for table in tables], [table.partitions for table in tables]
    missing = unpublished(session.control, session.publication, external, partitions)
    for table, reason in zip(tables, missing, strict=True):
        if reason is not None:
            table.breaks(reason)


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
        """What is being read."""
        self.second = False
        """Whether the log was read before in this epoch."""
        self.stopped = False
        self.asked = False
        self.under_way: Generator[None] | None = None
        """The writing that the state store is at."""
        self.charged: FragmentId | None = None
        """Whose time it is; None: of a transaction that has ended."""

    def run(self, limit: int | None) -> int:
        """Read and write; return the new offset."""
        try:
            return self._run(limit)
        finally:
            self._written()

    def _run(self, limit: int | None) -> int:
        while True:
            self.asked, self.stopped, before = False, False, self.reader.at
            self.log = log = self.session.asked(before, limit, self.clock())
            if log is None:
                # Nothing at all was written since: there is no log to be read.
                self.session.patience.slow = False
                return before
            told, limit = self._read(log), log.limit
            if self.stopped and any(table.fresh for table in self.tables.values()):
                # The log comes first; without pages the next epoch keeps what it has read.
                raise LaterError("the log takes long to be read")
            if self.asked:
                limit = None
            elif self.stopped or (limit is not None and told >= limit and self.reader.at > before):
                return self.reader.at
            elif limit is None or told < limit:
                return max(log.upto, self.reader.at)
            else:
                # All that was told had been read before.
                limit *= 4
            self.second = True

    def _read(self, log: LogStream) -> int:
        """Read and write what was asked for; return how many messages there were."""
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
        """Whether to stop at this commit. A row that was asked for is newer: then the log is read on to its moment."""
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
            # They were decoded together.
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
        """Wait for what is under way. Raises what its writing does."""
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
        # Whatever is there from here on came after it, and is told in full.
        table.truncated, table.patched = True, {}

    def _write(self, table: TableEpoch, changes: Sequence[Change]) -> None:
        if table.broken is not None:
            return
        try:
            folded = fold(changes, self._applies(table, changes))
        except (ChangedError, psycopg.DataError) as error:
            table.breaks(f"the external table changed: {error}")
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
        """Bring what was folded to the store, and let it write; what comes of that is seen when it is asked for."""
        relation = table.table.relation
        try:
            with self.writing.connection.transaction():
                self._bring(table, folded)
                self.writing.begin(relation, self.curr)
                yield
                written = self.writing.written()
        except psycopg.Error as error:
            if not is_refusal(error):
                raise
            found = self.writing.find_refused(relation, folded, self.curr)
            table.breaks(reason_of(error) if found is None else f"{found[1]} at {_keyed(table, found[0])}")
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
        """Return rows as they are now, after all that was read of the log so far."""
        hidden: Sequence[int] = ()
        for _ in range(_TRIES):
            rows, snapshot = self.session.rows(table.table, keys)
            hidden = snapshot.hidden(self.reader.begun)
            if not hidden:
                return rows, snapshot
            ask(self.session.control, "select pg_sleep(0.02)")
        raise AwayError(f"transaction {max(hidden)} is committed, but does not become visible")

    def _applies(self, table: TableEpoch, changes: Sequence[Change]) -> Applies:
        """Return which halves of these changes count."""
        patched = table.patched
        if table.complete and not table.fresh:
            return _unless_patched(patched)
        keys = list({key for _, *halves, _ in changes for key in halves if key is not None})
        regions = self.session.regions(table.table, keys, table.settled, table.fresh)
        snapshots = {FRESH + actor: snapshot for actor, snapshot in table.snapshots.items()}

        def applies(key: Key, xid: int) -> bool:
            shown = patched.get(key)
            if shown is not None:
                return not shown.shows(xid)
            region = regions.get(key)
            if region is None:
                return False
            return region == SETTLED or table.truncated or not snapshots[region].shows(xid)

        return applies

    def _describe(self, sent: TableSent) -> Sequence[Picked]:
        whole = [one for one in self.tables.values() if one.broken is None]
        known = [(one, one.table.named == (sent.schema, sent.name)) for one in whole]
        mine = [(one, same) for one, same in known if same or one.table.oid == sent.oid]
        if not mine:
            return ()
        types = self.session.types(sent.columns)
        kept: list[Picked] = []
        for table, same in mine:
            renamed = f"it was renamed to {sent.schema}.{sent.name}, if only for some time"
            reason = drift(table.table, sent, types) if same else renamed
            if reason is None:
                kept.append(picked(table.table, table.fragment, sent))
            else:
                table.breaks(reason)
        return kept


def _unless_patched(patched: Mapping[Key, Snapshot]) -> Applies:
    def applies(key: Key, xid: int) -> bool:
        shown = patched.get(key)
        return shown is None or not shown.shows(xid)

    return applies if patched else lambda _key, _xid: True


def _keyed(table: TableEpoch, key: Key) -> str:
    return keyed(table.table, tuple(text_of(piece) for piece in key))
