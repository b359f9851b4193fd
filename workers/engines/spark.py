"""Spark's engine of a projection: one job per epoch, one task per actor, every transaction fenced.

    task: reader (python, Arrow) -> marking, filter, projection (Spark SQL) -> writer (python, Arrow)

No row of a projection meets another one, so one job reads changes and history. Readers tell the worker beside their
rows how far they came. Next: `workers.engines.history`.
"""

import json
from collections.abc import Generator, Iterator
from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from workers.engines.history import ActorHistory
from workers.engines.plain import is_plain, plain_frame
from workers.engines.port import ActorOutcome, ScanTask, StageTask
from workers.engines.rows import PositionColumns, actor_indexes, input_schema, row_batch
from workers.engines.stage_rows import outcomes_of, with_written, write, writing
from workers.queries.projection import ProjectionPlan, projection_plan
from workers.spark.frames import Reports, spark_schema, task_of
from workers.spark.killable import killable
from workers.state_store.port import PAGE


class SparkProjection:
    """A projection's jobs in one generation. Each is planned once and run once per epoch."""

    def __init__(self, spark: SparkSession, scan: ScanTask) -> None:
        self._spark, self._scan = spark, scan
        self._reports = Reports(spark)
        self._frames: dict[tuple[int, bool], DataFrame] = {}

    def run(self, task: StageTask) -> list[ActorOutcome]:
        """See `TaskEngine`."""
        written = write(self._frame(task), task)
        return with_written(outcomes_of(self._reports, len(task.actors)), written)

    def _frame(self, task: StageTask) -> DataFrame:
        actors = len(task.actors)
        plain = not task.changed and is_plain(self._scan)
        if (actors, plain) not in self._frames:
            made = plain_frame if plain else frame
            self._frames[actors, plain] = made(self._spark, self._scan, actors, self._reports)
        return self._frames[actors, plain]


def frame(spark: SparkSession, scan: ScanTask, actors: int, reports: Reports) -> DataFrame:
    """Return the job's frame: one task per actor reads its rows, transforms them by the query and writes them."""
    read = spark.range(0, actors, 1, actors).mapInArrow(
        partial(_read_actors, scan, reports), spark_schema(input_schema(scan.driver))
    )
    plan = projection_plan(scan.bound, scan.driver, wire=scan.sink is None)
    return writing(project(read, plan), scan.writer, scan.bound.target)


def project(read: DataFrame, plan: ProjectionPlan) -> DataFrame:
    """Apply the query to the rows of a reader."""
    typed = killable(read.selectExpr(*plan.typed))
    return typed.where(plan.kept).selectExpr(*plan.projected).selectExpr(*plan.written)


# --- in the tasks -------------------------------------------------------------------------------------------------


def _read_actors(scan: ScanTask, reports: Reports, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    task = task_of(StageTask)
    for batch in batches:
        for actor in actor_indexes(batch):
            reports.tell((yield from read_rows(scan, task, actor)))


def read_rows(scan: ScanTask, task: StageTask, index: int) -> Generator[pa.RecordBatch, None, str]:
    """Yield the rows that one actor has to transform in an epoch: changes with their positions, then pages.

    Return the reader's report.
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
    return json.dumps({**history.report(), "upstream_rows": upstream_rows})
