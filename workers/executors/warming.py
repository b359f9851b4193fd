"""The first job of a session pays for code generation, Arrow, forks and imports: one job of the real shape pays it at
start.
"""

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import SparkSession

_SCHEMA = "`_op` tinyint, `_vnode` smallint, `a` bigint, `b` string"


def warm(spark: SparkSession, parallelism: int) -> None:
    """Run a job shaped like an epoch: reader, select, filter, writer, one partition per task slot."""
    read = spark.range(0, parallelism, 1, parallelism).mapInArrow(_read, _SCHEMA)
    kept = read.where("`_op` = 0 or coalesce(`a` > 0, false)").selectExpr("`_op`", "`_vnode`", "`a` + 1 as `a`", "`b`")
    kept.mapInArrow(_write, "rows bigint").collect()


def _read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for _ in range(batch.num_rows):
            columns = [
                pa.array([0, 1], pa.int8()),
                pa.array([0, 1], pa.int16()),
                pa.array([1, 2], pa.int64()),
                pa.array(["a", None], pa.string()),
            ]
            yield pa.RecordBatch.from_arrays(columns, names=["_op", "_vnode", "a", "b"])


def _write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    rows = sum(batch.num_rows for batch in batches)
    yield pa.RecordBatch.from_arrays([pa.array([rows], pa.int64())], names=["rows"])
