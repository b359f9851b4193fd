"""The CDC scans of the database graph: what of each source an epoch reads, and what is told of it.

In an epoch, before the scans that read the tables: the slot is advanced to the last offset that is known to be
committed; pages are read, one Spark job for each table that has history left, one task for each actor; then the log is
decoded and folded over them (`workers.cdc.following`). A source that does not answer costs the epoch nothing: what was
written of its tables is taken back, its positions and its offset stay, and it is tried again later.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pyspark.sql import SparkSession

from service.protocol.barrier import Barrier, BarrierKind
from service.protocol.cdc import SourceConnection, SourceReport, lsn_of
from service.protocol.ids import FragmentId, JobId, SourceId
from service.protocol.mutation import Add, StartFragmentBackfill, Stop, Throttle, Update
from service.protocol.plan import ActorPlan, FragmentKind, FragmentPlan, JobPlan
from workers.backfill.scan import ScanState
from workers.cdc.apply import applying
from workers.cdc.external import AwayError, ChangedError, Session
from workers.cdc.following import REBUILD, TableEpoch, follow
from workers.cdc.keys import ExternalKey, ExternalTable
from workers.cdc.pages import Copied
from workers.executors.cdc_tables import (
    CdcEpoch,
    CdcTurn,
    FollowedTable,
    PagesJob,
    Source,
    epoch_of,
    followed,
    task_of,
    tell,
    waiting,
)

ADVANCE_BYTES = 1 << 20
"""What the external database may keep without need: forgetting it costs reading it there once more."""
BEHIND_BYTES = 256 << 20
"""With more of the log to read, no pages are read until it is read: live first (I5)."""
BEHIND_CHANGES = 500_000
"""How much of it an epoch reads then."""


@dataclass
class CdcGraph:
    """The sources of a graph. `connection_of` asks the service how to reach one."""

    spark: SparkSession
    connection_of: Callable[[SourceId], SourceConnection]
    sources: dict[SourceId, Source] = field(default_factory=dict[SourceId, Source])
    _commits: bool = False
    """Whether the last barrier was one that commits: the next one says that it did."""

    def run(self, turn: CdcTurn) -> CdcEpoch:
        """Run one epoch of every source; when it returns, all it wrote is durable. Raises what Spark and the state
        store raise.
        """
        self._begin(turn.barrier)
        self._mutate(turn.barrier)
        done = CdcEpoch()
        for source in self.sources.values():
            self._run_source(source, turn, done)
        return done

    def _begin(self, barrier: Barrier) -> None:
        """A barrier comes only when the last one was committed, if it was one that commits."""
        if barrier.kind is BarrierKind.INITIAL:
            self._forget(list(self.sources.values()))
        elif self._commits:
            for source in self.sources.values():
                source.committed = source.offset
        self._commits = barrier.kind is not BarrierKind.BARRIER

    def _mutate(self, barrier: Barrier) -> None:
        """Let a mutation act, before all else of its epoch (I4). A pause comes with the turn."""
        now, tables = _monotonic(), self._tables()
        match barrier.mutation:
            case Throttle(fragments=limits):
                _throttle(tables, limits, now)
            case StartFragmentBackfill(fragments=fragments):
                _release(tables, fragments)
            case Add(jobs=jobs):
                self._add(jobs, now)
            case Stop(jobs=jobs):
                self._stop(jobs)
            case Update(fragments=fragments):
                _rescale(tables, fragments, now)
            case _:
                pass

    def _tables(self) -> dict[FragmentId, FollowedTable]:
        return {id_: table for source in self.sources.values() for id_, table in source.tables.items()}

    def _add(self, jobs: Iterable[JobPlan], now: float) -> None:
        for job in jobs:
            for fragment in job.fragments:
                if fragment.kind is FragmentKind.CDC_SCAN:
                    self._follow(job, fragment, now)

    def _follow(self, job: JobPlan, fragment: FragmentPlan, now: float) -> None:
        scan = fragment.cdc
        assert scan is not None
        plan = scan.source
        # Of a source that is followed already, what was decoded since the plan was made is known here.
        source = self.sources.setdefault(
            plan.id,
            Source(plan.id, plan.slot, plan.publication, lsn_of(plan.offset), lsn_of(plan.offset), plan.undecided),
        )
        source.tables[fragment.id] = FollowedTable(
            job.id,
            fragment.id,
            job.relation,
            scan,
            ScanState.of(fragment, now=now),
            scan.batch_rows,
            broken=scan.broken,
        )

    def _stop(self, jobs: Sequence[JobId]) -> None:
        for source in self.sources.values():
            source.tables = {id_: table for id_, table in source.tables.items() if table.job not in jobs}
        self._forget([source for source in self.sources.values() if not source.tables])

    def _forget(self, sources: Iterable[Source]) -> None:
        for source in sources:
            source.close()
            del self.sources[source.id]

    # One source.

    def _run_source(self, source: Source, turn: CdcTurn, done: CdcEpoch) -> None:
        finished = {id_: table.state.finished for id_, table in source.tables.items()}
        tables = [table for table in source.tables.values() if table.broken is None]
        for table in source.tables.values():
            table.outcomes, table.waiting, table.timings_ms = [], None, {}
        epochs: dict[FragmentId, TableEpoch] = {}
        try:
            told = self._follow_log(source, tables, turn, epochs)
            source.backoff.answered()
        except AwayError as error:
            if not isinstance(error, _StillAwayError):
                source.backoff.failed(str(error), _monotonic())
                source.close()
            self._take_back(source, turn)
            told = waiting(source, str(error))
        for table in source.tables.values():
            tell(table, epochs.get(table.fragment), done, finishing=finished[table.fragment])
        done.sources.append(told)

    def _follow_log(
        self, source: Source, tables: Sequence[FollowedTable], turn: CdcTurn, epochs: dict[FragmentId, TableEpoch]
    ) -> SourceReport:
        session = self._session(source)
        began = _monotonic()
        seen = session.look(source.offset)
        # Only now: what another server has, or has not, says nothing of the tables.
        unknown = [table for table in tables if table.table is None]
        if unknown:
            _check_server(session, unknown)
        for table in unknown:
            table.table = _looked_at(session, table)
        if source.committed - seen.confirmed >= ADVANCE_BYTES:
            session.advance(source.committed)
        tables = [table for table in tables if table.broken is None]
        behind = seen.inserted - source.offset > BEHIND_BYTES
        if not behind:
            for table in tables:
                self._read_pages(source, session, table, turn)
        mine = [epoch_of(table) for table in tables if table.table is not None]
        epoch = follow(
            session,
            turn.store,
            mine,
            offset=source.offset,
            undecided=source.undecided,
            limit=BEHIND_CHANGES if behind else None,
            prev=turn.barrier.prev,
            curr=turn.barrier.curr,
        )
        source.offset, source.undecided = epoch.offset, epoch.undecided
        epochs.update({one.fragment: one for one in mine})
        for table in tables:
            table.broken = table.broken or (epochs[table.fragment].broken if table.fragment in epochs else None)
        if tables:
            tables[0].timings_ms["log"] = (_monotonic() - began) * 1000
        return followed(source, epoch)

    def _session(self, source: Source) -> Session:
        if source.session is None:
            if _monotonic() < source.backoff.until:
                raise _StillAwayError(source.backoff.reason or "the source does not answer")
            try:
                source.conninfo = self.connection_of(source.id).conninfo
            except Exception as error:
                # Whatever the client says: the source cannot be reached now.
                raise AwayError(f"the service does not say how to reach it: {type(error).__name__}") from error
            source.session = Session.open(source.conninfo, source.slot, source.publication)
        return source.session

    def _read_pages(self, source: Source, session: Session, table: FollowedTable, turn: CdcTurn) -> None:
        if table.table is None or not may_read(table, paused=turn.paused):
            return
        interval = turn.barrier.interval_ms / 1000
        for actor in table.state.actors:
            actor.budget = actor.budget.refilled(_monotonic(), interval_seconds=interval)
        if all(actor.budget.permits == 0 for actor in table.state.actors):
            return
        began = _monotonic()
        jobs = turn.scans + sum(may_read(one, paused=turn.paused) for one in self._tables().values())
        available = turn.available_seconds(began, jobs)
        task = task_of(table, source, turn, slice_seconds=table.pace.slice_seconds(available))
        with turn.spark_turn(turn.barrier.curr):
            if table.planned is None:
                copied = Copied(turn.store, table.table, len(table.state.actors), source.conninfo)
                table.planned = PagesJob(self.spark, copied)
            table.outcomes = table.planned.run(task)
        _measure(table, task.slice_seconds, _monotonic() - began)
        _judge(table, session)

    def _take_back(self, source: Source, turn: CdcTurn) -> None:
        """Undo what pages wrote in this epoch: they count only with the log that comes after them."""
        written = [table for table in source.tables.values() if any(o.snapshot_rows for o in table.outcomes)]
        if written:
            with applying(turn.store) as writing:
                for table in written:
                    writing.undo(table.relation.id, turn.barrier.prev)
        for table in source.tables.values():
            table.outcomes = []


class _StillAwayError(AwayError):
    """It is not tried yet again."""


def _measure(table: FollowedTable, slice_seconds: float, seconds: float) -> None:
    reading = max(outcome.reading_seconds for outcome in table.outcomes)
    table.timings_ms = {"job": seconds * 1000, "slice": slice_seconds * 1000, "reading": reading * 1000}
    if any(outcome.used_slice for outcome in table.outcomes):
        table.pace = table.pace.measured(job_seconds=seconds, slice_seconds=slice_seconds)
    table.page_rows = min(outcome.page_rows for outcome in table.outcomes)


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
    key = tuple(ExternalKey(external[part.name].external, external[part.name].type) for part in table.relation.key)
    described = ExternalTable(table.relation, table.scan, key)
    try:
        found = session.table(described)
    except ChangedError as error:
        table.broken = f"the external table changed: {error}: {REBUILD}"
        return None
    if found is None:
        table.broken = f"the external table {described.name} was dropped or renamed: {REBUILD}"
    return found


def _named(tables: Mapping[FragmentId, FollowedTable], fragments: Iterable[FragmentId]) -> list[FollowedTable]:
    """Return those among `fragments` that are tables that are followed."""
    return [tables[fragment] for fragment in fragments if fragment in tables]


def _throttle(tables: Mapping[FragmentId, FollowedTable], limits: Mapping[FragmentId, int | None], now: float) -> None:
    for table in _named(tables, limits):
        table.state.throttle(limits[table.fragment], now=now)


def _release(tables: Mapping[FragmentId, FollowedTable], fragments: Iterable[FragmentId]) -> None:
    for table in _named(tables, fragments):
        table.state.waiting = False


def _rescale(
    tables: Mapping[FragmentId, FollowedTable], fragments: Mapping[FragmentId, Sequence[ActorPlan]], now: float
) -> None:
    for table in _named(tables, fragments):
        table.state.rescale(fragments[table.fragment], now=now)
        table.planned, table.told_finished = None, False


def may_read(table: FollowedTable, *, paused: bool) -> bool:
    """Whether history of a table may be read now."""
    return table.broken is None and table.state.may_read(paused=paused)


def _monotonic() -> float:
    return time.monotonic()  # noqa: TID251 - the executor owns the worker's clock
