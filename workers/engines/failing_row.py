"""Find the row that a query cannot transform. Spark's errors give the reason, but never the row.

The failed epoch's rows are read again, outside any transaction. A batch that fails is bisected until one row is left.
The only new row is not tried again. This runs only after a job has failed by its own fault. A row that has gone
meanwhile is not found.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import structlog
from pydantic import BaseModel
from pyspark.sql import SparkSession

from service.protocol.relation import Relation
from workers.engines.port import ScanTask, StageTask
from workers.engines.rows import input_schema
from workers.engines.spark import project, read_rows
from workers.queries.projection import projection_plan
from workers.spark.bounded import bounded_jobs
from workers.spark.frames import OUTCOME, run_frame, spark_schema, task_of
from workers.state_store.port import LIVE, OPERATION, PAGE, TooSlowError
from workers.state_store.wire import key_text

_ROWS: Final = 10_000
_NEW: Final = pa.array([LIVE, PAGE], pa.int8())
"""The operations of rows that are computed for the first time. Rows that end were computed when they began."""

log = structlog.get_logger(__name__)


class _Rows(BaseModel):
    """Some rows of a batch."""

    first: int
    count: int


class _LateError(Exception):
    """The time for the search is up."""


def find_failing_row(spark: SparkSession, scan: ScanTask, task: StageTask, seconds: float) -> str | None:
    """Return the key of a row that fails, as `(id) = (5)`, or None if none was found within `seconds`."""
    # The store has computed more rows than Spark's reader gives in a slice.
    patient = task.model_copy(update={"slice_seconds": seconds})
    try:
        return _search(spark, scan, patient, ends=_monotonic() + seconds)
    except _LateError:
        return None
    except Exception:
        log.exception("culprit.search_failed", target=scan.bound.target.name)
        return None


def _search(spark: SparkSession, scan: ScanTask, task: StageTask, *, ends: float) -> str | None:
    read = chain.from_iterable(read_rows(scan, task, index) for index in range(len(task.actors)))
    for batch in joined(batch.filter(pc.is_in(batch[OPERATION], _NEW)) for batch in read):
        if batch.num_rows == 1:
            return shown_key(scan.driver, batch)
        fails = _tries(spark, scan, batch, ends)
        if fails(0, batch.num_rows):
            return shown_key(scan.driver, batch.slice(smallest(batch.num_rows, fails), 1))
    return None


def _tries(spark: SparkSession, scan: ScanTask, batch: pa.RecordBatch, ends: float) -> Callable[[int, int], bool]:
    """Return a function that says whether some rows fail, from the first one on. Its frame is planned once."""

    def rows(_: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        span = task_of(_Rows)
        yield batch.slice(span.first, span.count)

    read = spark.range(0, 1, 1, 1).mapInArrow(rows, spark_schema(input_schema(scan.driver)))
    frame = project(read, projection_plan(scan.bound, scan.driver))
    # Spark computes every column for the digest.
    trial = frame.selectExpr(f"cast(max(xxhash64(*)) as string) as {OUTCOME}")

    def fails(first: int, count: int) -> bool:
        if _monotonic() > ends:
            raise _LateError
        try:
            with bounded_jobs(spark, 0, ends - _monotonic()):
                run_frame(trial, _Rows(first=first, count=count))
        except TooSlowError:
            raise _LateError from None
        except Exception:  # noqa: BLE001 - any error counts: these rows cause it
            return True
        return False

    return fails


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


def smallest(count: int, fails: Callable[[int, int], bool]) -> int:
    """Bisect rows that fail together and return one of them. It fails alone, unless rows fail only in combination."""
    first = 0
    while count > 1:
        half = count // 2
        first, count = (first, half) if fails(first, half) else (first + half, count - half)
    return first


def shown_key(upstream: Relation, row: pa.RecordBatch) -> str:
    """Return the key of a batch of one row, formatted as Postgres shows keys."""
    names = [part.name for part in upstream.key]
    values: dict[str, Any] = row.select(names).to_pylist()[0]
    texts = [key_text(values[name], upstream.column(name).type) for name in names]
    return f"({', '.join(names)}) = ({', '.join('NULL' if text is None else text for text in texts)})"


def _monotonic() -> float:
    return time.monotonic()  # noqa: TID251 - the search has a limit
