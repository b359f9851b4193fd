"""The interleaving backfills: one Spark job per fragment and epoch, one partition per actor, every transaction of it
fenced. Arrangement and NoShuffle differ in who the actors are and in how many vnodes a page of theirs reads.

In epoch `(prev, curr]`, once every upstream fragment has written `curr`: **first** the changes in `(prev, curr]` are
forwarded where their key is at or before the position stored at prev; **then** pages after that position are read *at
curr* until the slice or the permits are used up. A page row and a change of one key never meet in an epoch, and a
page that reaches the end loses nothing (I1). An update is two halves, an old version that is closed and a new one
that is inserted, each marked by its own key, so a half-visible update becomes a plain insert or delete.

    task: reader (python, Arrow) -> marking, filter, projection (Spark SQL) -> writer (python, Arrow)

A query that the store can answer itself is not read at all: its pages are copied inside the store, by the reader. In an
epoch without changes there is nothing then that Spark could do: the worker itself has them copied, on a thread for each
actor. Once no history is left, changes need no marking, and are carried over inside the store as well. The reader ends
with one control row that carries, as JSON, what it did; the writer turns it into the actor's outcome.
"""

import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa
from pydantic import BaseModel, ConfigDict
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

from service.protocol.ids import EpochField
from service.protocol.plan import Pushdown, VnodePosition
from service.protocol.relation import Relation
from service.protocol.vnodes import Runs
from workers.backfill.pace import page_rows_after
from workers.backfill.positions import BLOCK_VNODES, Block, PageSize, Positions, pages
from workers.backfill.reading import Reading
from workers.executors.rows import PositionColumns, actor_indexes, input_schema, repeated, row_batch
from workers.queries.stateless import REPORT, StatelessPlan
from workers.spark.frames import spark_schema
from workers.state_store.port import CONTROL, OPERATION, PAGE, ArrowPage, PageReader, Replayed, VersionedStore, Written

OUTCOME = "outcome"
PROPERTY = "tidefill.epoch"


class ActorTask(BaseModel):
    """What one actor may do in this epoch. `permits` None is any number of rows, 0 is none."""

    model_config = ConfigDict(frozen=True)

    runs: Runs
    positions: tuple[VnodePosition, ...]
    permits: int | None


class EpochTask(BaseModel):
    """One fragment's epoch: what differs from the last one. It travels to the tasks as a property of the job."""

    model_config = ConfigDict(frozen=True)

    curr: EpochField
    """What it writes is of this epoch."""
    reading: Reading
    actors: tuple[ActorTask, ...]
    page_rows: int
    slice_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class ScanTask:
    """One fragment in one generation: what is the same in every epoch, and travels in the tasks' closures."""

    store: VersionedStore
    upstream: Relation
    target: Relation
    actors: int
    pushdown: Pushdown | None = None
    block_vnodes: int = BLOCK_VNODES


@dataclass(frozen=True, slots=True)
class ActorOutcome:
    """What one actor did. `positions` are those that changed, `page_rows` is how large its next page may be; seconds
    are from the task's start.
    """

    actor: int
    positions: tuple[VnodePosition, ...]
    snapshot_rows: int
    page_rows: int
    upstream_rows: int
    inserted: int
    closed: int
    reading_seconds: float
    used_slice: bool


def copied_in_store(query: Pushdown | None, reading: Reading, *, finished: bool) -> bool:
    """Whether nothing travels in an epoch: the store answers the query, and nothing changed, or nothing has to be
    marked since the history is `finished`.
    """
    return query is not None and (finished or not reading.changes)


