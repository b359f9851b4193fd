"""Rows of a stage between Spark's tasks, their writers and the worker: reports, written rows, and sums on their way.

A task that reads history tells the driver beside its rows how far it came (`workers.spark.frames.Reports`).
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial, reduce
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812 - Spark's own customary name

from service.protocol.relation import Relation
from workers.backfill.stages import BoundStage
from workers.connectors.port import SinkWriter
from workers.engines.history import outcome_of
from workers.engines.port import ActorOutcome, StageTask
from workers.queries.stage_spark import StageSelect, written_columns
from workers.spark.frames import OUTCOME, RepeatedTaskError, Reports, outcome, run_frame, task_of
from workers.state_store.port import OPERATION, VNODE, Written
from workers.state_store.wire import ticked, to_wire

SUMS: Final = "sums"
_ROWS: Final = "tidefill_rows"
_ROW: Final = "row_"


def nothing_read(actor: int, page_rows: int, seconds: float) -> ActorOutcome:
    """Return the outcome of an actor that has read no history."""
    return ActorOutcome(
        actor=actor,
        positions=(),
        snapshot_rows=0,
        page_rows=page_rows,
        upstream_rows=0,
        inserted=0,
        closed=0,
        reading_seconds=seconds,
        used_slice=False,
    )


def outcomes_of(reports: Reports, actors: int) -> list[ActorOutcome]:
    """Return the outcome of each actor. Raises RepeatedTaskError unless each was read once.

    A reader that runs again, because its rows were lost with their executor, stops at other pages.
    """
    told = (outcome_of({**json.loads(text), "inserted": 0, "closed": 0}) for text in reports.take())
    found = sorted(told, key=lambda one: one.actor)
    if any(times > 1 for times in Counter(one.actor for one in found).values()):
        raise RepeatedTaskError("an executor was lost with rows that its tasks had read")
    assert [one.actor for one in found] == list(range(actors)), found
    return found


def with_written(outcomes: list[ActorOutcome], written: Written) -> list[ActorOutcome]:
    """Return the outcomes with what was written. Spark does not say which actor's rows, so the first one has all."""
    first, *others = outcomes
    return [replace(first, inserted=written.inserted, closed=written.closed), *others]


def written_rows(writer: SinkWriter, target: Relation, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Write the rows of a task, and yield how many were written."""
    written = writer.write(target, task_of(StageTask).curr, (batch for batch in batches if batch.num_rows))
    yield outcome(json.dumps({"inserted": written.inserted, "closed": written.closed}))


def writing(frame: DataFrame, writer: SinkWriter, target: Relation) -> DataFrame:
    """Return the frame of a job in which tasks write the rows of a frame, each in a fenced transaction."""
    return frame.mapInArrow(partial(written_rows, writer, target), f"{OUTCOME} string")


def write(frame: DataFrame, task: StageTask) -> Written:
    """Run the job of `writing`, and return how many rows were written."""
    told = [json.loads(text) for text in run_frame(frame, task)]
    return Written(sum(one["inserted"] for one in told), sum(one["closed"] for one in told))


def over(rows: DataFrame, printed: Callable[[str], str]) -> DataFrame:
    """Return the frame of a query that is printed over the text of another one, which gives `rows`."""
    rows.createOrReplaceTempView(_ROWS)
    return rows.sparkSession.sql(printed(f"select * from {_ROWS}"))


def write_changes(
    sides: Mapping[int, DataFrame],
    writer: SinkWriter,
    bound: BoundStage,
    task: StageTask,
    *,
    few: bool,
    wire: bool = True,
) -> Written:
    """Write what is gone (`CLOSE`) and what has come (`LIVE`), and return how many rows were written.

    Without `wire` they are written in their Spark types. A row that is gone and has come again is neither. Each vnode
    is written by one task, what is gone first.
    """
    target = bound.target
    columns = StageSelect(bound).placed()
    every = [
        rows.selectExpr(f"cast({side} as tinyint) as {ticked(OPERATION)}", *columns) for side, rows in sides.items()
    ]
    changed = reduce(DataFrame.unionAll, every)
    tasks = changed.sparkSession.sparkContext.defaultParallelism
    placed = changed.coalesce(1) if few else changed.repartition(tasks, VNODE)
    rows = _net(placed, target).sortWithinPartitions(OPERATION)
    written = rows.selectExpr(ticked(OPERATION), ticked(VNODE), *written_columns(target, wire=wire))
    return write(writing(written, writer, target), task)


def _net(changed: DataFrame, target: Relation) -> DataFrame:
    """Return the rows that differ. Values are compared by their texts."""
    texts = [
        F.expr(f"cast({to_wire(one.name, one.type, binary=False)} as string)").alias(f"{_ROW}{place}")
        for place, one in enumerate(target.columns)
    ]
    row = F.struct(*(F.col(ticked(one.name)) for one in target.columns))
    net = (
        changed.groupBy(F.col(VNODE), *texts)
        .agg(F.sum(OPERATION).cast("tinyint").alias(OPERATION), F.first(row).alias(_ROW))
        .where(F.col(OPERATION) != 0)
    )
    return net.select(OPERATION, VNODE, f"{_ROW}.*")


def sums_of(rows: Iterable[Row]) -> Iterator[pa.RecordBatch]:
    """Yield the sums that tasks have packed."""
    for row in rows:
        with pa.ipc.open_stream(row[SUMS]) as batches:
            yield from batches


def packing(frame: DataFrame) -> DataFrame:
    """Return the frame that packs sums for the way to the worker, which takes one partition at a time."""
    return frame.mapInArrow(_packed, f"{SUMS} binary")


def _packed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        if batch.num_rows:
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, batch.schema) as stream:
                stream.write_batch(batch)
            packed = pa.array([sink.getvalue().to_pybytes()], pa.binary())
            yield pa.RecordBatch.from_arrays([packed], names=[SUMS])
