"""A table scan: backfill one relation into another, merging the upstream's history with its live changes.

Next: `workers.engines.port`.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from pyspark.sql import SparkSession

from service.protocol.ids import RelationId
from service.protocol.plan import FragmentPlan, JobPlan, Pushdown, Stateless, TableScanPlan
from service.protocol.relation import Relation
from service.protocol.report import FragmentReport
from service.protocol.stage import Engine, EngineChoice
from service.protocol.stage_spark import chosen_engine
from workers.backfill.actors import as_one
from workers.backfill.positions import ONE_VNODE
from workers.backfill.reading import Reading, interleaved
from workers.backfill.scan import ScanState
from workers.connectors.kinds import SINKS
from workers.connectors.port import SinkWriter
from workers.engines.failing_row import find_failing_row
from workers.engines.plain import is_plain
from workers.engines.port import ActorOutcome, EpochTask, ScanEngine, ScanTask
from workers.engines.spark import SparkEngine
from workers.engines.store import StoreEngine, copied_in_store
from workers.queries.stateless import StatelessPlan, plan
from workers.runners.failure import JobFailedError
from workers.runners.port import FragmentRunner, Place, RunningEpoch
from workers.runners.upstream_scan import UpstreamScan
from workers.state_store.port import VersionedStore, has_store_engine


@dataclass(kw_only=True)
class TableScan(UpstreamScan[EpochTask]):
    """One scan fragment while it runs: a `FragmentRunner`."""

    upstream: Relation
    query: StatelessPlan
    sink: SinkWriter | None = None
    """Takes the rows in place of the store."""
    pushdown: Pushdown | None = None
    choice: EngineChoice = EngineChoice.AUTO
    engines: dict[tuple[Engine, int, bool], ScanEngine] = field(
        default_factory=dict[tuple[Engine, int, bool], ScanEngine]
    )
    """By their number of tasks, and whether pages are copied inside the store. Made on first use, so that an idle view
    costs nothing.
    """

    @classmethod
    def join(
        cls,
        spark: SparkSession,
        _runners: Mapping[Place, FragmentRunner],
        job: JobPlan,
        fragment: FragmentPlan,
        now: float,
    ) -> "TableScan":
        """Build a scan from its plan."""
        assert isinstance(fragment, TableScanPlan)
        assert isinstance(fragment.query, Stateless)
        upstream, target, sink = fragment.query.reading(fragment.upstream), job.written_by(fragment), fragment.sink
        return cls(
            job.id,
            target,
            ScanState.of(fragment, now=now),
            spark=spark,
            upstream=upstream,
            query=plan(fragment.query, upstream, target),
            sink=None if sink is None else SINKS[sink.name](sink.options),
            # The store copies rows into its own tables only.
            pushdown=fragment.query.pushdown if sink is None else None,
            choice=fragment.query.engine,
            consumed=None if job.snapshot is None else job.snapshot.consumed,
        )

    @property
    def reads(self) -> Collection[RelationId]:
        """Its upstream."""
        return (self.upstream.id,)

    def replan(self) -> None:
        """Discard the engines, which depend on the present actors."""
        self.engines = {}

    def end(self) -> None:
        """Make a running engine fail soon, and run nothing any more."""
        self.ended = True
        for engine in list(self.engines.values()):
            engine.give_up()

    def run(self, epoch: RunningEpoch) -> Sequence[FragmentReport]:
        """Run one epoch within the scan's share of the rest of the interval."""
        reading, finished = self._reading(epoch), self.state.finished
        permits = self.permits(epoch)
        outcomes: Sequence[ActorOutcome] = ()
        self.timings_ms = {}
        if reading.changes or any(allowed != 0 for allowed in permits):
            actors = self.actor_tasks(permits)
            if self.is_brief(epoch) or epoch.barrier.follows:
                # A created job in a graph of its own may compute for long: the other slots of Spark are for others.
                actors = (as_one(actors),)
            task = EpochTask(curr=epoch.barrier.curr, reading=reading, actors=actors, page_rows=self.page_rows)
            outcomes = self._advance(epoch, task)
            self.consumed = None
        # Without interleaving, no change is left that the last page might have missed.
        finishing = self.state.finished if self.job in epoch.readings else finished
        return self._report(epoch, outcomes, finishing=finishing)

    def _reading(self, epoch: RunningEpoch) -> Reading:
        """Return the read window.

        For a job that follows the change log, check first whether anything changed. The log is mostly empty, and the
        check is cheaper than a Spark job. This matters most in the database graph's barrier at which the job merges.
        """
        reading = epoch.readings.get(self.job)
        if reading is None:
            barrier, consumed = epoch.barrier, self.consumed
            since = barrier.prev if self.upstream.id in epoch.changed else barrier.curr
            reading = interleaved(since=since if consumed is None else consumed, curr=barrier.curr)
            if consumed is None:
                return reading
        if not reading.changes or epoch.stores.versioned.changed(self.upstream, after=reading.after, upto=reading.upto):
            return reading
        self.consumed = None
        return replace(reading, after=reading.upto)

    def _choose(self, epoch: RunningEpoch, task: EpochTask) -> tuple[Engine, ScanEngine]:
        store = epoch.stores.versioned
        pushed = self.pushdown is not None and has_store_engine(store) and not self._by_spark(epoch, task)
        copies = pushed and copied_in_store(self.pushdown, task.reading, finished=self.state.finished)
        name = Engine.STORE if copies else Engine.SPARK
        return name, self._engine(name, store, len(task.actors), pushed=pushed)

    def _by_spark(self, epoch: RunningEpoch, task: EpochTask) -> bool:
        """Whether Spark computes what the store could compute, too."""
        name, _ = chosen_engine(self.choice, None, None)
        return (name or self._by_rows(epoch, self.upstream, task.reading.at)) is Engine.SPARK

    def _failed(self, error: Exception, epoch: RunningEpoch, task: EpochTask, *, computing: bool) -> JobFailedError:
        scan = self._task(epoch.stores.versioned, len(task.actors), pushed=False)
        return JobFailedError(
            self.job,
            error,
            target=self.target,
            upstream=self.upstream,
            find_key=partial(find_failing_row, self.spark, scan, self.query, task),
            computing=computing,
        )

    def _engine(self, name: Engine, store: VersionedStore, actors: int, *, pushed: bool) -> ScanEngine:
        place = name, actors, pushed
        if place not in self.engines:
            self.engines[place] = self._made(name, self._task(store, actors, pushed=pushed))
        return self.engines[place]

    def _made(self, name: Engine, scan: ScanTask) -> ScanEngine:
        return make_engine(name, self.spark, scan, self.query)

    def _task(self, store: VersionedStore, actors: int, *, pushed: bool) -> ScanTask:
        block = self.state.block_vnodes if store.capabilities.index_bounds else ONE_VNODE
        scan = ScanTask(store, self.upstream, self.target, actors, block_vnodes=block, sink=self.sink)
        if pushed:
            return replace(scan, pushdown=self.pushdown)
        return replace(scan, plain=self.pushdown) if is_plain(scan, self.pushdown) else scan


def make_engine(name: Engine, spark: SparkSession, scan: ScanTask, query: StatelessPlan) -> ScanEngine:
    """Make the engine that computes a scan's part of an epoch."""
    if name is Engine.SPARK:
        return SparkEngine(spark, scan, query)
    return StoreEngine(scan, at_once=spark.sparkContext.defaultParallelism)
