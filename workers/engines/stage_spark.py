"""Read the history of a stage in Spark: pages of its driver, joined with the whole of its other inputs.

    tasks: reader of an actor's pages (python, Arrow) -> joins, conditions, values (Spark SQL) -> writer (python, Arrow)

Rows are written by the tasks, each in a fenced transaction. Sums of groups are handed to the store's log of partial
groups a partition at a time, by one fenced transaction.

An exchange between tasks is kept by Spark and would give an old epoch's rows again, so a frame with one is built anew
in each epoch. If part of an exchange is lost with its executor, Spark fails the job or reads that part again. A reader
that runs again stops at other pages, so each of them counts in an accumulator, and a second count fails the epoch.
Next: `workers.engines.stage_changes`.
"""

import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any, Final

import pyarrow as pa
from pyspark import Accumulator
from pyspark.sql import DataFrame, SparkSession

from service.protocol.relation import Relation
from workers.backfill.positions import BLOCK_VNODES
from workers.backfill.stages import BoundStage
from workers.engines.history import ActorHistory, outcome_of
from workers.engines.port import ActorOutcome, ScanTask, StageTask
from workers.engines.rows import actor_indexes
from workers.engines.stage_lookups import BROADCAST_BYTES, Lookups
from workers.engines.stage_rows import SUMS, nothing_read, packed, sums_of, written_rows
from workers.queries.stage_spark import REPORT, StageSelect, driver_columns, used_columns
from workers.spark.frames import (
    OUTCOME,
    RepeatedTaskError,
    physical_plan,
    run_frame,
    send_task,
    spark_schema,
    task_of,
)
from workers.state_store.port import VersionedStore, has_store_engine
from workers.state_store.wire import read_schema

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
    _kept: dict[tuple[int, int], DataFrame] = field(default_factory=dict[tuple[int, int], DataFrame])

    def __post_init__(self) -> None:
        # A session of its own has its own views and settings; it shares everything else.
        self.session = self.spark.newSession()
        self.session.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")
        self.lookups = Lookups(self.session, self.store, self.bound, self.bound.stage.inputs[1:], self.broadcast_bytes)
        driver = used_columns(self.bound, [self.bound.stage.driver.alias])
        self.scan = ScanTask(self.store, self.bound, driver, self.block_vnodes)
        self.reads = self.spark.sparkContext.accumulator(0)

    def run(self, task: StageTask) -> list[ActorOutcome]:
        """Run one epoch. When this returns, every transaction is durable. Raises the errors of the store and of Spark.

        Without progress while the other inputs are still being read.
        """
        assert not task.changed, "changes come after the history"
        began = time.monotonic()  # noqa: TID251 - the engine owns the clock of its slice
        if not self.lookups.ready(task.at, slice_seconds=task.slice_seconds):
            took = time.monotonic() - began  # noqa: TID251 - as above
            return [nothing_read(index, task.page_rows, took) for index in range(len(task.actors))]
        frame = self._frame(len(task.actors))
        outcomes = self._written(frame, task) if self.bound.stage.aggregate is None else self._summed(frame, task)
        assert sorted(one.actor for one in outcomes) == list(range(len(task.actors))), outcomes
        return outcomes

    def close(self) -> None:
        """Release the memory of the other inputs."""
        self._kept.clear()
        self.lookups.close()

    def _written(self, frame: DataFrame, task: StageTask) -> list[ActorOutcome]:
        before = self.reads.value
        told = [json.loads(text) for text in run_frame(frame, task)]
        self._assure_single_reads(before, task)
        reports = [json.loads(report) for one in told for report in one["reports"]]
        return _outcomes(reports, inserted=sum(one["inserted"] for one in told))

    def _summed(self, frame: DataFrame, task: StageTask) -> list[ActorOutcome]:
        assert has_store_engine(self.store), "the table format computes no stages"
        before = self.reads.value
        send_task(frame, task)
        reports: list[str] = []
        rows = frame.toLocalIterator()
        # The transaction begins when the sums begin to arrive, so it is short.
        first = next(rows, None)
        with self.store.staging(self.bound, task.curr) as session:
            session.add_sums(sums_of(() if first is None else chain([first], rows), reports))
            self._assure_single_reads(before, task)
            session.end(task.at, whole=False)
        return _outcomes(list(map(json.loads, reports)), inserted=0)

    def _assure_single_reads(self, before: int, task: StageTask) -> None:
        """Raise RepeatedTaskError unless each actor has been read once since the accumulator had the value `before`."""
        if self.reads.value - before != len(task.actors):
            raise RepeatedTaskError("an executor was lost with rows that its tasks had read")

    def _frame(self, actors: int) -> DataFrame:
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
        exchanged = self.lookups.name_views()
        partitions = max(self.session.sparkContext.defaultParallelism, -(-exchanged // PARTITION_BYTES))
        self.session.conf.set("spark.sql.shuffle.partitions", str(partitions))
        read = self.session.range(0, actors, 1, actors).mapInArrow(
            partial(_read_actors, self.scan, self.reads), spark_schema(_driver_schema(self.scan.driver))
        )
        read.selectExpr(*driver_columns(self.bound, self.scan.driver)).createOrReplaceTempView(
            self.bound.stage.driver.alias
        )
        select = StageSelect(self.bound)
        if self.bound.stage.aggregate is None:
            rows = self.session.sql(select.written())
            return rows.mapInArrow(partial(written_rows, self.store, self.bound.target), f"{OUTCOME} string")
        return self.session.sql(select.sums_written()).mapInArrow(packed, f"{OUTCOME} string, {SUMS} binary")


def _outcomes(reports: "list[dict[str, Any]]", *, inserted: int) -> list[ActorOutcome]:
    """Return the outcomes of the actors. Which of them a row comes from is not known, so the first one has all."""
    outcomes = [
        outcome_of({**one, "upstream_rows": 0, "inserted": 0, "closed": 0})
        for one in sorted(reports, key=lambda one: int(one["actor"]))
    ]
    return [replace(one, inserted=inserted) if one.actor == 0 else one for one in outcomes]


# --- in the tasks -------------------------------------------------------------------------------------------------


def _driver_schema(driver: Relation) -> pa.Schema:
    return pa.schema([pa.field(REPORT, pa.string()), *read_schema(driver)])


def _read_actors(
    scan: ScanTask, reads: Accumulator[int], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    task = task_of(StageTask)
    for batch in batches:
        for actor in actor_indexes(batch):
            reads.add(1)
            yield from _read(scan, task, actor)


def _read(scan: ScanTask, task: StageTask, index: int) -> Iterator[pa.RecordBatch]:
    """Yield the pages of one actor, then its control row."""
    history, schema = ActorHistory.of(scan, task, index), _driver_schema(scan.driver)
    for page in history.pages():
        for batch in page.batches:
            yield pa.RecordBatch.from_arrays([pa.nulls(batch.num_rows, pa.string()), *batch.columns], schema=schema)
    report = pa.array([json.dumps(history.report())], pa.string())
    yield pa.RecordBatch.from_arrays([report, *(pa.nulls(1, one.type) for one in list(schema)[1:])], schema=schema)
