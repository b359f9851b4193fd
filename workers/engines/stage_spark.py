"""Read the history of a stage in Spark: pages of its driver, joined with the whole of its other inputs.

    tasks: reader of an actor's pages (python, Arrow) -> joins, conditions, values (Spark SQL) -> writer (python, Arrow)

Rows are written by the tasks, each in a fenced transaction. Rows of groups are summed first
(`workers.engines.stage_groups`).

An exchange between tasks is kept by Spark and would give an old epoch's rows again, so a frame with one is built anew
in each epoch. If part of an exchange is lost with its executor, Spark fails the job or reads that part again. A reader
that runs again stops at other pages, so a second report of an actor fails the epoch.
Next: `workers.engines.stage_changes`.
"""

import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from workers.backfill.positions import BLOCK_VNODES
from workers.backfill.stages import BoundStage
from workers.connectors.port import SinkWriter
from workers.engines.history import ActorHistory
from workers.engines.port import ActorOutcome, ScanTask, StageTask
from workers.engines.rows import actor_indexes
from workers.engines.stage_groups import add_history
from workers.engines.stage_joins import StageJoins
from workers.engines.stage_lookups import BROADCAST_BYTES, Lookups
from workers.engines.stage_rows import nothing_read, outcomes_of, with_written, write, writing
from workers.queries.stage_spark import StageSelect, named_columns, page_operation, used_columns, written_columns
from workers.spark.frames import Reports, physical_plan, spark_schema, task_of
from workers.state_store.port import VNODE, VersionedStore
from workers.state_store.wire import read_schema, ticked

_EXCHANGE: Final = re.compile(r"(?<!Broadcast)Exchange")
PARTITION_BYTES: Final = 64 << 20
"""About how much of the other inputs a task joins with after an exchange."""


@dataclass
class SparkStageEngine:
    """Reads the history of one stage in one generation. Inputs up to `broadcast_bytes` are sent to all tasks."""

    spark: SparkSession
    store: VersionedStore
    bound: BoundStage
    block_vnodes: int = BLOCK_VNODES
    broadcast_bytes: int = BROADCAST_BYTES
    sink: SinkWriter | None = None
    """Takes the rows in place of the store."""
    _kept: dict[tuple[int, int], DataFrame] = field(default_factory=dict[tuple[int, int], DataFrame])

    def __post_init__(self) -> None:
        # A session of its own has its own views and settings; it shares everything else.
        self.session = self.spark.newSession()
        self.session.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")
        self.lookups = Lookups(self.session, self.store, self.bound, self.bound.stage.inputs[1:], self.broadcast_bytes)
        driver = used_columns(self.bound, [self.bound.stage.driver.alias])
        self.scan = ScanTask(self.store, self.bound, driver, self.block_vnodes)
        self.reports = Reports(self.session)

    def run(self, task: StageTask) -> list[ActorOutcome]:
        """Run one epoch. When this returns, every transaction is durable. Raises the errors of the store and of Spark.

        Without progress while the other inputs are still being read.
        """
        assert not task.changed, "changes come after the history"
        began = time.monotonic()  # noqa: TID251 - the engine owns the clock of its slice
        actors = len(task.actors)
        if not self.lookups.ready(task.at, slice_seconds=task.slice_seconds):
            took = time.monotonic() - began  # noqa: TID251 - as above
            return [nothing_read(index, task.page_rows, took) for index in range(actors)]
        frame = self._frame(actors)
        if self.bound.stage.aggregate is not None:
            return add_history(self.store, self.bound, frame, task, self.reports)
        written = write(frame, task)
        return with_written(outcomes_of(self.reports, actors), written)

    def close(self) -> None:
        """Release the memory of the other inputs."""
        self._kept.clear()
        self.lookups.close()

    def _frame(self, actors: int) -> DataFrame:
        """Return the frame that writes the rows of a page, or that has the rows of groups."""
        place = (self.lookups.version, actors)
        kept = self._kept.get(place)
        if kept is not None:
            return kept
        self._kept.clear()
        made = self._made(actors)
        if not _EXCHANGE.search(physical_plan(made)):
            self._kept[place] = made
        return made

    def _made(self, actors: int) -> DataFrame:
        inputs, small, exchanged = self.lookups.frames()
        partitions = max(self.session.sparkContext.defaultParallelism, -(-exchanged // PARTITION_BYTES))
        self.session.conf.set("spark.sql.shuffle.partitions", str(partitions))
        read = self.session.range(0, actors, 1, actors).mapInArrow(
            partial(_read_actors, self.scan, self.reports), spark_schema(read_schema(self.scan.driver))
        )
        driver = self.bound.stage.driver.alias
        inputs[driver] = read.selectExpr(ticked(VNODE), *named_columns(driver, self.scan.driver, typed=False))
        rows = StageJoins(self.bound, small).rows(inputs)
        if self.bound.stage.aggregate is not None:
            return rows
        target = self.bound.target
        wire = self.sink is None
        vnode = StageSelect(self.bound).placing(wire=wire)
        written = rows.selectExpr(page_operation(), vnode, *written_columns(target, wire=wire))
        return writing(written, self.sink or self.store, target)


# --- in the tasks -------------------------------------------------------------------------------------------------


def _read_actors(scan: ScanTask, reports: Reports, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    task = task_of(StageTask)
    for batch in batches:
        for actor in actor_indexes(batch):
            history = ActorHistory.of(scan, task, actor)
            for page in history.pages():
                yield from page.batches
            reports.tell(json.dumps({**history.report(), "upstream_rows": 0}))
