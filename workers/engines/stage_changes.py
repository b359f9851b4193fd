"""Follow the changes of a stage's inputs in Spark. Its history was read before.

    net changes of the inputs (Arrow) -> what is gone and what has come (`stage_rule`, or `stage_parts` for parts)
        -> writer (python, Arrow)

Rows of a stage are written by tasks, each vnode by one of them: what is gone first. A row that is gone and has come
again is neither. Sums of groups are handed to the store, which adds them to its groups.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import reduce
from itertools import chain
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own customary name

from service.protocol.ids import RelationId
from workers.backfill.stages import BoundStage
from workers.engines.port import ActorOutcome, StageTask
from workers.engines.stage_inputs import StageInputs
from workers.engines.stage_lookups import BROADCAST_BYTES
from workers.engines.stage_parts import changed_parts
from workers.engines.stage_rows import SUMS, nothing_read, packed, sums_of, write_frame
from workers.engines.stage_rule import StageRule
from workers.queries.stage_spark import REPORT, StageSelect, written_columns
from workers.spark.frames import OUTCOME, send_task
from workers.state_store.port import CLOSE, LIVE, OPERATION, VNODE, VersionedStore, Written, has_store_engine
from workers.state_store.wire import ticked, to_wire

FEW: Final = 10_000
"""So many changes are written by one task."""
_CONTRIBUTED: Final = "contributed"
_ROW: Final = "row"


@dataclass
class SparkStageChanges:
    """Follows the changes of one stage in one generation. Inputs up to `broadcast_bytes` are sent to all tasks."""

    spark: SparkSession
    store: VersionedStore
    bound: BoundStage
    broadcast_bytes: int = BROADCAST_BYTES

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
        # A part is computed from all its rows, whichever of them changed.
        parts = self.bound.stage.partition is not None
        needed = {one.id for alias, one in self.bound.of.items() if (moved if parts else moved - {alias})}
        able = has_store_engine(self.store)
        ready = self.inputs.ready(needed, task.windows, slice_seconds=task.slice_seconds if able else None)
        written = Written(0, 0)
        if ready and moved:
            written = self._follow(changes, task)
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
        # To compile a plan costs more than to run it over small inputs without.
        self.session.conf.set("spark.sql.codegen.wholeStage", str(not self.inputs.are_small).lower())
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
                return self._add(sides, task, few=few)
            return self._write(sides, task, few=few)
        finally:
            rule.release()

    def _write(self, sides: Mapping[int, DataFrame], task: StageTask, *, few: bool) -> Written:
        target = self.bound.target
        vnode = StageSelect(self.bound).vnode() if self.bound.stage.distribution else ticked(VNODE)
        columns = [ticked(one.name) for one in target.columns]
        every = [
            rows.selectExpr(f"cast({side} as tinyint) as {ticked(OPERATION)}", f"{vnode} as {ticked(VNODE)}", *columns)
            for side, rows in sides.items()
        ]
        changed = reduce(DataFrame.unionAll, every)
        placed = changed.coalesce(1) if few else changed.repartition(self.tasks, VNODE)
        return write_frame(self._net(placed).sortWithinPartitions(OPERATION), self.store, target, task)

    def _net(self, changed: DataFrame) -> DataFrame:
        """Return the rows that differ, as a writer takes them. Values are compared by their texts."""
        target = self.bound.target
        texts = [
            F.expr(f"cast({to_wire(one.name, one.type, binary=False)} as string)").alias(f"{_ROW}{place}")
            for place, one in enumerate(target.columns)
        ]
        row = F.struct(*(F.col(ticked(one.name)) for one in target.columns))
        net = (
            changed.groupBy(F.col(VNODE), *texts)
            .agg(F.sum(OPERATION).cast("tinyint").alias(OPERATION), F.first(row).alias(_ROW))
            .where(F.col(OPERATION) != 0)
        )
        plain = net.select(OPERATION, VNODE, F.lit(None).cast("string").alias(REPORT), f"{_ROW}.*")
        return plain.selectExpr(ticked(OPERATION), ticked(VNODE), ticked(REPORT), *written_columns(target))

    def _add(self, sides: Mapping[int, DataFrame], task: StageTask, *, few: bool) -> Written:
        """Add the sums of what has come, less those of what is gone, to the groups."""
        assert has_store_engine(self.store), "the table format computes no stages"
        aggregate = self.bound.stage.aggregate
        assert aggregate is not None
        keys, measures = list(map(ticked, aggregate.keys)), list(map(ticked, aggregate.measures))
        control = f"cast(null as string) as {ticked(REPORT)}"
        # Spark's `-x` rounds a decimal to 34 digits.
        signed = {CLOSE: [f"0 - {one} as {one}" for one in measures], LIVE: measures}
        every = [rows.selectExpr(control, *keys, *signed[side]) for side, rows in sides.items()]
        contributed = reduce(DataFrame.unionAll, every)
        (contributed.coalesce(1) if few else contributed).createOrReplaceTempView(_CONTRIBUTED)
        sums = self.session.sql(StageSelect(self.bound).sums_written(f"select * from {_CONTRIBUTED}"))
        frame = sums.mapInArrow(packed, f"{OUTCOME} string, {SUMS} binary")
        send_task(frame, task)
        rows = frame.toLocalIterator()
        # The transaction begins when the sums begin to arrive, so it is short.
        first = next(rows, None)
        with self.store.staging(self.bound, task.curr, allowed_seconds=task.allowed_seconds) as session:
            session.add_sums(sums_of(() if first is None else chain([first], rows), []))
            return session.add_to_groups()
