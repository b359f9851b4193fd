"""A table scan: backfill one relation into another, merging the upstream's history with its live changes.

Next: `workers.engines.port`.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from pyspark.sql import SparkSession

from service.protocol.ids import Epoch, RelationId
from service.protocol.plan import FragmentPlan, JobPlan, Pushdown, Stateless, TableScanPlan
from service.protocol.relation import Relation
from service.protocol.request import Engine
from workers.backfill.actors import as_one
from workers.backfill.pace import COPYING, Pace
from workers.backfill.positions import ONE_VNODE
from workers.backfill.reading import Reading, interleaved
from workers.backfill.scan import ScanState
from workers.connectors.kinds import SINKS
from workers.connectors.port import SinkWriter
from workers.engines.failing_row import find_failing_row
from workers.engines.port import ActorOutcome, EpochTask, ScanEngine, ScanTask
from workers.engines.spark import SparkEngine
from workers.engines.store import StoreEngine, copied_in_store
from workers.queries.stateless import StatelessPlan, plan
from workers.runners.failure import JobFailedError
from workers.runners.history import HistoryScan
from workers.runners.port import FragmentReport, FragmentRunner, Phase, Place, RunningEpoch
from workers.state_store.port import VersionedStore, has_store_engine

FEW: Final = 1000
"""So many changes are computed by one task for all actors: starting a task costs more than their rows do."""


@dataclass(kw_only=True)
class TableScan(HistoryScan):
    """One scan fragment while it runs: a `FragmentRunner`."""

    spark: SparkSession
    upstream: Relation
    query: StatelessPlan
    sink: SinkWriter | None = None
    """Takes the rows in place of the store."""
    pushdown: Pushdown | None = None
    consumed: Epoch | None = None
    """The epoch that a snapshot job had consumed when it joined the database graph. Its first epoch there reads the
    rest.
    """
    paces: dict[Engine, Pace] = field(default_factory=lambda: {Engine.SPARK: Pace(), Engine.STORE: COPYING})
    """One pace per engine, because a job in the store starts and ends faster than one in Spark."""
    engines: dict[tuple[Engine, int], ScanEngine] = field(default_factory=dict[tuple[Engine, int], ScanEngine])
    """By their number of tasks. Made on first use, so that an idle view costs nothing."""
    ended: bool = False

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
            consumed=None if job.snapshot is None else job.snapshot.consumed,
        )

    @property
    def place(self) -> Place:
        """The place of its target, which has a higher id than everything it reads."""
        return Phase.SCAN, self.target.id, self.state.id

    @property
    def reads(self) -> Collection[RelationId]:
        """Its upstream."""
        return (self.upstream.id,)

    @property
    def settled(self) -> bool:
        """Whether all history is read and no limit of 0 applies."""
        return self.state.finished and not self.state.held

    def replan(self) -> None:
        """Discard the engines, which depend on the present actors."""
        self.engines = {}

    def end(self) -> None:
        """Make a running engine fail soon, and run nothing any more."""
        self.ended = True
        for engine in list(self.engines.values()):
            engine.give_up()

    def is_brief(self, epoch: RunningEpoch) -> bool:
        """Whether its history is read, and little of its upstream has changed in this epoch."""
        joining = self.job in epoch.readings or self.consumed is not None
        return self.state.finished and not joining and epoch.written[self.upstream.id] <= FEW

    def run(self, epoch: RunningEpoch) -> Sequence[FragmentReport]:
        """Run one epoch within the scan's share of the rest of the interval."""
        reading, finished = self._reading(epoch), self.state.finished
        permits = self.permits(epoch)
        outcomes: Sequence[ActorOutcome] = ()
        self.timings_ms = {}
        if reading.changes or any(allowed != 0 for allowed in permits):
            actors = self.actor_tasks(permits)
            if self.is_brief(epoch):
                actors = (as_one(actors),)
            task = EpochTask(curr=epoch.barrier.curr, reading=reading, actors=actors, page_rows=self.page_rows)
            outcomes = self._compute(epoch, task)
            self.advance(outcomes)
            self.consumed = None
            inserted, closed = (sum(outcome.inserted for outcome in outcomes), sum(o.closed for o in outcomes))
            epoch.wrote(self.target.id, inserted=inserted, ended=closed)
        epoch.timings_ms |= {f"{name}_{self.state.id}": took for name, took in self.timings_ms.items()}
        # Without interleaving, no change is left that the last page might have missed.
        finishing = self.state.finished if self.job in epoch.readings else finished
        by_actor = {outcome.actor: outcome for outcome in outcomes}
        return self.reports(
            by_actor,
            finishing=finishing,
            forwarded=lambda actor: by_actor[actor].upstream_rows if actor in by_actor else 0,
        )

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

    def _compute(self, epoch: RunningEpoch, task: EpochTask) -> Sequence[ActorOutcome]:
        store, computing = epoch.stores.versioned, False
        try:
            with epoch.spark_turn():
                # The clock starts here, so that a long wait for the turn shortens the slice.
                began = epoch.clock()
                copies = copied_in_store(self._pushed(store), task.reading, finished=self.state.finished)
                name = Engine.STORE if copies else Engine.SPARK
                task = task.model_copy(update={"slice_seconds": self.paces[name].slice_seconds(epoch.share_seconds())})
                engine = self._engine(name, store, len(task.actors))
                # Checked here, because a call of `end` from now on finds the engine.
                self._check_present()
                computing = True
                outcomes = engine.run(task)
        except Exception as error:
            raise JobFailedError(
                self.job,
                error,
                target=self.target,
                upstream=self.upstream,
                find_key=partial(find_failing_row, self.spark, self._task(store, len(task.actors)), self.query, task),
                computing=computing,
            ) from error
        job_seconds = epoch.clock() - began
        self.paces[name] = self.measure(
            outcomes, self.paces[name], slice_seconds=task.slice_seconds, job_seconds=job_seconds
        )
        return outcomes

    def _check_present(self) -> None:
        if self.ended:
            raise InterruptedError("the generation is over")

    def _engine(self, name: Engine, store: VersionedStore, actors: int) -> ScanEngine:
        if (name, actors) not in self.engines:
            self.engines[name, actors] = self._made(name, self._task(store, actors))
        return self.engines[name, actors]

    def _made(self, name: Engine, scan: ScanTask) -> ScanEngine:
        return make_engine(name, self.spark, scan, self.query)

    def _task(self, store: VersionedStore, actors: int) -> ScanTask:
        block = self.state.block_vnodes if store.capabilities.index_bounds else ONE_VNODE
        return ScanTask(store, self.upstream, self.target, actors, self._pushed(store), block, self.sink)

    def _pushed(self, store: VersionedStore) -> Pushdown | None:
        return self.pushdown if has_store_engine(store) else None


def make_engine(name: Engine, spark: SparkSession, scan: ScanTask, query: StatelessPlan) -> ScanEngine:
    """Make the engine that computes a scan's part of an epoch."""
    if name is Engine.SPARK:
        return SparkEngine(spark, scan, query)
    return StoreEngine(scan, at_once=spark.sparkContext.defaultParallelism)
