"""Spark's engine of a projection: one job per epoch, one task per actor, every transaction fenced.

    task: reader (python, Arrow) -> marking, filter, projection (Spark SQL) -> writer (python, Arrow)

No row of a projection meets another one, so one job reads changes and history. The reader ends with one control row
that carries its report as JSON. The writer turns it into the actor's outcome. Next: `workers.engines.history`.
"""

import json
from collections.abc import Iterator
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from workers.engines.history import ActorHistory, outcome_of
from workers.engines.plain import is_plain, plain_frame
from workers.engines.port import ActorOutcome, ScanTask, StageTask
from workers.engines.rows import PositionColumns, actor_indexes, input_schema, repeated, row_batch
from workers.queries.projection import ProjectionPlan, projection_plan
from workers.queries.stage_spark import REPORT
from workers.spark.frames import OUTCOME, outcome, run_frame, spark_schema, task_of
from workers.state_store.port import CONTROL, OPERATION, PAGE


class SparkProjection:
    """A projection's jobs in one generation. Each is planned once and run once per epoch."""

    def __init__(self, spark: SparkSession, scan: ScanTask) -> None:
        self._spark, self._scan = spark, scan
        self._frames: dict[tuple[int, bool], DataFrame] = {}

    def run(self, task: StageTask) -> list[ActorOutcome]:
        """See `TaskEngine`."""
        outcomes = [outcome_of(json.loads(text)) for text in run_frame(self._frame(task), task)]
        assert sorted(outcome.actor for outcome in outcomes) == list(range(len(task.actors))), outcomes
        return outcomes

    def _frame(self, task: StageTask) -> DataFrame:
        actors = len(task.actors)
        plain = not task.changed and is_plain(self._scan)
        if (actors, plain) not in self._frames:
            made = plain_frame if plain else frame
            self._frames[actors, plain] = made(self._spark, self._scan, actors)
        return self._frames[actors, plain]


def frame(spark: SparkSession, scan: ScanTask, actors: int) -> DataFrame:
    """Return the job's frame: one task per actor reads its rows, transforms them by the query and writes them."""
    read = spark.range(0, actors, 1, actors).mapInArrow(
        partial(_read_actors, scan), spark_schema(input_schema(scan.driver))
    )
    plan = projection_plan(scan.bound, scan.driver)
    return project(read, plan).mapInArrow(partial(_write_actor, scan), f"{OUTCOME} string")


def project(read: DataFrame, plan: ProjectionPlan) -> DataFrame:
    """Apply the query to the rows of a reader."""
    return read.selectExpr(*plan.typed).where(plan.kept).selectExpr(*plan.projected).selectExpr(*plan.written)


# --- in the tasks -------------------------------------------------------------------------------------------------


def _read_actors(scan: ScanTask, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    task = task_of(StageTask)
    for batch in batches:
        for actor in actor_indexes(batch):
            yield from read_rows(scan, task, actor)


def read_rows(scan: ScanTask, task: StageTask, index: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows that one actor has to transform in an epoch: changes with their positions, then pages, then the
    control row.
    """
    history = ActorHistory.of(scan, task, index)
    schema, upstream_rows = input_schema(scan.driver), 0
    if scan.driver.id in task.changed:
        window = task.windows[scan.driver.id]
        beside = PositionColumns(history.positions, len(scan.driver.key))
        for operation, batch in scan.store.read_changes(
            scan.driver, after=window.after, upto=window.upto, runs=task.actors[index].runs
        ):
            upstream_rows += batch.num_rows
            yield row_batch(schema, operation, batch, beside.of(batch))
    for page in history.pages():
        for batch in page.batches:
            yield row_batch(schema, PAGE, batch, None)
    yield _control_batch(schema, {**history.report(), "upstream_rows": upstream_rows})


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

    written = scan.writer.write(scan.bound.target, task_of(StageTask).curr, rows())
    assert report, "the reader's control row did not arrive"
    yield outcome(json.dumps({**report, "inserted": written.inserted, "closed": written.closed}))


def _control_batch(schema: pa.Schema, done: dict[str, Any]) -> pa.RecordBatch:
    values: dict[str, pa.Array[Any]] = {
        OPERATION: repeated(CONTROL, 1),
        REPORT: pa.array([json.dumps(done)], pa.string()),
    }
    return pa.RecordBatch.from_arrays(
        [values.get(wanted.name) or pa.nulls(1, wanted.type) for wanted in schema], schema=schema
    )