class ScanJob:
    """One fragment's part of an epoch, planned once per generation and run once per epoch.

    Spark analyses, optimizes and compiles a frame anew whenever it is built, which takes a tenth of an interval and
    more; so the frame is built when there is something for it to do, and kept, and what an epoch is about reaches the
    tasks as a local property of the job.
    """

    def __init__(self, spark: SparkSession, scan: ScanTask, plan: StatelessPlan) -> None:
        self._spark, self._scan, self._plan = spark, scan, plan
        self._frame: DataFrame | None = None
        # No more at once than Spark would run tasks.
        at_once = min(scan.actors, spark.sparkContext.defaultParallelism)
        self._copiers = ThreadPoolExecutor(at_once, f"copy-{scan.target.id}")
        self._over: Future[ActorOutcome] = Future()

    def run(self, task: EpochTask, *, in_store: bool) -> list[ActorOutcome]:
        """Run one epoch, inside the store if `copied_in_store`; when it returns, every actor's transaction is durable.
        Raises what the store or Spark does.
        """
        outcomes = self._copy(task) if in_store else self._transform(task)
        assert sorted(outcome.actor for outcome in outcomes) == list(range(len(task.actors))), outcomes
        return outcomes

    def give_up(self) -> None:
        """Have `run` on another thread fail, whatever its copies wait for: nothing of them can be written any more."""
        if not self._over.done():
            self._over.set_exception(InterruptedError("the generation is over"))

    def _copy(self, task: EpochTask) -> list[ActorOutcome]:
        copies = [
            self._copiers.submit(copy_rows, self._scan, task, index, self._over.done)
            for index in range(len(task.actors))
        ]
        waiting = {*copies, self._over}
        while not all(copy.done() for copy in copies):
            done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            for one in done:
                one.result()
        return [copy.result() for copy in copies]

    def _transform(self, task: EpochTask) -> list[ActorOutcome]:
        if self._frame is None:
            self._frame = frame(self._spark, self._scan, self._plan)
        self._spark.sparkContext.setLocalProperty(PROPERTY, task.model_dump_json())
        return [_outcome(json.loads(row[0])) for row in self._frame.collect()]


def frame(spark: SparkSession, scan: ScanTask, plan: StatelessPlan) -> DataFrame:
    """Return the job's frame: each actor's rows are read, made into the query's and written by one task."""
    read = spark.range(0, scan.actors, 1, scan.actors).mapInArrow(
        partial(_read_actors, scan), spark_schema(input_schema(scan.upstream))
    )
    return project(read, plan).mapInArrow(partial(_write_actor, scan), f"{OUTCOME} string")


def project(read: DataFrame, plan: StatelessPlan) -> DataFrame:
    """Return what the query makes of the rows that a reader gives."""
    return read.selectExpr(*plan.typed).where(plan.kept).selectExpr(*plan.projected).selectExpr(*plan.written)


# --- in the tasks -------------------------------------------------------------------------------------------------


def _epoch_task() -> EpochTask:
    context = TaskContext.get()
    assert context is not None
    stated = context.getLocalProperty(PROPERTY)
    assert stated is not None, "a task without an epoch"
    return EpochTask.model_validate_json(stated)


