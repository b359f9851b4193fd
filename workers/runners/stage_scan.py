"""A stage of a view: read the history of its driver, then follow the changes of all its inputs.

Its history is read after all stages before it have read theirs, because its inputs are complete then. A snapshot job
reads relations of the database graph as of the pinned epoch, and its own relations as of the present one. It forwards
changes only after its history. In the database graph, a projection forwards changes beside its history, of rows that it
has read. Next: `workers.engines.port`.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import structlog
from pyspark.sql import SparkSession

from service.protocol.ids import Epoch, JobId, RelationId
from service.protocol.plan import FragmentPlan, JobPlan, TableScanPlan
from service.protocol.relation import versions_of
from service.protocol.report import FragmentReport
from service.protocol.stage import Engine, Stage
from service.protocol.stage_spark import engine_of, lake_reason, spark_from, spark_reason
from workers.backfill.actors import as_one
from workers.backfill.reading import Reading, interleaved
from workers.backfill.scan import ScanState
from workers.backfill.stages import BoundStage, Window
from workers.connectors.in_place import kept_versions, located, version_at, version_row
from workers.connectors.kinds import SecretOf, sink_of
from workers.connectors.limited import CALLER
from workers.engines.failing_row import find_failing_row
from workers.engines.port import ActorOutcome, StageTask, TaskEngine
from workers.engines.stage_engines import StageEngines
from workers.runners.delivery import Delivery
from workers.runners.engine_turns import EngineTurns
from workers.runners.failure import JobFailedError, find_nothing
from workers.runners.history import HistoryScan
from workers.runners.port import FEW, FragmentRunner, Phase, Place, RunningEpoch

log = structlog.get_logger(__name__)
_HANDED_OVER: Final = set[tuple[JobId, RelationId]]()
"""The stages, by what they write, that Spark could not compute since this worker began."""


@dataclass(kw_only=True)
class StageScan(HistoryScan):
    """One stage while it runs: a `FragmentRunner`."""

    bound: BoundStage
    spark: SparkSession
    own: frozenset[RelationId]
    """The relations that the job itself writes. They change in the epochs of its own graph."""
    consumed: Epoch | None = None
    """The epoch that a snapshot job had consumed when it joined the database graph. Its first epoch there reads the
    rest.
    """
    delivery: Delivery | None = None
    """Delivers the rows to a sink's target. Nothing is stored."""
    versions: bool = False
    """Whether it stores the version that its target in the lake has at an epoch. One scan of a job does."""
    read_at: Epoch | None = None
    """The epoch after which the history was over, as far as this generation knows."""
    turns: EngineTurns = field(init=False)
    engines: StageEngines | None = None
    """Made in the first epoch that computes."""
    handed_over: bool = False
    """Whether Spark could not compute something, so that the store computes the rest."""
    merges: bool = False
    """Whether the groups of its target are merged after its history."""
    spark_reads: bool | None = None
    """Whether there is enough history for Spark. Found out once in a generation."""

    def __post_init__(self) -> None:
        self.turns = EngineTurns(self.spark)

    @classmethod
    def join(
        cls,
        spark: SparkSession,
        secret_of: SecretOf,
        _runners: Mapping[Place, FragmentRunner],
        job: JobPlan,
        fragment: FragmentPlan,
        now: float,
    ) -> "StageScan":
        """Build a stage from its plan. `secret_of` is asked when the first delivery of a sink begins."""
        assert isinstance(fragment, TableScanPlan)
        assert isinstance(fragment.query, Stage)
        target, sink = job.written_by(fragment), fragment.sink
        relations = {one.id: located(one, secret_of) for one in (fragment.upstream, *fragment.lookups)}
        return cls(
            job.id,
            target,
            ScanState.of(fragment, now=now),
            bound=BoundStage(fragment.query, target, relations),
            own=frozenset(one.id for one in job.hidden),
            delivery=None if sink is None else Delivery(partial(sink_of, sink, secret_of, target)),
            versions=target.lake is not None and fragment.id == min(one.id for one in job.table_scans if one.sink),
            spark=spark,
            consumed=None if job.snapshot is None else job.snapshot.consumed,
            merges=fragment.query.aggregate is not None and _merges(job, fragment),
            handed_over=(job.id, target.id) in _HANDED_OVER,
        )

    @property
    def place(self) -> Place:
        """The place of its target, which has a higher id than everything it reads."""
        return Phase.SCAN, self.target.id, self.state.id

    @property
    def reads(self) -> Collection[RelationId]:
        """All inputs."""
        return tuple(self.bound.relations)

    @property
    def history_over(self) -> bool:
        """Whether all history is read and its groups are merged."""
        return self.state.finished and (not self.merges or (self.engines is not None and self.engines.merged))

    @property
    def settled(self) -> bool:
        """Whether the history is over, also at a target outside, and no limit of 0 applies."""
        delivered = self.delivery is None or (self.read_at is not None and self.delivery.has(self.read_at))
        return self.history_over and delivered and not self.state.held

    def is_brief(self, epoch: RunningEpoch) -> bool:
        """Whether it only forwards a few changes in this epoch, and may run beside others."""
        return self._follows_few(epoch) and not epoch.stores.costs.is_apart(self.job)

    def _follows_few(self, epoch: RunningEpoch) -> bool:
        """Whether its history is over, and little of what it reads has changed in this epoch."""
        return self.history_over and not self._asks(epoch) and self._written(epoch) <= FEW

    def readers(self, *, paused: bool) -> int:
        """Return 1 if the scan may read history or merge groups, otherwise 0."""
        return int(self.may_read(paused=paused) or self._may_merge(paused=paused))

    def _may_merge(self, *, paused: bool) -> bool:
        return self.state.finished and not (self.history_over or paused or self.state.held)

    def replan(self) -> None:
        """Discard what depends on the actors."""
        if self.engines is not None:
            self.engines.replan()

    def end(self) -> None:
        """Make a running engine fail soon, and run nothing any more."""
        self.turns.ended = True
        if self.engines is not None:
            self.engines.end()

    def run(self, epoch: RunningEpoch) -> Sequence[FragmentReport]:
        """Run one epoch within the stage's share of the rest of the interval."""
        CALLER.set(epoch.stores.costs.caller(self.job))
        if self.delivery is not None:
            self._deliver(self.delivery, epoch)
        permits, outcomes = self.page_permits(epoch), ()
        windows, beside = self._windows(epoch), self.job not in epoch.readings
        over, projects = self.history_over, self.bound.stage.is_projection
        changed = self._changed(epoch, windows) if over or beside else frozenset()
        self.timings_ms = {}
        if changed or any(allowed != 0 for allowed in permits):
            actors = self.actor_tasks(permits)
            if projects and (self._follows_few(epoch) or epoch.barrier.follows):
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
            outcomes = self._compute(epoch, task)
            self.advance(outcomes)
            inserted, closed = sum(one.inserted for one in outcomes), sum(one.closed for one in outcomes)
            epoch.wrote(self.target.id, inserted=inserted, ended=closed)
            if self.state.finished and self.engines is not None:
                self.engines.close_reader()
        if self._may_merge(paused=epoch.paused):
            self._merge(epoch)
        self.consumed = None
        held_up = not self._may_merge(paused=epoch.paused)
        # Beside changes, there may be some of rows that the last page read.
        return self._report(epoch, outcomes, finishing=over if beside else self.history_over, held_up=held_up)

    def _deliver(self, delivery: Delivery, epoch: RunningEpoch) -> None:
        """Deliver what is due. Readers of the relation in its lake get the new version from this epoch on."""
        if self.history_over and self.read_at is None:
            self.read_at = epoch.barrier.prev
        try:
            version = delivery.run(epoch.barrier, epoch.clock(), awaited=self.read_at)
            if version is not None and self.versions:
                store = epoch.stores.versioned
                before = version_at(store, self.target, epoch.barrier.prev)
                if version != before:
                    store.write(versions_of(self.target), epoch.barrier.curr, version_row(version, before))
            if version is not None:
                delivery.keep_up(partial(self._kept_versions, epoch))
        except Exception as error:
            raise self._blamed(error, computing=False) from error

    def _kept_versions(self, epoch: RunningEpoch) -> Sequence[int]:
        return () if self.target.lake is None else kept_versions(epoch.stores.by_sql, self.target)

    def _merge(self, epoch: RunningEpoch) -> None:
        """Merge groups for the rest of the slice. A few of them need no further epoch."""
        computing = False
        try:
            with epoch.spark_turn():
                self.turns.check_present()
                engines = self._engines(epoch)
                if engines.merged:
                    return
                merge, computing = engines.merge(len(self.state.actors)), True
                seconds = self.turns.paces[Engine.STORE].slice_seconds(epoch.share_seconds())
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

    def _asks(self, epoch: RunningEpoch) -> bool:
        """Whether the store has to be asked what changed, because the span is not the one of the epoch's barrier."""
        return self.job in epoch.readings or self.consumed is not None

    def _written(self, epoch: RunningEpoch) -> int:
        """Return how many versions of what it reads this epoch has made and ended."""
        return sum(epoch.written[one] for one in self.reads)

    def _engines(self, epoch: RunningEpoch) -> StageEngines:
        if self.engines is None:
            store, sink = epoch.stores.versioned, None if self.delivery is None else self.delivery.writer
            self.engines = StageEngines(self.spark, store, self.bound, self.state.block_vnodes, sink)
        return self.engines

    def _compute(self, epoch: RunningEpoch, task: StageTask) -> Sequence[ActorOutcome]:
        """Run an engine. What Spark cannot compute goes to the store, if there is one."""
        try:
            return self._ran(epoch, task)
        except JobFailedError as error:
            if not self._hands_over(error, epoch):
                raise
            log.warning("stage.handed_over", target=self.target.name, reason=error.reason)
            if not self._writes_whole:
                _HANDED_OVER.add((self.job, self.target.id))
                error.hand_over()
                raise
            self.handed_over = True
            self._engines(epoch).close_spark()
            return self._ran(epoch, task)

    def _ran(self, epoch: RunningEpoch, task: StageTask) -> Sequence[ActorOutcome]:
        choose = partial(self._choose, epoch, task)
        try:
            return self.turns.run(epoch, task, choose, self, history_over=self.history_over)
        except Exception as error:
            finds = self.bound.stage.is_projection and spark_reason(self.bound.stage) is None
            scan = self._engines(epoch).scan_task
            find_key = partial(find_failing_row, self.spark, scan, task) if finds else find_nothing
            raise self._blamed(error, computing=self.turns.computing, find_key=find_key) from error

    def _choose(self, epoch: RunningEpoch, task: StageTask) -> tuple[Engine, TaskEngine]:
        name = self._chosen(epoch)
        # Spark reads the parts of whole vnodes, and the store as many rows as a limit allows.
        limited = self.bound.stage.partition is not None and any(actor.permits for actor in task.actors)
        if limited and self._no_store(epoch) is None:
            name = Engine.STORE
        return name, self._engines(epoch).of(name, task, history_read=self.state.finished)

    def _chosen(self, epoch: RunningEpoch) -> Engine:
        """Return the engine of this epoch."""
        if self.handed_over:
            return Engine.STORE
        name, _ = engine_of(self.bound.stage, self._no_store(epoch))
        return name or self._by_rows(epoch)

    def _no_store(self, epoch: RunningEpoch) -> str | None:
        """Return why the store cannot compute the stage. It reads its own tables only, and writes into these."""
        if not epoch.stores.versioned.capabilities.store_engine or self.delivery is not None:
            return "the table format has no engine"
        return lake_reason(self.bound.relations.values())

    def _by_rows(self, epoch: RunningEpoch) -> Engine:
        """Choose the engine by the rows of the history that is read, or of the changes of this epoch."""
        cluster = not str(self.spark.sparkContext.master).startswith("local")
        if self.history_over:
            # Spark would first read what it looks up. Changes of the log, which have come in other epochs, are not
            # counted.
            known = self.bound.stage.is_alone and not self._asks(epoch)
            rows = spark_from(epoch.barrier.scans.spark_changes_rows, cluster=cluster)
            return Engine.SPARK if known and self._written(epoch) >= rows else Engine.STORE
        if self.spark_reads is None:
            rows, driver = spark_from(epoch.barrier.scans.spark_history_rows, cluster=cluster), self.bound.upstream
            self.spark_reads = epoch.stores.versioned.has_rows(driver, rows, at=self._at(epoch, driver.id))
        return Engine.SPARK if self.spark_reads else Engine.STORE

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

    def _hands_over(self, error: JobFailedError, epoch: RunningEpoch) -> bool:
        """Whether the store computes what Spark could not, such as a number of more than 38 digits.

        If rows may have been written already, this costs a recovery. So it has to be Spark's fault then.
        """
        able = self._no_store(epoch) is None
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

    def _report(
        self, epoch: RunningEpoch, outcomes: Sequence[ActorOutcome], *, finishing: bool, held_up: bool
    ) -> Sequence[FragmentReport]:
        epoch.timings_ms |= {f"{name}_{self.state.id}": took for name, took in self.timings_ms.items()}
        by_actor = {outcome.actor: outcome for outcome in outcomes}
        reports = self.reports(
            by_actor,
            finishing=finishing,
            held_up=held_up,
            forwarded=lambda actor: by_actor[actor].upstream_rows if actor in by_actor else 0,
        )
        counted, self.turns.counted = self.turns.counted, {}
        if not counted:
            return reports
        first, *others = reports
        return (
            first.model_copy(update=counted),
            *(one.model_copy(update={"engine": counted["engine"]}) for one in others),
        )


def _merges(job: JobPlan, fragment: TableScanPlan) -> bool:
    """Whether the stage is the last one of its job that writes its relation, and the job reads its snapshot.

    Branches of a UNION and grouping sets write the same relation, and share its log.
    """
    if job.snapshot is None or job.snapshot.consumed is not None:
        return False
    target = job.written_by(fragment).id
    *_, last = (one for _, one in job.staged if job.written_by(one).id == target)
    return last.id == fragment.id
