"""Follow the changes of a stage's inputs in Spark. Its history was read before.

    net changes of the inputs (Arrow) -> what is gone and what has come (`stage_rule`, or `stage_parts` for parts)
        -> writer (python, Arrow)

Rows of a stage are written by tasks, each vnode by one of them: what is gone first. A row that is gone and has come
again is neither. Sums of groups are handed to the store, which adds them to its groups.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from service.protocol.ids import RelationId
from service.protocol.stage_spark import lake_reason
from workers.backfill.stages import BoundStage
from workers.connectors.port import SinkWriter
from workers.engines.port import ActorOutcome, StageTask
from workers.engines.stage_groups import add_changes
from workers.engines.stage_inputs import StageInputs
from workers.engines.stage_lookups import BROADCAST_BYTES
from workers.engines.stage_parts import changed_parts
from workers.engines.stage_rows import nothing_read, write_changes
from workers.engines.stage_rule import StageRule
from workers.spark.frames import release_plans
from workers.state_store.port import CLOSE, LIVE, VersionedStore, Written, has_store_engine

FEW: Final = 10_000
"""So many changes are written by one task."""


@dataclass
class SparkStageChanges:
    """Follows the changes of one stage in one generation. Inputs up to `broadcast_bytes` are sent to all tasks."""

    spark: SparkSession
    store: VersionedStore
    bound: BoundStage
    broadcast_bytes: int = BROADCAST_BYTES
    sink: SinkWriter | None = None
    """Takes the rows in place of the store."""

    def __post_init__(self) -> None:
        # A session of its own has its own views and settings; it shares everything else.
        self.session = self.spark.newSession()
        self.session.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")
        self.tasks = self.session.sparkContext.defaultParallelism
        self.session.conf.set("spark.sql.shuffle.partitions", str(self.tasks))
        # To plan a job anew after each exchange costs more than a few rows do.
        self.session.conf.set("spark.sql.adaptive.enabled", "false")
        self.inputs = StageInputs(self.session, self.store, self.bound, self.broadcast_bytes)

    def run(self, task: StageTask) -> list[ActorOutcome] | None:
        """Follow one epoch. When this returns, every transaction is durable. Raises the errors of the store and of
        Spark.

        None if inputs are still being read, and the format can compute the changes itself.
        """
        began = time.monotonic()  # noqa: TID251 - the engine owns the clock of its slice
        changes = self.inputs.changes(task.changed, task.windows)
        moved = {alias for alias, one in self.bound.of.items() if one.id in changes and changes[one.id].num_rows}
        # A part is computed from all its rows, whichever of them changed. So is a group that is joined to the core.
        stage = self.bound.stage
        wholly = {one.alias for join in stage.joins[0 if stage.partition is not None else 1 :] for one in join.inputs}
        needed = {one.id for alias, one in self.bound.of.items() if (moved if alias in wholly else moved - {alias})}
        in_store = self.sink is None and lake_reason(self.bound.relations.values()) is None
        able = has_store_engine(self.store) and in_store
        ready = self.inputs.ready(needed, task.windows, slice_seconds=task.slice_seconds if able else None)
        written = Written(0, 0)
        if ready and moved:
            try:
                written = self._follow(changes, task)
            finally:
                release_plans()
            self.inputs.assure_single_reads()
        self.inputs.record(changes, task.windows)
        if not ready:
            return None
        took = time.monotonic() - began  # noqa: TID251 - as above
        first, *others = [nothing_read(index, task.page_rows, took) for index in range(len(task.actors))]
        read = sum(table.num_rows for table in changes.values())
        return [replace(first, upstream_rows=read, inserted=written.inserted, closed=written.closed), *others]

    def close(self) -> None:
        """Release the memory of the inputs."""
        self.inputs.close()

    def _follow(self, changes: Mapping[RelationId, pa.Table], task: StageTask) -> Written:
        states = self.inputs.states(changes)
        self.session.conf.set("spark.sql.codegen.wholeStage", str(not self.inputs.are_few).lower())
        few = sum(table.num_rows for table in changes.values()) <= FEW
        if self.bound.stage.partition is not None:
            (only,) = states.values()
            parts = {side: changed_parts(self.session, self.bound, only, side) for side in (CLOSE, LIVE)}
            return self._write(parts, task, few=few)
        rule = StageRule(self.bound, states)
        try:
            sides = {side: rows for side in (CLOSE, LIVE) if (rows := rule.rows(side)) is not None}
            if not sides:
                return Written(0, 0)
            if self.bound.stage.aggregate is not None:
                return add_changes(self.store, self.bound, sides, task, few=few)
            return self._write(sides, task, few=few)
        finally:
            rule.release()

    def _write(self, sides: Mapping[int, DataFrame], task: StageTask, *, few: bool) -> Written:
        writer = self.sink or self.store
        return write_changes(sides, writer, self.bound, task, few=few, wire=self.sink is None)