def _read_actors(scan: ScanTask, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    task = _epoch_task()
    for batch in batches:
        for actor in actor_indexes(batch):
            yield from read_rows(scan, task, actor)


def read_rows(scan: ScanTask, task: EpochTask, index: int) -> Iterator[pa.RecordBatch]:
    """Yield what one actor has to transform in an epoch: marked changes, then pages, then its control row."""
    history = _History(scan, task, index)
    schema, reading = input_schema(scan.upstream), task.reading
    upstream_rows = 0
    if reading.changes:
        beside = PositionColumns(history.positions, len(scan.upstream.key))
        for operation, batch in scan.store.read_changes(
            scan.upstream, after=reading.after, upto=reading.upto, runs=task.actors[index].runs
        ):
            upstream_rows += batch.num_rows
            yield row_batch(schema, operation, batch, beside.of(batch))
    for page in history.pages():
        for batch in page.batches:
            yield row_batch(schema, PAGE, batch, None)
    yield _control_batch(schema, {**history.report(), "upstream_rows": upstream_rows, "copied": history.copied})


def copy_rows(scan: ScanTask, task: EpochTask, index: int, given_up: Callable[[], bool]) -> ActorOutcome:
    """Do what `read_rows` has one actor do in an epoch in which nothing travels."""
    history = _History(scan, task, index)
    changes = _copy_changes(scan, task, index)
    for _ in history.pages():
        if given_up():
            raise InterruptedError
    inserted = history.copied + changes.written.inserted
    told = {"upstream_rows": changes.read, "inserted": inserted, "closed": changes.written.closed}
    return _outcome({**history.report(), **told})


def _copy_changes(scan: ScanTask, task: EpochTask, index: int) -> Replayed:
    reading = task.reading
    if not reading.changes:
        return Replayed(0, Written(0, 0))
    assert scan.pushdown is not None
    return scan.store.copy_changes(
        scan.upstream,
        scan.target,
        scan.pushdown,
        after=reading.after,
        upto=reading.upto,
        runs=task.actors[index].runs,
        epoch=task.curr,
    )


@dataclass
class _History:
    """Reads one actor's pages until its slice or its permits are used up."""

    scan: ScanTask
    task: EpochTask
    index: int
    began: float = field(default_factory=time.monotonic)  # noqa: TID251 - the task owns the clock of its slice
    snapshot_rows: int = 0
    copied: int = 0

    def __post_init__(self) -> None:
        actor = self.task.actors[self.index]
        self.page_rows = self.task.page_rows
        self.positions = Positions(
            actor.runs,
            {position.vnode: position for position in actor.positions},
            block_vnodes=self.scan.block_vnodes,
        )

    def pages(self) -> Iterator[ArrowPage]:
        """Read the pages; what was copied is durable when they end."""
        permits = self.task.actors[self.index].permits
        with _page_reader(self.scan, self.task, self.positions) as read_page:
            sized = _SizedPages(read_page, self.page_rows)
            for page in pages(
                self.positions, sized.read, page_rows=sized.next_rows, permits=permits, more_time=self._more_time
            ):
                self.snapshot_rows += sum(page.rows.values())
                self.copied += page.copied
                self.page_rows = sized.page_rows
                yield page

    def report(self) -> dict[str, Any]:
        """Return what is told of it."""
        return {
            "actor": self.index,
            "positions": [position.model_dump(mode="json") for position in self.positions.take_changed()],
            "snapshot_rows": self.snapshot_rows,
            "page_rows": self.page_rows,
            "reading_seconds": self._seconds(),
            "used_slice": not self._more_time(),
        }

    def _seconds(self) -> float:
        return time.monotonic() - self.began  # noqa: TID251 - as above

    def _more_time(self) -> bool:
        return self._seconds() < self.task.slice_seconds


def _page_reader(scan: ScanTask, task: EpochTask, positions: Positions) -> AbstractContextManager[PageReader]:
    """A query that the store can answer is copied inside it: its rows meet Spark only when they change."""
    if scan.pushdown is None or not positions.next_block():
        at = task.reading.at
        return nullcontext(lambda block, size: scan.store.read_page(scan.upstream, block, at=at, size=size))
    return scan.store.copying(scan.upstream, scan.target, scan.pushdown, at=task.reading.at, epoch=task.curr)


@dataclass
class _SizedPages:
    """Reads pages and learns from each how large the next may be."""

    page_reader: PageReader
    page_rows: int

    def next_rows(self) -> int:
        return self.page_rows

    def read(self, block: Block, size: PageSize) -> ArrowPage:
        began = time.monotonic()  # noqa: TID251 - the task owns the clock of its slice
        page = self.page_reader(block, size)
        seconds = time.monotonic() - began  # noqa: TID251 - as above
        rows = sum(page.rows.values())
        self.page_rows = page_rows_after(self.page_rows, rows=rows, size_bytes=page.size_bytes, seconds=seconds)
        return page


def _write_actor(scan: ScanTask, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    report: dict[str, Any] = {}

    def rows() -> Iterator[pa.RecordBatch]:
        for batch in batches:
            controls = batch.column(REPORT)
            if controls.null_count == batch.num_rows:
                yield batch
                continue
            # The control row is the reader's last, so it ends its batch.
            report.update(json.loads(controls[-1].as_py()))
            if batch.num_rows > 1:
                yield batch.slice(0, batch.num_rows - 1)

    written = scan.store.write(scan.target, _epoch_task().curr, rows())
    assert report, "the reader's control row did not arrive"
    copied = report.pop("copied")
    outcome = {**report, "inserted": copied + written.inserted, "closed": written.closed}
    yield pa.RecordBatch.from_arrays([pa.array([json.dumps(outcome)])], names=[OUTCOME])


def _control_batch(schema: pa.Schema, done: dict[str, Any]) -> pa.RecordBatch:
    values: dict[str, pa.Array[Any]] = {
        OPERATION: repeated(CONTROL, 1),
        REPORT: pa.array([json.dumps(done)], pa.string()),
    }
    return pa.RecordBatch.from_arrays(
        [values.get(wanted.name) or pa.nulls(1, wanted.type) for wanted in schema], schema=schema
    )


def _outcome(values: dict[str, Any]) -> ActorOutcome:
    positions = tuple(VnodePosition.model_validate(position) for position in values.pop("positions"))
    return ActorOutcome(positions=positions, **values)
