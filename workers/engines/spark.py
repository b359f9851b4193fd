"""The engine for every query: one Spark job per fragment and epoch, one partition per actor, every transaction fenced.

    task: reader (python, Arrow) -> marking, filter, projection (Spark SQL) -> writer (python, Arrow)

If the store can answer the query itself, the reader copies pages inside the store, and only changes travel through
Spark. The reader ends with one control row that carries its report as JSON. The writer turns it into the actor's
outcome. Next: `workers.engines.history`.
"""

import json
from collections.abc import Iterator
from functools import cached_property, partial
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from workers.engines.history import ActorHistory, outcome_of
from workers.engines.plain import plain_frame
from workers.engines.port import ActorOutcome, EpochTask, ScanTask
from workers.engines.rows import PositionColumns, actor_indexes, input_schema, repeated, row_batch
from workers.queries.stateless import REPORT, StatelessPlan
from workers.spark.frames import OUTCOME, outcome, run_frame, spark_schema, task_of
from workers.state_store.port import CONTROL, OPERATION, PAGE


class SparkEngine:
    """One fragment's job, planned once per generation and run once per epoch."""

    def __init__(self, spark: SparkSession, scan: ScanTask, plan: StatelessPlan) -> None:
        self._spark, self._scan, self._plan = spark, scan, plan

    def run(self, task: EpochTask) -> list[ActorOutcome]:
        """See `ScanEngine`."""
        made = self._frame if task.reading.changes else self._of_history
        outcomes = [outcome_of(json.loads(text)) for text in run_frame(made, task)]
        assert sorted(outcome.actor for outcome in outcomes) == list(range(len(task.actors))), outcomes
        return outcomes

    @cached_property
    def _frame(self) -> DataFrame:
        return frame(self._spark, self._scan, self._plan)

    @cached_property
    def _of_history(self) -> DataFrame:
        """The frame of an epoch without changes."""
        plain = self._scan.plain
        return self._frame if plain is None else plain_frame(self._spark, self._scan, plain)

    def give_up(self) -> None:
        """Do nothing: Spark cancels running jobs by their job group (`GraphExecutor.interrupt`)."""


def frame(spark: SparkSession, scan: ScanTask, plan: StatelessPlan) -> DataFrame:
    """Return the job's frame: one task per actor reads its rows, transforms them by the query and writes them."""
    read = spark.range(0, scan.actors, 1, scan.actors).mapInArrow(
        partial(_read_actors, scan), spark_schema(input_schema(scan.upstream))
    )
    return project(read, plan).mapInArrow(partial(_write_actor, scan), f"{OUTCOME} string")


def project(read: DataFrame, plan: StatelessPlan) -> DataFrame:
    """Apply the query to the rows of a reader."""
    return read.selectExpr(*plan.typed).where(plan.kept).selectExpr(*plan.projected).selectExpr(*plan.written)


# --- in the tasks -------------------------------------------------------------------------------------------------


def _read_actors(scan: ScanTask, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    task = task_of(EpochTask)
    for batch in batches:
        for actor in actor_indexes(batch):
            yield from read_rows(scan, task, actor)


def read_rows(scan: ScanTask, task: EpochTask, index: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows that one actor has to transform in an epoch: changes with their positions, then pages, then the
    control row.
    """
    history = ActorHistory.of(scan, task, index)
    schema, reading = input_schema(scan.upstream), task.reading
    upstream_rows = 0
    if reading.changes:
        beside = PositionColumns(history.positions, len(scan.upstream.key))
        for operation, batch in scan.store.read_changes(
            scan.upstream, after=reading.after, upto=reading.upto, runs=task.actors[index].runs
        ):
            upstream_rows += batch.num_rows
            yield row_batch(schema, operation, batch, beside.of(batch))
    for page in history.pages():
        for batch in page.batches:
            yield row_batch(schema, PAGE, batch, None)
    yield _control_batch(schema, {**history.report(), "upstream_rows": upstream_rows, "copied": history.copied})


def _write_actor(scan: ScanTask, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    report: dict[str, Any] = {}

    def rows() -> Iterator[pa.RecordBatch]:
        for batch in batches:
            controls = batch.column(REPORT)
            if controls.null_count == batch.num_rows:
                yield batch
                continue
            # The control row is the reader's last one, so it is the last of its batch.
            report.update(json.loads(controls[-1].as_py()))
            if batch.num_rows > 1:
                yield batch.slice(0, batch.num_rows - 1)

    written = scan.writer.write(scan.target, task_of(EpochTask).curr, rows())
    assert report, "the reader's control row did not arrive"
    copied = report.pop("copied")
    yield outcome(json.dumps({**report, "inserted": copied + written.inserted, "closed": written.closed}))


def _control_batch(schema: pa.Schema, done: dict[str, Any]) -> pa.RecordBatch:
    values: dict[str, pa.Array[Any]] = {
        OPERATION: repeated(CONTROL, 1),
        REPORT: pa.array([json.dumps(done)], pa.string()),
    }
    return pa.RecordBatch.from_arrays(
        [values.get(wanted.name) or pa.nulls(1, wanted.type) for wanted in schema], schema=schema
    )
