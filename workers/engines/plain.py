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
from workers.engines.history import ActorHistory
from workers.engines.port import ScanTask, StageTask
from workers.engines.rows import actor_indexes, repeated
from workers.engines.stage_rows import written_rows
from workers.spark.frames import OUTCOME, Reports, task_of
from workers.state_store.port import OPERATION, PAGE, VNODE
from workers.state_store.wire import native_element, writes_binary


def is_plain(scan: ScanTask) -> bool:
    """Whether every column of the target is one of the driver, and is written in no other form."""
    stage, target = scan.bound.stage, scan.bound.target
    if stage.conditions or stage.distribution or scan.sink is not None or not writes_binary(target):
        return False
    kinds = (column.type for column in target.columns)
    exact = all(native_element(kind) or kind.name is TypeName.NUMERIC for kind in kinds)
    return exact and all(one.column is not None for one in stage.rows)


def plain_frame(spark: SparkSession, scan: ScanTask, actors: int, reports: Reports) -> DataFrame:
    """Return the frame of a job in which one task per actor reads its pages and writes them."""
    every = spark.range(0, actors, 1, actors)
    return every.mapInArrow(partial(_copy_actors, scan, reports), f"{OUTCOME} string")


def _copy_actors(scan: ScanTask, reports: Reports, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    task = task_of(StageTask)
    for batch in batches:
        for actor in actor_indexes(batch):
            history = ActorHistory.of(scan, task, actor)
            rows = (_written(scan, one) for page in history.pages() for one in page.batches)
            yield from written_rows(scan.store, scan.bound.target, rows)
            reports.tell(json.dumps({**history.report(), "upstream_rows": 0}))


def _written(scan: ScanTask, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows of the driver as rows of the target, in the types in which they are written."""
    sources = {one.name: str(one.column) for one in scan.bound.stage.rows}
    columns: dict[str, pa.Array[Any]] = {OPERATION: repeated(PAGE, batch.num_rows), VNODE: batch.column(VNODE)}
    for column in scan.bound.target.columns:
        columns[column.name] = _exact(batch.column(sources[column.name]), column.type)
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _exact(values: "pa.Array[Any]", kind: ColumnType) -> "pa.Array[Any]":
    """Return the values of a column. A numeric is read as text."""
    if native_element(kind):
        return values
    assert kind.precision is not None
    assert kind.scale is not None
    return values.cast(pa.decimal128(kind.precision, kind.scale))
