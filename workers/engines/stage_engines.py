"""The engines of one stage in one generation. Each is made on first use, so that an idle view costs nothing."""

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import SparkSession

from service.protocol.stage import Engine
from workers.backfill.positions import BLOCK_VNODES
from workers.backfill.stages import BoundStage
from workers.connectors.port import SinkWriter
from workers.engines.copiers import Copiers
from workers.engines.group_merge import GroupMerge
from workers.engines.port import ActorOutcome, ScanTask, StageTask, TaskEngine
from workers.engines.spark import SparkProjection
from workers.engines.stage_changes import SparkStageChanges
from workers.engines.stage_parts import SparkPartEngine
from workers.engines.stage_spark import SparkStageEngine
from workers.engines.stages import StageEngine
from workers.queries.stage_spark import used_columns
from workers.state_store.port import VersionedStore, has_store_engine


@dataclass
class StageEngines:
    """The store's engine of a stage, and those of Spark: one for history and one for changes."""

    spark: SparkSession
    store: VersionedStore
    bound: BoundStage
    block_vnodes: int = BLOCK_VNODES
    sink: SinkWriter | None = None
    _in_store: StageEngine | None = None
    _projection: SparkProjection | None = None
    _reader: SparkStageEngine | SparkPartEngine | None = None
    _follower: SparkStageChanges | None = None
    _merge: GroupMerge | None = None

    @property
    def scan_task(self) -> ScanTask:
        """The stage as Spark's tasks read it."""
        driver = used_columns(self.bound, [self.bound.stage.driver.alias])
        return ScanTask(self.store, self.bound, driver, self.block_vnodes, self.sink)

    def of(self, name: Engine, task: StageTask, *, history_read: bool) -> TaskEngine:
        """Return the engine of an epoch."""
        if name is Engine.STORE:
            return self.in_store(len(task.actors))
        if self.bound.stage.is_projection:
            return self.projecting()
        if history_read:
            self._follower = self._follower or SparkStageChanges(self.spark, self.store, self.bound, sink=self.sink)
            return _Following(self, self._follower)
        if self._reader is None:
            self._reader = (
                SparkStageEngine(self.spark, self.store, self.bound, self.block_vnodes, sink=self.sink)
                if self.bound.stage.partition is None
                else SparkPartEngine(self.spark, self.store, self.bound, sink=self.sink)
            )
        return self._reader

    def projecting(self) -> TaskEngine:
        """Return Spark's engine of a projection."""
        self._projection = self._projection or SparkProjection(self.spark, self.scan_task)
        return self._projection

    def in_store(self, actors: int) -> StageEngine:
        """Return the store's engine, with a thread for each actor, as far as there are processors."""
        assert has_store_engine(self.store), "the table format computes no stages"
        if self._in_store is None:
            at_once = min(actors, self.spark.sparkContext.defaultParallelism)
            copiers = Copiers(f"stage-{self.bound.target.id}", at_once)
            self._in_store = StageEngine(self.store, self.bound, copiers, self.block_vnodes)
        return self._in_store

    def merge(self, actors: int) -> GroupMerge:
        """Return the merge of the groups of a history that has been read."""
        engine = self.in_store(actors)
        self._merge = self._merge or GroupMerge(engine.store, self.bound, engine.copiers)
        return self._merge

    @property
    def merged(self) -> bool:
        """Whether all groups are merged. A format without an engine has no partial groups."""
        return not has_store_engine(self.store) or (self._merge is not None and self._merge.done)

    def replan(self) -> None:
        """Discard the store's engine, because the actors have changed. The others take the actors of each epoch."""
        if self._merge is None:
            self._in_store = None

    def close_reader(self) -> None:
        """Release what Spark has read for the history."""
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()

    def close_spark(self) -> None:
        """Release what Spark has read."""
        self.close_reader()
        follower, self._follower = self._follower, None
        if follower is not None:
            follower.close()

    def end(self) -> None:
        """Make a running engine fail soon. Nothing of it can be written any more (I7)."""
        if self._in_store is not None:
            self._in_store.give_up()
        self.close_spark()


@dataclass(frozen=True)
class _Following:
    """Spark's engine of changes, and the store's while Spark still reads the other inputs."""

    engines: StageEngines
    follower: SparkStageChanges

    def run(self, task: StageTask) -> Sequence[ActorOutcome]:
        found = self.follower.run(task)
        return self.engines.in_store(len(task.actors)).run(task) if found is None else found
