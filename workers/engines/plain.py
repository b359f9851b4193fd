"""Copy plain columns in tasks of Spark: rows go from the store through Arrow to the store, and the JVM sees none.

Nothing may have to be compared with a position, so this is for epochs in which nothing changed.
"""

import json
from collections.abc import Iterator
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from service.protocol.columns import ColumnType, TypeName
from service.protocol.plan import Pushdown
from workers.engines.history import ActorHistory
from workers.engines.port import EpochTask, ScanTask
from workers.engines.rows import actor_indexes, repeated
from workers.spark.frames import OUTCOME, outcome, task_of
from workers.state_store.port import OPERATION, PAGE, VNODE
from workers.state_store.wire import native_element, read_type, writes_binary


def is_plain(scan: ScanTask, query: Pushdown | None) -> bool:
    """Whether every column of the target is a constant or one of the upstream, and is written in no other form."""
    if query is None or query.predicate is not None or scan.sink is not None or not writes_binary(scan.target):
        return False
    return all(native_element(column.type) or column.type.name is TypeName.NUMERIC for column in scan.target.columns)


def plain_frame(spark: SparkSession, scan: ScanTask, query: Pushdown) -> DataFrame:
    """Return the frame of a job in which one task per actor reads its pages and writes them."""
    actors = spark.range(0, scan.actors, 1, scan.actors)
    return actors.mapInArrow(partial(_copy_actors, scan, query), f"{OUTCOME} string")


def _copy_actors(scan: ScanTask, query: Pushdown, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    task = task_of(EpochTask)
    for batch in batches:
        for actor in actor_indexes(batch):
            history = ActorHistory.of(scan, task, actor)
            rows = (_written(scan, query, one) for page in history.pages() for one in page.batches)
            written = scan.store.write(scan.target, task.curr, rows)
            report = {**history.report(), "upstream_rows": 0, "inserted": written.inserted, "closed": written.closed}
            yield outcome(json.dumps(report))


def _written(scan: ScanTask, query: Pushdown, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows of the upstream as rows of the target, in the types in which they are written."""
    columns: dict[str, pa.Array[Any]] = {OPERATION: repeated(PAGE, batch.num_rows), VNODE: batch.column(VNODE)}
    for column, source in zip(scan.target.columns, query.columns, strict=True):
        if isinstance(source, str):
            found = batch.column(source)
        else:
            found = pa.array([source] * batch.num_rows, read_type(column.type))
        columns[column.name] = _exact(found, column.type)
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _exact(values: "pa.Array[Any]", kind: ColumnType) -> "pa.Array[Any]":
    """Return the values of a column. A numeric is read as text."""
    if native_element(kind):
        return values
    assert kind.precision is not None
    assert kind.scale is not None
    return values.cast(pa.decimal128(kind.precision, kind.scale))
