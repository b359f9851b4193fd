"""Run the CDC scans of a graph, source by source, and report them.

In an epoch a source runs before the scans that read its tables:

1. Advance the slot to the newest offset that is known to be committed.
2. Read pages: one Spark job for each table with history left, one task for each actor.
3. Decode the log and fold it over the pages (`workers.cdc.following`).

A source that does not answer does not fail the epoch. The writes to its tables are undone, its positions and offset
stay, and it is tried again later. A source that answers slowly is queried less often, because all barriers wait for its
answers (`workers.cdc.backoff`).
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from pyspark.sql import SparkSession

from service.protocol.barrier import BarrierKind
from service.protocol.cdc import SourceConnection, SourceReport, Sweep, lsn_of
from service.protocol.ids import FragmentId, JobId, RelationId, SourceId
from service.protocol.mutation import Mutation
from service.protocol.plan import FragmentPlan, JobPlan, SourceScanPlan
from service.protocol.report import FragmentReport
from workers.backfill.pace import PAGE_ROWS_MIN
from workers.backfill.scan import ScanState
from workers.cdc.apply import applying
from workers.cdc.backoff import SLOW_SECONDS, Backoff
from workers.cdc.connecting import EPOCH_SECONDS, AwayError, ChangedError, HeldUpError, understanding
from workers.cdc.external import Seen, Session
from workers.cdc.following import Followed, follow
from workers.cdc.log_stream import LaterError
from workers.cdc.pages import Copied
from workers.cdc.pgoutput import lsn_text
from workers.cdc.publication import Watch
from workers.cdc.snapshots import Snapshot
from workers.cdc.sweeping import Swept, sweep
from workers.cdc.table_epoch import TableEpoch, altered
from workers.connectors.kinds import SecretOf, carried_of
from workers.runners.external_checks import check_server, judge, looked_at, older
from workers.runners.followed_table import FollowedTable, PagesJob
from workers.runners.port import FragmentRunner, Phase, Place, RunningEpoch

ADVANCE_BYTES = 1 << 20
"""Advance the slot only after this much log, because the external database reads the log once more to advance it."""
BEHIND_BYTES = 256 << 20
"""With more log than this to read, an epoch reads no pages: live changes first (I5)."""
BEHIND_CHANGES = 500_000
"""About how many messages an epoch reads then."""


@dataclass
class SourceScans:
    """One external database and the tables that follow it: a `FragmentRunner`.

    `offset` is the end of the last commit that was decoded. `committed` is the newest offset that is known to be
    committed in the meta store.
    """

    id: SourceId
    slot: str
    publication: str
    offset: int
    committed: int
    undecided: tuple[int, ...]
    spark: SparkSession
    connection_of: Callable[[SourceId], SourceConnection]
    secret_of: SecretOf
    tables: dict[FragmentId, FollowedTable] = field(default_factory=dict[FragmentId, FollowedTable])
    session: Session | None = None
    conninfo: str = field(default="", repr=False)
    backoff: Backoff = field(default_factory=Backoff)
    settled: bool = True
    """Its tables belong to the database graph, which replays no change log."""
    seen: Seen | None = None
    """The newest state of slot and log in this epoch. None where it was not read."""
    overrun: float = 0.0
    """How many seconds this epoch waited for pages beyond their slices."""
    turn: int = 0
    """The index of the table whose pages are read first: the one after the table that last took long."""
    _commits: bool = False
    """Whether the last barrier was a checkpoint. The next barrier shows that it was committed."""

    @property
    def place(self) -> Place:
        """Its place in the epoch: before all scans, sources in the order in which they were created."""
        return Phase.SOURCE, self.id, 0

    @property
    def reads(self) -> Collection[RelationId]:
        """It reads no relation of the graph."""
        return ()

    def is_brief(self, epoch: RunningEpoch) -> bool:
        """Return False. It runs before all scans that read its tables."""
        del epoch
        return False

    @classmethod
    def join(
        cls,
        spark: SparkSession,
        connection_of: Callable[[SourceId], SourceConnection],
        secret_of: SecretOf,
        runners: Mapping[Place, FragmentRunner],
        job: JobPlan,
        fragment: FragmentPlan,
        now: float,
    ) -> "SourceScans":
        """Return the runner of a table's source, after adding the table to it.

        `connection_of` requests a source's connection settings from the service. It raises AwayError where the service
        does not provide them.
        """
        assert isinstance(fragment, SourceScanPlan)
        plan = fragment.cdc.source
        offset = lsn_of(plan.offset)
        new = cls(plan.id, plan.slot, plan.publication, offset, offset, plan.undecided, spark, connection_of, secret_of)
        # An existing runner is used as it is, because its offset may be newer than the plan's.
        source = runners.get(new.place, new)
        assert isinstance(source, cls)
        source.add(job, fragment, now)
        return source

    def add(self, job: JobPlan, fragment: SourceScanPlan, now: float) -> None:
        """Follow one more table."""
        self.tables[fragment.id] = FollowedTable(
            job.id,
            fragment.cdc.carried(job.relation),
            ScanState.of(fragment, now=now),
            # The page size starts at the minimum, and grows if the first pages are fast.
            min(fragment.cdc.batch_rows, PAGE_ROWS_MIN),
            scan=fragment.cdc,
            broken=fragment.cdc.broken,
            watch=Watch(fragment.cdc.published),
            sweep=fragment.cdc.sweep,
            nulled=fragment.cdc.nulled,
            carried=None if fragment.lake is None else partial(carried_of, fragment.lake, self.secret_of, job.relation),
        )

    def mutate(self, mutation: Mutation, now: float) -> None:
        """Apply a mutation to its tables."""
        for table in self.tables.values():
            table.mutate(mutation, now)

    def readers(self, *, paused: bool) -> int:
        """Return the number of tables whose history may be read."""
        return sum(table.readers(paused=paused) for table in self.tables.values())

    def stop(self, jobs: Sequence[JobId]) -> bool:
        """Remove the tables of jobs. Return whether no table is left."""
        for id_, table in list(self.tables.items()):
            if table.job in jobs:
                table.end()
                del self.tables[id_]
        return not self.tables

    def end(self) -> None:
        """Close the sessions, and carry nothing more into a lake."""
        self._close()
        for table in self.tables.values():
            table.end()

    def _close(self) -> None:
        """Close the sessions, and discard what was looked up with them."""
        if self.session is not None:
            self.session.close()
        self.session = None
        for table in self.tables.values():
            table.forget()

    def run(self, epoch: RunningEpoch) -> Sequence[FragmentReport]:
        """Read pages, then the log. Raises what Spark and the state store raise."""
        # A barrier comes only after the last checkpoint was committed.
        committed = self._commits or epoch.barrier.kind is BarrierKind.INITIAL
        if self._commits:
            self.committed = self.offset
        self._commits = epoch.barrier.kind is not BarrierKind.BARRIER
        for table in self.tables.values():
            table.begin(epoch, self.spark, committed=committed)
        finished = {id_: table.over(epoch.barrier.prev) for id_, table in self.tables.items()}
        done: dict[FragmentId, TableEpoch] = {}
        followed, waiting = None, None
        self.seen, self.overrun, began = None, 0.0, epoch.clock()
        before = 0.0 if self.session is None else self.session.control.waited
        try:
            with understanding():
                followed = self._follow_log(epoch, done)
            self.backoff.answered()
            self._held(before, epoch.clock())
        except AwayError as error:
            now = epoch.clock()
            if isinstance(error, LaterError):
                self._held(before, now)
            elif not isinstance(error, _StillAwayError):
                self.backoff.failed(str(error), now, held=now - began)
                self._close()
            self._take_back(epoch)
            waiting = str(error)
        reports: list[FragmentReport] = []
        for id_, table in self.tables.items():
            table.watch.reached(self.offset)
            reports += table.take(done.get(id_), epoch, finishing=finished[id_])
        return [*reports, self._report(followed, waiting=waiting)]

    def _follow_log(self, epoch: RunningEpoch, done: dict[FragmentId, TableEpoch]) -> Followed:
        session = self._session(epoch)
        session.control.left = EPOCH_SECONDS
        began = epoch.clock()
        self.seen = seen = session.look(self.offset)
        tables = self._look_at_tables(session)
        if session.stream is None and (session.moving or self.committed - seen.confirmed >= ADVANCE_BYTES):
            session.advance(self.committed, epoch.clock)
        behind = seen.inserted - self.offset > BEHIND_BYTES
        # A page counts only with log up to a place after it. A request that is already pending ends too early.
        slow = session.patience.slow or session.stream is not None
        for place, table in [*enumerate(tables)][self.turn :] + [*enumerate(tables)][: self.turn]:
            if slow and table.may_read(paused=epoch.paused):
                table.waiting = "the external database takes long to decode its log, which comes first"
            elif not behind and self.overrun < SLOW_SECONDS:
                self._read_pages(session, table, epoch)
                # After a table that took long the others wait for the next epoch, which begins with them.
                self.turn = place + 1 if self.overrun >= SLOW_SECONDS else self.turn
        mine = [table.epoch() for table in tables if table.table is not None]
        try:
            followed = follow(
                session,
                epoch.stores.by_sql,
                mine,
                offset=self.offset,
                undecided=self.undecided,
                limit=BEHIND_CHANGES if behind else None,
                barrier=epoch.barrier,
                clock=epoch.clock,
            )
        finally:
            # Keep the failures even if this epoch is undone, because the tables would break again in every epoch.
            for one in mine:
                self.tables[one.fragment].broken = one.broken
        self.offset, self.undecided, self.seen = followed.offset, followed.undecided, followed.seen
        done.update({one.fragment: one for one in mine})
        if tables:
            tables[0].timings_ms["log"] = (epoch.clock() - began) * 1000
        return followed

    def _look_at_tables(self, session: Session) -> list[FollowedTable]:
        """Look up new tables in the external catalog, and return the tables that are not broken. Raises AwayError."""
        unknown = [table for table in self.tables.values() if table.broken is None and table.table is None]
        # Check the server first, because another server's catalog says nothing about the followed tables.
        if unknown:
            check_server(session, unknown)
        for table in unknown:
            table.table = looked_at(session, table)
        return [table for table in self.tables.values() if table.broken is None]

    def _held(self, before: float, now: float) -> None:
        """Record how long answers, and rows beyond their time slice, blocked the barrier.

        The log is not included: `workers.cdc.patience` bounds its waits.
        """
        assert self.session is not None
        self.backoff.waited(self.session.control.waited - before + self.overrun, now)

    def _session(self, epoch: RunningEpoch) -> Session:
        if epoch.clock() < self.backoff.until:
            raise _StillAwayError(self.backoff.reason or "the source does not answer")
        if self.session is None:
            self.conninfo = self.connection_of(self.id).conninfo
            self.session = Session.open(self.conninfo, self.slot, self.publication)
        return self.session

    def _read_pages(self, session: Session, table: FollowedTable, epoch: RunningEpoch) -> None:
        if table.table is None or not table.may_read(paused=epoch.paused):
            return
        permits = table.permits(epoch)
        if all(allowed == 0 for allowed in permits):
            return
        if table.sweep is not None and not table.sweep.over:
            self._sweep(session, table, epoch, permits[0])
            return
        began = epoch.clock()
        slice_seconds = table.pace.slice_seconds(epoch.share_seconds())
        task = table.pages_task(epoch.barrier.curr, permits, self.undecided)
        with epoch.spark_turn():
            if table.planned is None:
                copied = Copied(epoch.stores.by_sql, table.table, len(table.state.actors), self.conninfo)
                table.planned = PagesJob(self.spark, copied)
            table.outcomes = table.planned.run(task.model_copy(update={"slice_seconds": slice_seconds}))
        self.overrun += max((outcome.overrun_seconds for outcome in table.outcomes), default=0.0)
        table.measured(slice_seconds=slice_seconds, job_seconds=epoch.clock() - began)
        judge(table, session)

    def _sweep(self, session: Session, table: FollowedTable, epoch: RunningEpoch, permits: int | None) -> None:
        """Compare stored keys of a reloaded table with the external ones."""
        assert table.table is not None
        assert table.sweep is not None
        if not table.table.over_stored:
            with applying(epoch.stores.by_sql) as writing:
                writing.truncate(table.target, epoch.barrier.curr)
            table.emptied(epoch.barrier.curr)
            table.swept = Swept(Sweep(over=True))
            return
        until = epoch.clock() + table.pace.slice_seconds(epoch.share_seconds())

        def may_show(snapshot: Snapshot) -> str | None:
            if hidden := snapshot.hidden(self.undecided):
                return f"transaction {hidden[0]} is committed but not yet visible"
            if snapshot.xmin < table.scan.readable_after:
                return f"transactions that began before the reload still run: {older(session, table)}"
            return None

        try:
            table.swept = sweep(
                session,
                epoch.stores.by_sql,
                table.table,
                table.sweep,
                curr=epoch.barrier.curr,
                may_show=may_show,
                permits=permits,
                more_time=lambda: epoch.clock() < until,
            )
        except HeldUpError as error:
            table.waiting = str(error)
            return
        except ChangedError as error:
            one = table.epoch()
            altered(session, one, str(error))
            table.broken = one.broken
            return
        table.waiting = table.swept.waiting
        table.state.actors[0].budget = table.state.actors[0].budget.spent(table.swept.compared)

    def _take_back(self, epoch: RunningEpoch) -> None:
        """Undo the pages of this epoch, because they count only together with the log after them."""
        written = [
            table for table in self.tables.values() if table.swept or any(o.snapshot_rows for o in table.outcomes)
        ]
        if written:
            with applying(epoch.stores.by_sql) as writing:
                for table in written:
                    writing.undo(table.target, epoch.barrier.prev)
        for table in self.tables.values():
            table.outcomes, table.swept = [], None

    def _report(self, followed: Followed | None, *, waiting: str | None) -> SourceReport:
        """Return the report of the source, also where it was not read.

        The slot then retains a growing log, and the leader must know its size.
        """
        seen = self.seen
        retained = None if seen is None or seen.restart is None else max(seen.inserted - seen.restart, 0)
        return SourceReport(
            source=self.id,
            offset=lsn_text(self.offset),
            undecided=self.undecided,
            waiting=waiting,
            lag_bytes=None if seen is None else max(seen.inserted - self.offset, 0),
            retained_bytes=retained,
            changes=0 if followed is None else followed.changes,
            commit_lag_ms=None if followed is None else followed.commit_lag_ms,
            tables=tuple(told for table in self.tables.values() if (told := table.told()) is not None),
        )


class _StillAwayError(AwayError):
    """The back-off has not ended, so the source is not tried in this epoch."""
