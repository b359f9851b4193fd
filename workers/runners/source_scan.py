"""The CDC scans of a graph, source by source: what of each an epoch reads, and what is reported of it.

In an epoch, before the scans that read the tables: the slot is advanced to the last offset that is known to be
committed; pages are read, one Spark job for each table that has history left, one task for each actor; then the log is
decoded and folded over them (`workers.cdc.following`). A source that does not answer costs the epoch nothing: what was
written of its tables is taken back, its positions and its offset stay, and it is tried again later. One that answers
slowly is asked less often: all barriers wait for its answers (`workers.cdc.backoff`).
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from pyspark.sql import SparkSession

from service.protocol.barrier import BarrierKind
from service.protocol.cdc import SourceConnection, SourceReport, lsn_of
from service.protocol.ids import FragmentId, JobId, RelationId, SourceId
from service.protocol.mutation import Mutation
from service.protocol.plan import FragmentPlan, JobPlan, SourceScanPlan
from workers.backfill.pace import PAGE_ROWS_MIN
from workers.backfill.scan import ScanState
from workers.cdc.apply import applying
from workers.cdc.backoff import SLOW_SECONDS, Backoff
from workers.cdc.connecting import EPOCH_SECONDS, AwayError, ChangedError, understanding
from workers.cdc.external import Seen, Session
from workers.cdc.following import REBUILD, Followed, TableEpoch, follow
from workers.cdc.keys import ExternalKey, ExternalTable
from workers.cdc.log_stream import LaterError
from workers.cdc.pages import Copied
from workers.cdc.pgoutput import lsn_text
from workers.runners.followed_table import FollowedTable, PagesJob
from workers.runners.port import FragmentReport, FragmentRunner, Phase, Place, RunningEpoch

ADVANCE_BYTES = 1 << 20
"""What the external database may keep without need: forgetting it costs reading it there once more."""
BEHIND_BYTES = 256 << 20
"""With more of the log to read, no pages are read until it is read: live first (I5)."""
BEHIND_CHANGES = 500_000
"""How much of it an epoch reads then."""


@dataclass
class SourceScans:
    """One external database and the tables that follow it: a `FragmentRunner`.

    `offset` is the end of the last commit that was decoded; `committed` is the newest one that a commit is known to
    hold.
    """

    id: SourceId
    slot: str
    publication: str
    offset: int
    committed: int
    undecided: tuple[int, ...]
    spark: SparkSession
    connection_of: Callable[[SourceId], SourceConnection]
    tables: dict[FragmentId, FollowedTable] = field(default_factory=dict[FragmentId, FollowedTable])
    session: Session | None = None
    conninfo: str = field(default="", repr=False)
    backoff: Backoff = field(default_factory=Backoff)
    settled: bool = True
    """No change log of the database graph, whose tables these are, is replayed in it."""
    seen: Seen | None = None
    """How slot and log stood at the beginning of this epoch; None where they were not looked at."""
    overrun: float = 0.0
    """How many seconds this epoch waited for pages beyond their slices."""
    turn: int = 0
    """How many tables come last when pages are read: those up to the one that took long."""
    _commits: bool = False
    """Whether the last barrier was one that commits: the next one says that it did."""

    @property
    def place(self) -> Place:
        """Its tables come one after the other, in the order in which they were created."""
        return Phase.SOURCE, self.id, 0

    @property
    def reads(self) -> Collection[RelationId]:
        """Nothing of the graph."""
        return ()

    def is_brief(self, epoch: RunningEpoch) -> bool:
        """Return False: it runs before all that read its tables."""
        del epoch
        return False

    @classmethod
    def join(
        cls,
        spark: SparkSession,
        connection_of: Callable[[SourceId], SourceConnection],
        runners: Mapping[Place, FragmentRunner],
        job: JobPlan,
        fragment: FragmentPlan,
        now: float,
    ) -> "SourceScans":
        """Return the runner of a table's source, which follows that table as well. `connection_of` asks the service how
        to reach a source; it raises AwayError where the service does not say.
        """
        assert isinstance(fragment, SourceScanPlan)
        plan = fragment.cdc.source
        offset = lsn_of(plan.offset)
        new = cls(plan.id, plan.slot, plan.publication, offset, offset, plan.undecided, spark, connection_of)
        # Of a source that is followed already, what was decoded since the plan was made is known here.
        source = runners.get(new.place, new)
        assert isinstance(source, cls)
        source.add(job, fragment, now)
        return source

    def add(self, job: JobPlan, fragment: SourceScanPlan, now: float) -> None:
        """Follow one more table."""
        self.tables[fragment.id] = FollowedTable(
            job.id,
            job.relation,
            ScanState.of(fragment, now=now),
            # It grows with the first pages that come fast.
            min(fragment.cdc.batch_rows, PAGE_ROWS_MIN),
            scan=fragment.cdc,
            broken=fragment.cdc.broken,
        )

    def mutate(self, mutation: Mutation, now: float) -> None:
        """Let a mutation act on its tables."""
        for table in self.tables.values():
            table.mutate(mutation, now)

    def readers(self, *, paused: bool) -> int:
        """Return of how many tables history may be read."""
        return sum(table.may_read(paused=paused) for table in self.tables.values())

    def stop(self, jobs: Sequence[JobId]) -> bool:
        """Forget the tables of jobs."""
        self.tables = {id_: table for id_, table in self.tables.items() if table.job not in jobs}
        return not self.tables

    def end(self) -> None:
        """End the sessions. What was learnt with them would be learnt anew."""
        if self.session is not None:
            self.session.close()
        self.session = None
        for table in self.tables.values():
            table.forget()

    def run(self, epoch: RunningEpoch) -> Sequence[FragmentReport]:
        """Read pages, then the log. Raises what Spark and the state store raise."""
        # A barrier comes only when the last one was committed, if it was one that commits.
        if self._commits:
            self.committed = self.offset
        self._commits = epoch.barrier.kind is not BarrierKind.BARRIER
        finished = {id_: table.state.finished for id_, table in self.tables.items()}
        for table in self.tables.values():
            table.outcomes, table.waiting, table.timings_ms = [], None, {}
        done: dict[FragmentId, TableEpoch] = {}
        self.seen, self.overrun, began = None, 0.0, epoch.clock()
        before = 0.0 if self.session is None else self.session.control.waited
        try:
            with understanding():
                told = self._follow_log(epoch, done)
            self.backoff.answered()
            self._held(before, epoch.clock())
        except AwayError as error:
            now = epoch.clock()
            if isinstance(error, LaterError):
                self._held(before, now)
            elif not isinstance(error, _StillAwayError):
                self.backoff.failed(str(error), now, held=now - began)
                self.end()
            self._take_back(epoch)
            told = self._report(waiting=str(error))
        reports: list[FragmentReport] = []
        for id_, table in self.tables.items():
            reports += table.take(done.get(id_), epoch, finishing=finished[id_])
        return [*reports, told]

    def _follow_log(self, epoch: RunningEpoch, done: dict[FragmentId, TableEpoch]) -> SourceReport:
        session = self._session(epoch)
        session.control.left = EPOCH_SECONDS
        began = epoch.clock()
        self.seen = seen = session.look(self.offset)
        tables = self._look_at_tables(session)
        if session.stream is None and (session.moving or self.committed - seen.confirmed >= ADVANCE_BYTES):
            session.advance(self.committed, epoch.clock)
        behind = seen.inserted - self.offset > BEHIND_BYTES
        # A page counts only with the log up to after it: what was asked for before it is not enough.
        slow = session.patience.slow or session.stream is not None
        for place, table in [*enumerate(tables)][self.turn :] + [*enumerate(tables)][: self.turn]:
            if slow and table.may_read(paused=epoch.paused):
                table.waiting = "the external database takes long to decode its log, which comes first"
            elif not behind and self.overrun < SLOW_SECONDS:
                self._read_pages(session, table, epoch)
                # After one that took long the others wait for another epoch, which begins with them.
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
            # Also where nothing of this epoch is kept: it would break again in every epoch that tries it.
            for one in mine:
                self.tables[one.fragment].broken = one.broken
        self.offset, self.undecided, self.seen = followed.offset, followed.undecided, followed.seen
        done.update({one.fragment: one for one in mine})
        if tables:
            tables[0].timings_ms["log"] = (epoch.clock() - began) * 1000
        return self._report(followed)

    def _look_at_tables(self, session: Session) -> list[FollowedTable]:
        """Return the tables that follow, as they are in the catalog there."""
        unknown = [table for table in self.tables.values() if table.broken is None and table.table is None]
        # First the server: what another one has, or has not, says nothing of the tables.
        if unknown:
            _check_server(session, unknown)
        for table in unknown:
            table.table = _looked_at(session, table)
        return [table for table in self.tables.values() if table.broken is None]

    def _held(self, before: float, now: float) -> None:
        """Take note of how long barriers were held for answers, and for rows beyond their slice. The log's have a
        patience of their own.
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
        _judge(table, session)

    def _take_back(self, epoch: RunningEpoch) -> None:
        """Undo what pages wrote in this epoch: they count only with the log that comes after them."""
        written = [table for table in self.tables.values() if any(o.snapshot_rows for o in table.outcomes)]
        if written:
            with applying(epoch.stores.by_sql) as writing:
                for table in written:
                    writing.undo(table.target.id, epoch.barrier.prev)
        for table in self.tables.values():
            table.outcomes = []

    def _report(self, followed: Followed | None = None, *, waiting: str | None = None) -> SourceReport:
        """Return where the source stands, or that nothing of it was read: then the log that its slot holds grows, which
        the leader is to know.
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
    """It is not tried yet again."""


def _judge(table: FollowedTable, session: Session) -> None:
    """Sort what kept actors from reading. Raises AwayError."""
    for outcome in table.outcomes:
        if outcome.away is not None:
            raise AwayError(outcome.away)
        if outcome.broken is not None and table.broken is None:
            table.broken = f"{outcome.broken}: {REBUILD}"
        if outcome.waiting is not None:
            table.waiting = outcome.waiting
        if outcome.behind:
            assert table.table is not None
            older = session.older(session.snapshot(), table.scan.readable_after)
            table.waiting = f"transactions that began before the table was published still run: {older}"


def _check_server(session: Session, tables: Sequence[FollowedTable]) -> None:
    """Raise AwayError where the server is not the one, or a copy of the one, on which tables were first followed."""
    now = session.system()
    for published in (table.scan.published for table in tables):
        before = None if published is None else published.system
        if before is not None and now is not None and before != now:
            raise AwayError(
                f"the server is another one, with a slot of the same name: its system identifier is {now}, not "
                f"{before}; point the source back, or DROP and CREATE it and its tables again"
            )


def _looked_at(session: Session, table: FollowedTable) -> ExternalTable | None:
    """Return the table as it is in the catalog now; None where it cannot be followed any more."""
    external = {column.name: column for column in table.scan.columns}
    key = tuple(ExternalKey(external[part.name].external, external[part.name].type) for part in table.target.key)
    described = ExternalTable(table.target, table.scan, key)
    try:
        found = session.table(described)
    except ChangedError as error:
        table.broken = f"the external table changed: {error}: {REBUILD}"
        return None
    if found is None:
        table.broken = f"the external table {described.name} was dropped or renamed: {REBUILD}"
    return found
