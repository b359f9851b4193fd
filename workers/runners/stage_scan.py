"""A stage of a view: read the history of its driver, then follow the changes of all its inputs.

Its history is read after all stages before it have read theirs, because its inputs are complete then. A snapshot job
reads relations of the database graph as of the pinned epoch, and its own relations as of the present one. It forwards
changes only after its history. In the database graph, a projection forwards changes beside its history, of rows that it
has read. Next: `workers.engines.port`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import structlog
from pyspark.sql import SparkSession

from service.protocol.ids import Epoch, JobId, RelationId
from service.protocol.plan import FragmentPlan, JobPlan, TableScanPlan
from service.protocol.report import FragmentReport
from service.protocol.stage import Engine, Stage
from service.protocol.stage_spark import engine_of, spark_reason
from workers.backfill.actors import as_one
from workers.backfill.reading import Reading, interleaved
from workers.backfill.scan import ScanState
from workers.backfill.stages import BoundStage, Window
from workers.connectors.kinds import SINKS
from workers.connectors.port import SinkWriter
from workers.engines.copiers import Copiers
from workers.engines.failing_row import find_failing_row
from workers.engines.group_merge import GroupMerge
from workers.engines.port import ActorOutcome, ScanTask, StageTask, TaskEngine
from workers.engines.spark import SparkProjection
from workers.engines.stage_changes import SparkStageChanges
from workers.engines.stage_parts import SparkPartEngine
from workers.engines.stage_spark import SparkStageEngine
from workers.engines.stages import StageEngine
from workers.queries.stage_spark import used_columns
from workers.runners.failure import JobFailedError, find_nothing
from workers.runners.port import FragmentRunner, Place, RunningEpoch
from workers.runners.upstream_scan import UpstreamScan
from workers.state_store.port import has_store_engine

log = structlog.get_logger(__name__)
_HANDED_OVER: Final = set[tuple[JobId, RelationId]]()
"""The stages, by what they write, that Spark could not compute since this worker began."""


@dataclass(kw_only=True)
class StageScan(UpstreamScan):
    """One stage while it runs: a `FragmentRunner`."""

    own: frozenset[RelationId]
    """The relations that the job itself writes. They change in the epochs of its own graph."""
    sink: SinkWriter | None = None
    """Takes the rows in place of the store."""
    engine: StageEngine | None = None
    """Made on first use, so that an idle view costs nothing."""
    projection: SparkProjection | None = None
    """Reads and follows in Spark, if each row is computed from one row."""
    reader: SparkStageEngine | SparkPartEngine | None = None
    """Reads the history if Spark does. It is closed when all history is read."""
    follower: SparkStageChanges | None = None
    """Follows the changes if Spark does."""
    handed_over: bool = False
    """Whether Spark could not compute something, so that the store computes the rest."""
    merges: bool = False
    """Whether the groups of its target are merged after its history."""
    merge: GroupMerge | None = None
    """Made when all history is read."""

    @classmethod
    def join(
        cls,
        spark: SparkSession,
        _runners: Mapping[Place, FragmentRunner],
        job: JobPlan,
        fragment: FragmentPlan,
        now: float,
    ) -> "StageScan":
        """Build a stage from its plan."""
        assert isinstance(fragment, TableScanPlan)
        assert isinstance(fragment.query, Stage)
        target, sink = job.written_by(fragment), fragment.sink
        relations = {one.id: one for one in (fragment.upstream, *fragment.lookups)}
        return cls(
            job.id,
            target,
            ScanState.of(fragment, now=now),
            bound=BoundStage(fragment.query, target, relations),
            own=frozenset(one.id for one in job.hidden),
            sink=None if sink is None else SINKS[sink.name](sink.options),
            spark=spark,
            consumed=None if job.snapshot is None else job.snapshot.consumed,
            merges=fragment.query.aggregate is not None and _merges(job, fragment),
            handed_over=(job.id, target.id) in _HANDED_OVER,
        )

    @property
    def history_over(self) -> bool:
        """Whether all history is read and its groups are merged."""
        return self.state.finished and (not self.merges or (self.merge is not None and self.merge.done))

    def readers(self, *, paused: bool) -> int:
        """Return 1 if the scan may read history or merge groups, otherwise 0."""
        return int(self.may_read(paused=paused) or self._may_merge(paused=paused))

    def _may_merge(self, *, paused: bool) -> bool:
        return self.state.finished and not (self.history_over or paused or self.state.held)

    def replan(self) -> None:
        """Discard the store's engine, which has a thread for each actor. The others take the actors of each epoch."""
        if self.merge is None:
            self.engine = None

    def end(self) -> None:
        """Make a running engine fail soon, and run nothing any more."""
        self.ended = True
        if self.engine is not None:
            self.engine.give_up()
        self._close_reader()
        self._close_follower()

    def run(self, epoch: RunningEpoch) -> Sequence[FragmentReport]:
        """Run one epoch within the stage's share of the rest of the interval."""
        permits, outcomes = self.permits(epoch), ()
        windows, beside = self._windows(epoch), self.job not in epoch.readings
        over, projects = self.history_over, self.bound.stage.is_projection
        changed = self._changed(epoch, windows) if over or beside else frozenset()
        self.timings_ms = {}
        if changed or any(allowed != 0 for allowed in permits):
            actors = self.actor_tasks(permits)
            if projects and (self.is_brief(epoch) or epoch.barrier.follows):
                # A created job in a graph of its own may compute for long: the other slots of Spark are for others.
                actors = (as_one(actors),)
            task = StageTask(
                curr=epoch.barrier.curr,
                actors=actors,
                page_rows=self.page_rows,
                windows=windows,
                changed=changed,
                at={one: self._at(epoch, one) for one in windows},
            )
            outcomes = self._advance(epoch, task)
            if self.state.finished:
                self._close_reader()
        if self._may_merge(paused=epoch.paused):
            self._merge(epoch)
        self.consumed = None
        held_up = not self._may_merge(paused=epoch.paused)
        # Beside changes, there may be some of rows that the last page read.
        return self._report(epoch, outcomes, finishing=over if beside else self.history_over, held_up=held_up)

    def _merge(self, epoch: RunningEpoch) -> None:
        """Merge groups for the rest of the slice. A few of them need no further epoch."""
        computing = False
        try:
            with epoch.spark_turn():
                self._check_present()
                engine = self._engine(epoch)
                merge = self.merge or GroupMerge(engine.store, self.bound, engine.copiers)
                self.merge, computing = merge, True
                seconds = self.paces[Engine.STORE].slice_seconds(epoch.share_seconds())
                inserted = merge.run(epoch.barrier.curr, slice_seconds=seconds)
        except Exception as error:
            raise self._blamed(error, computing=computing) from error
        epoch.wrote(self.target.id, inserted=inserted, ended=0)

    def _windows(self, epoch: RunningEpoch) -> dict[RelationId, Window]:
        """Return the window of each input: the epochs between which it changed in this epoch.

        The job's own relations change only at the epoch itself. The previous epoch of the graph does not matter for
        them, because the job may have written last in another graph.
        """
        curr, barrier = epoch.barrier.curr, epoch.barrier
        reading = epoch.readings.get(self.job)
        if reading is None:
            reading = interleaved(since=barrier.prev if self.consumed is None else self.consumed, curr=curr)
        own = Window(Epoch(curr - 1), curr)
        return {one: own if one in self.own else Window(reading.after, reading.upto) for one in self.reads}

    def _at(self, epoch: RunningEpoch, relation: RelationId) -> Epoch:
        reading: Reading | None = epoch.readings.get(self.job)
        return epoch.barrier.curr if reading is None or relation in self.own else reading.at

    def _changed(self, epoch: RunningEpoch, windows: Mapping[RelationId, Window]) -> frozenset[RelationId]:
        """Return the inputs that have changed. Where this epoch's runners do not say so, ask the store."""
        asks, store = self._asks(epoch), epoch.stores.versioned
        return frozenset(
            one
            for one, window in windows.items()
            if one in epoch.changed
            or (
                asks
                and one not in self.own
                and window.after < window.upto
                and store.changed(self.bound.relations[one], after=window.after, upto=window.upto)
            )
        )

    def _choose(self, epoch: RunningEpoch, task: StageTask) -> tuple[Engine, TaskEngine]:
        name = self._chosen(epoch)
        if self.bound.stage.is_projection:
            return name, self._engine(epoch) if name is Engine.STORE else self._projection(epoch)
        # Spark reads the parts of whole vnodes, and the store as many rows as a limit allows.
        limited = self.bound.stage.partition is not None and any(actor.permits for actor in task.actors)
        if name is Engine.STORE or limited:
            return Engine.STORE, self._engine(epoch)
        return name, _Following(self, epoch) if self.state.finished else self._reader(epoch)

    def _failed(self, error: Exception, epoch: RunningEpoch, task: StageTask, *, computing: bool) -> JobFailedError:
        finds = self.bound.stage.is_projection and spark_reason(self.bound.stage) is None
        find_key = partial(find_failing_row, self.spark, self._scan_task(epoch), task) if finds else find_nothing
        return self._blamed(error, computing=computing, find_key=find_key)

    def _blamed(
        self, error: Exception, *, computing: bool, find_key: Callable[[float], str | None] = find_nothing
    ) -> JobFailedError:
        return JobFailedError(
            self.job,
            error,
            target=self.target,
            upstream=self.bound.upstream,
            find_key=find_key,
            computing=computing,
        )

    def _compute(self, epoch: RunningEpoch, task: StageTask) -> Sequence[ActorOutcome]:
        try:
            return super()._compute(epoch, task)
        except JobFailedError as error:
            if not self._hands_over(error, epoch):
                raise
            log.warning("stage.handed_over", target=self.target.name, reason=error.reason)
            if not self._writes_whole:
                _HANDED_OVER.add((self.job, self.target.id))
                error.hand_over()
                raise
            self.handed_over = True
            self._close_reader()
            self._close_follower()
            return super()._compute(epoch, task)

    def _hands_over(self, error: JobFailedError, epoch: RunningEpoch) -> bool:
        """Whether the store computes what Spark could not, such as a number of more than 38 digits.

        If rows may have been written already, this costs a recovery. So it has to be Spark's fault then.
        """
        able = epoch.stores.versioned.capabilities.store_engine and self.sink is None
        # Others have waited for long enough for a stage that takes too long.
        unable = error.deterministic and not error.too_slow and (self._writes_whole or error.beyond_spark)
        return able and unable and self._chosen(epoch) is Engine.SPARK

    @property
    def _writes_whole(self) -> bool:
        """Whether Spark writes nothing before it has computed all of an epoch.

        It hands over sums when it has computed all of them, and it writes parts, and what follows from changes, when it
        has computed all of that. The pages of another stage's history, or of a projection, may be written in part.
        """
        stage = self.bound.stage
        return (
            stage.aggregate is not None
            or stage.partition is not None
            or (self.state.finished and not stage.is_projection)
        )

    def _chosen(self, epoch: RunningEpoch) -> Engine:
        """Return the engine of this epoch."""
        if self.handed_over:
            return Engine.STORE
        # The store writes into its own tables only.
        store_engine = epoch.stores.versioned.capabilities.store_engine and self.sink is None
        name, _ = engine_of(self.bound.stage, store_engine=store_engine)
        driver = self.bound.upstream
        return name or self._by_rows(epoch, driver, self._at(epoch, driver.id))

    def _scan_task(self, epoch: RunningEpoch) -> ScanTask:
        driver = used_columns(self.bound, [self.bound.stage.driver.alias])
        return ScanTask(epoch.stores.versioned, self.bound, driver, self.state.block_vnodes, self.sink)

    def _projection(self, epoch: RunningEpoch) -> TaskEngine:
        if self.projection is None:
            self.projection = SparkProjection(self.spark, self._scan_task(epoch))
        return self.projection

    def _engine(self, epoch: RunningEpoch) -> StageEngine:
        store = epoch.stores.versioned
        assert has_store_engine(store), "the table format computes no stages"
        if self.engine is None:
            at_once = min(len(self.state.actors), self.spark.sparkContext.defaultParallelism)
            self.engine = StageEngine(
                store, self.bound, Copiers(f"stage-{self.target.id}", at_once), self.state.block_vnodes
            )
        return self.engine

    def _reader(self, epoch: RunningEpoch) -> SparkStageEngine | SparkPartEngine:
        store = epoch.stores.versioned
        if self.reader is None:
            self.reader = (
                SparkStageEngine(self.spark, store, self.bound, self.state.block_vnodes)
                if self.bound.stage.partition is None
                else SparkPartEngine(self.spark, store, self.bound)
            )
        return self.reader

    def follow(self, epoch: RunningEpoch, task: StageTask) -> Sequence[ActorOutcome]:
        """Follow the changes of an epoch in Spark, or in the store while Spark still reads the other inputs."""
        if self.follower is None:
            self.follower = SparkStageChanges(self.spark, epoch.stores.versioned, self.bound)
        found = self.follower.run(task)
        return self._engine(epoch).run(task) if found is None else found

    def _close_follower(self) -> None:
        follower, self.follower = self.follower, None
        if follower is not None:
            follower.close()

    def _close_reader(self) -> None:
        reader, self.reader = self.reader, None
        if reader is not None:
            reader.close()


@dataclass(frozen=True)
class _Following:
    """Spark's engine of changes, as one epoch of a scan sees it."""

    scan: StageScan
    epoch: RunningEpoch

    def run(self, task: StageTask) -> Sequence[ActorOutcome]:
        return self.scan.follow(self.epoch, task)


def _merges(job: JobPlan, fragment: TableScanPlan) -> bool:
    """Whether the stage is the last one of its job that writes its relation, and the job reads its snapshot.

    Branches of a UNION and grouping sets write the same relation, and share its log.
    """
    if job.snapshot is None or job.snapshot.consumed is not None:
        return False
    target = job.written_by(fragment).id
    *_, last = (one for _, one in job.staged if job.written_by(one).id == target)
    return last.id == fragment.id
