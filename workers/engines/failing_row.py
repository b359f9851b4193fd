"""Find the row that a query cannot transform. Spark's errors give the reason, but never the row.

The failed epoch's rows are read again, outside any transaction. A batch that fails is bisected until one row is left.
This runs only after a job has failed by its own fault, and takes seconds. A row that has gone meanwhile is not found.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import chain
from typing import Any, Final

import pyarrow as pa
import structlog
from pyspark.sql import SparkSession

from service.protocol.relation import Relation
from workers.engines.rows import input_schema
from workers.engines.spark import EpochTask, ScanTask, project, read_rows
from workers.queries.stateless import StatelessPlan
from workers.spark.bounded import bounded_jobs
from workers.spark.frames import spark_schema
from workers.state_store.port import TooSlowError
from workers.state_store.wire import key_text

_ROWS: Final = 10_000

log = structlog.get_logger(__name__)


class _LateError(Exception):
    """The time for the search is up."""


def find_failing_row(
    spark: SparkSession, scan: ScanTask, plan: StatelessPlan, task: EpochTask, seconds: float
) -> str | None:
    """Return the key of a row that fails, as `(id) = (5)`, or None if none was found within `seconds`."""
    try:
        return _search(spark, scan, plan, task, ends=_monotonic() + seconds)
    except _LateError:
        return None
    except Exception:
        log.exception("culprit.search_failed", target=scan.target.name)
        return None


def _search(spark: SparkSession, scan: ScanTask, plan: StatelessPlan, task: EpochTask, *, ends: float) -> str | None:
    def fails(batch: pa.RecordBatch) -> bool:
        if _monotonic() > ends:
            raise _LateError

        def rows(_: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            yield batch

        frame = spark.range(0, 1, 1, 1).mapInArrow(rows, spark_schema(input_schema(scan.upstream)))
        try:
            with bounded_jobs(spark, 0, ends - _monotonic()):
                project(frame, plan).write.format("noop").mode("overwrite").save()
        except TooSlowError:
            raise _LateError from None
        except Exception:  # noqa: BLE001 - any error counts: these rows cause it
            return True
        return False

    # Without the pushdown, nothing is copied in the store: that would be a write.
    reading = replace(scan, pushdown=None)
    for batch in joined(chain.from_iterable(read_rows(reading, task, index) for index in range(len(task.actors)))):
        if fails(batch):
            return shown_key(scan.upstream, smallest(batch, fails))
    return None


def joined(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Join batches to fewer with at least `_ROWS` rows each, because each attempt costs a Spark job, however small."""
    held: list[pa.RecordBatch] = []
    for batch in batches:
        held.append(batch)
        if sum(one.num_rows for one in held) >= _ROWS:
            yield from _as_one(held)
            held.clear()
    yield from _as_one(held)


def _as_one(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    return pa.Table.from_batches(batches).combine_chunks().to_batches() if any(map(len, batches)) else []


def smallest(batch: pa.RecordBatch, fails: Callable[[pa.RecordBatch], bool]) -> pa.RecordBatch:
    """Bisect a failing batch and return one of its rows. The row fails alone, unless rows fail only in combination."""
    while batch.num_rows > 1:
        half = batch.num_rows // 2
        first = batch.slice(0, half)
        batch = first if fails(first) else batch.slice(half)
    return batch


def shown_key(upstream: Relation, row: pa.RecordBatch) -> str:
    """Return the key of a batch of one row, formatted as Postgres shows keys."""
    names = [part.name for part in upstream.key]
    values: dict[str, Any] = row.select(names).to_pylist()[0]
    texts = [key_text(values[name], upstream.column(name).type) for name in names]
    return f"({', '.join(names)}) = ({', '.join('NULL' if text is None else text for text in texts)})"


def _monotonic() -> float:
    return time.monotonic()  # noqa: TID251 - the search has a limit
