"""Have Spark's tasks prepare the rows of a log for the table of a followed table. Next: `workers.runners.carrier`."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession

from service.protocol.ids import Epoch
from service.protocol.relation import Relation
from workers.connectors.port import SinkWriter
from workers.engines.rows import actor_indexes
from workers.queries.stage_spark import loaded_columns
from workers.spark.frames import RepeatedTaskError, spark_schema
from workers.state_store.port import OPERATION, SqlStore
from workers.state_store.wire import stored_schema, ticked

_COUNT = "rows"


@dataclass(frozen=True, slots=True)
class Log:
    """The log of a relation, as the tasks read it: a query for each of them, of operation, vnode and columns."""

    store: SqlStore
    relation: Relation
    queries: Sequence[str]

    @property
    def schema(self) -> pa.Schema:
        """The schema of the rows in their wire types."""
        return pa.schema([pa.field(OPERATION, pa.int16()), *stored_schema(self.relation)])


def prepare(spark: SparkSession, log: Log, writer: SinkWriter, epoch: Epoch) -> int:
    """Give the rows of a log to the writer, at an epoch, and return how many there are.

    Raises the errors of Spark, and RepeatedTaskError within them: a task that runs again would write its rows twice.
    """
    parts = len(log.queries)
    read = spark.range(0, parts, 1, parts).mapInArrow(partial(_read, log), spark_schema(log.schema))
    typed = read.selectExpr(
        f"cast({ticked(OPERATION)} as tinyint) as {ticked(OPERATION)}", *loaded_columns(log.relation)
    )
    written = typed.mapInArrow(partial(_write, writer, log.relation, epoch), f"{_COUNT} bigint")
    return sum(row[0] for row in written.collect())


def _read(log: Log, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for part in actor_indexes(batch):
            yield from log.store.read_sql(log.queries[part], log.schema)


def _write(
    writer: SinkWriter, relation: Relation, epoch: Epoch, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    context = TaskContext.get()
    if context is not None and context.attemptNumber() > 0:
        raise RepeatedTaskError("its executor was lost")
    written = writer.write(relation, epoch, batches)
    yield pa.RecordBatch.from_pydict({_COUNT: pa.array([written.inserted + written.closed], pa.int64())})
