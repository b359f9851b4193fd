"""Rows of a stage between Spark's tasks, its writers and the worker: how they are written, and how sums are packed."""

import json
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, Row

from service.protocol.relation import Relation
from workers.engines.port import ActorOutcome, StageTask
from workers.queries.stage_spark import REPORT
from workers.spark.frames import OUTCOME, outcome, run_frame, task_of
from workers.state_store.port import VersionedStore, Written

SUMS: Final = "sums"


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


def sums_of(rows: Iterable[Row], reports: list[str]) -> Iterator[pa.RecordBatch]:
    """Yield the sums that tasks have packed, and add the reports among them to `reports`."""
    for row in rows:
        if row[SUMS] is None:
            reports.append(row[OUTCOME])
            continue
        with pa.ipc.open_stream(row[SUMS]) as batches:
            yield from batches


def written_rows(
    store: VersionedStore, target: Relation, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Write the rows of a task, and yield its outcome: the reports among the rows, and how many were written."""
    reports: list[str] = []

    def rows() -> Iterator[pa.RecordBatch]:
        for batch in batches:
            data = _without_reports(batch, reports)
            if data.num_rows:
                yield data

    written = store.write(target, task_of(StageTask).curr, rows())
    yield outcome(json.dumps({"reports": reports, "inserted": written.inserted, "closed": written.closed}))


def write_frame(frame: DataFrame, store: VersionedStore, target: Relation, task: StageTask) -> Written:
    """Have tasks write the rows of a frame, each in a fenced transaction, and return how many they wrote."""
    told = map(json.loads, run_frame(frame.mapInArrow(partial(written_rows, store, target), f"{OUTCOME} string"), task))
    written = [Written(one["inserted"], one["closed"]) for one in told]
    return Written(sum(one.inserted for one in written), sum(one.closed for one in written))


def packed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Pack sums for the way to the worker, which takes one partition into its memory at a time."""
    for batch in batches:
        reports: list[str] = []
        data = _without_reports(batch, reports)
        streams: list[bytes | None] = [None] * len(reports)
        if data.num_rows:
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, data.schema) as stream:
                stream.write_batch(data)
            streams.append(sink.getvalue().to_pybytes())
        texts = [*reports, *([None] * (len(streams) - len(reports)))]
        yield pa.RecordBatch.from_arrays(
            [pa.array(texts, pa.string()), pa.array(streams, pa.binary())], names=[OUTCOME, SUMS]
        )


def _without_reports(batch: pa.RecordBatch, reports: list[str]) -> pa.RecordBatch:
    """Take the control rows out of a batch, and their column with them."""
    controls = batch.column(REPORT)
    if controls.null_count < batch.num_rows:
        reports += [text for text in controls.to_pylist() if text is not None]
        batch = batch.filter(controls.is_null())
    return batch.select([name for name in batch.schema.names if name != REPORT])
