"""Compute the parts of a stage's input in Spark: of a page of history, and those of which a row changed.

The whole input is in Spark. A page is some vnodes: the parts whose first row lies in them. The first row is that of the
part's index (`service.protocol.stage.part_order`), as for the store's pages, so either engine may go on where the
other one stopped. A page of all vnodes needs no first rows.

All rows of a page are computed before the first one is written, so the store can take over what Spark refuses.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own customary name

from service.protocol.stage import Partition, part_order
from service.protocol.stage_spark import spark_column
from workers.backfill.actors import ActorTask
from workers.backfill.order import IN_PROGRESS, POSITION_STATE, Position, key_of, marked_spark, position_column
from workers.backfill.positions import Block, Positions, Span, alike
from workers.backfill.stages import BoundStage
from workers.connectors.port import SinkWriter
from workers.engines.port import ActorOutcome, StageTask
from workers.engines.stage_inputs import InputStates
from workers.engines.stage_lookups import Lookups
from workers.engines.stage_rows import nothing_read, write, writing
from workers.queries.stage_spark import StageSelect, all_of, named_columns, page_operation, written_columns
from workers.state_store.port import CLOSE, LIVE, VNODE, VersionedStore
from workers.state_store.wire import ticked

ROWS_FIRST: Final = 200_000
"""A first page has about so many rows: fewer cost as much time."""
PAGE_SECONDS: Final = 3.0
"""A page takes about so long, or a slice if that is longer: each page looks at all rows of the input."""
_PART: Final = "part"
_FIRST: Final = "first"


def computed(session: SparkSession, bound: BoundStage, rows: DataFrame, parts: DataFrame | None) -> DataFrame:
    """Return the rows of the target from rows of the input by their names.

    `parts` are the columns of the parts that are computed, each part once. None: all parts.
    """
    partition = _partition(bound)
    kept = rows.where(all_of(bound.stage.conditions))
    if parts is not None:
        kept = kept.join(parts, _same_part(bound), "leftsemi")
    kept.createOrReplaceTempView(_PART)
    return session.sql(str(partition.spark))


def placed(session: SparkSession, bound: BoundStage, rows: DataFrame, parts: DataFrame | None) -> DataFrame:
    """Return the rows of `computed` with their vnodes."""
    return computed(session, bound, rows, parts).selectExpr(*StageSelect(bound).placed())


def changed_parts(session: SparkSession, bound: BoundStage, states: InputStates, side: int) -> DataFrame:
    """Return the rows of all parts of which a version changed, before (`CLOSE`) or after it (`LIVE`)."""
    parts = None
    if not bound.stage.is_whole:
        versions = [one for one in (states.versions(CLOSE), states.versions(LIVE)) if one is not None]
        every = reduce(DataFrame.unionAll, [one.select(*_part_columns(bound)) for one in versions])
        parts = F.broadcast(every.distinct())
    return computed(session, bound, states.state(side), parts)


@dataclass(frozen=True, slots=True)
class _Page:
    """The vnodes of one actor in a page, or the vnodes of all actors."""

    actor: int
    positions: Positions
    block: Block


@dataclass(frozen=True, slots=True)
class _Read:
    """A `Page` of whole vnodes."""

    rows: Mapping[int, int]
    reached: Mapping[int, Position | None]


@dataclass
class SparkPartEngine:
    """Reads the history of one stage in one generation."""

    spark: SparkSession
    store: VersionedStore
    bound: BoundStage
    rows_first: int = ROWS_FIRST
    page_seconds: float = PAGE_SECONDS
    sink: SinkWriter | None = None
    """Takes the rows in place of the store."""
    _version: int = -1
    """Of the input for which the following are."""
    _rows: DataFrame | None = None
    _counts: Mapping[int, int] | None = None
    _firsts: DataFrame | None = None

    def __post_init__(self) -> None:
        # A session of its own has its own views and settings; it shares everything else.
        self.session = self.spark.newSession()
        self.session.conf.set("spark.sql.shuffle.partitions", str(self.session.sparkContext.defaultParallelism * 4))
        self.lookups = Lookups(self.session, self.store, self.bound, self.bound.stage.inputs)
        self.page_rows = self.rows_first

    def run(self, task: StageTask) -> list[ActorOutcome]:
        """Run one epoch. When this returns, every transaction is durable. Raises the errors of the store and of Spark.

        Without progress while the input is still being read. An actor with a limit reads a vnode as soon as it may read
        a row, and owes the rest of its rows.
        """
        assert not task.changed, "changes come after the history"
        began = time.monotonic()  # noqa: TID251 - the engine owns the clock of its slice
        outcomes = [nothing_read(index, task.page_rows, 0.0) for index in range(len(task.actors))]
        if self.lookups.ready(task.at, slice_seconds=task.slice_seconds):
            outcomes = self._run(task, outcomes)
        took = time.monotonic() - began  # noqa: TID251 - as above
        return [replace(one, reading_seconds=took, used_slice=took >= task.slice_seconds) for one in outcomes]

    def close(self) -> None:
        """Release the memory of the input."""
        self._forget()
        self.lookups.close()

    def _run(self, task: StageTask, outcomes: Sequence[ActorOutcome]) -> list[ActorOutcome]:
        self._prepare()
        pages = self._pages(task.actors)
        began = time.monotonic()  # noqa: TID251 - as above
        inserted = self._write(pages, task)
        seconds = time.monotonic() - began  # noqa: TID251 - as above
        found = list(outcomes)
        for one in pages:
            read = {span.vnode: max(self.counts.get(span.vnode, 0) - span.rows, 0) for span in one.block}
            one.positions.record(one.block, _Read(read, dict.fromkeys(read)))
            found[one.actor] = replace(
                found[one.actor], positions=one.positions.take_changed(), snapshot_rows=sum(read.values())
            )
        self._resize(sum(one.snapshot_rows for one in found), seconds, task.slice_seconds)
        found[0] = replace(found[0], inserted=inserted)
        return found

    def _resize(self, rows: int, seconds: float, slice_seconds: float) -> None:
        """Choose the size of the next page by the time of the last one."""
        aim = max(slice_seconds, self.page_seconds)
        if rows * 2 > self.page_rows:
            self.page_rows = max(int(rows * min(aim / max(seconds, 1e-6), 4.0)), self.rows_first)

    @property
    def counts(self) -> Mapping[int, int]:
        """The rows of each vnode of the input."""
        assert self._counts is not None
        return self._counts

    def _prepare(self) -> None:
        """Look at an input that has been read anew."""
        if self._version == self.lookups.version:
            return
        self._forget()
        (loaded,) = self.lookups.loaded.values()
        whole = reduce(DataFrame.unionAll, loaded.frames)
        alias = self.bound.stage.driver.alias
        self._rows = whole.selectExpr(ticked(VNODE), *named_columns(alias, loaded.relation, typed=True))
        self._counts = {row[0]: row[1] for row in whole.groupBy(VNODE).count().collect()}
        self._version = self.lookups.version

    def _forget(self) -> None:
        if self._firsts is not None:
            self._firsts.unpersist()
        self._rows = self._counts = self._firsts = None
        self._version = -1

    def _pages(self, actors: Sequence[ActorTask]) -> list[_Page]:
        """Choose the vnodes of the next page."""
        pages: list[_Page] = []
        reading = [actor.permits != 0 for actor in actors]
        if self.bound.stage.is_whole and not all(reading):
            return []
        for index, actor in enumerate(actors):
            if not reading[index]:
                continue
            positions = Positions(
                actor.runs,
                {position.vnode: position for position in actor.positions},
                block_vnodes=self.bound.upstream.vnode_count,
            )
            block = positions.next_block()
            if not self.bound.stage.is_whole:
                share = self.page_rows // sum(reading)
                block = self._some(block, share if actor.permits is None else min(share, actor.permits))
            if block:
                pages.append(_Page(index, positions, block))
        return pages

    def _some(self, block: Block, rows: int) -> Block:
        chosen: list[Span] = []
        for span in block:
            if chosen and rows <= 0:
                break
            chosen.append(span)
            rows -= self.counts.get(span.vnode, 0)
        return chosen

    def _write(self, pages: Sequence[_Page], task: StageTask) -> int:
        """Compute and write the parts of a page, and return how many rows that are."""
        spans = [span for one in pages for span in one.block]
        whole = self.bound.stage.is_whole
        if not spans or not (whole or any(self.counts.get(span.vnode, 0) for span in spans)):
            return 0
        assert self._rows is not None
        every = len(spans) == self.bound.upstream.vnode_count and all(span.after is None for span in spans)
        parts = None if whole or every else self._parts(spans)
        target, keys = self.bound.target, [ticked(part.name) for part in self.bound.target.key]
        rows = placed(self.session, self.bound, self._rows, parts)
        rows = rows.repartition(VNODE).sortWithinPartitions(VNODE, *keys)
        frame = rows.selectExpr(page_operation(), ticked(VNODE), *written_columns(target, wire=self.sink is None))
        return write(writing(frame, self.sink or self.store, target), task).inserted

    def _parts(self, spans: Block) -> DataFrame:
        """Return the parts whose first row is in some vnodes, after what was read of these."""
        firsts = self._first_rows()
        found: list[DataFrame] = []
        for after, some in alike(spans).items():
            rows = firsts.where(F.col(ticked(VNODE)).isin([span.vnode for span in some]))
            if after is not None:
                rows = rows.withColumn(POSITION_STATE, F.lit(IN_PROGRESS))
                for place, text in enumerate(after):
                    rows = rows.withColumn(position_column(place), F.lit(text).cast("string"))
                rows = rows.where(F.expr(f"not {marked_spark(key_of(self.bound.upstream))}"))
            found.append(rows.select(*_part_names(self.bound)))
        return reduce(DataFrame.unionAll, found)

    def _first_rows(self) -> DataFrame:
        """Return the columns of each part, and the vnode and the key of its first row."""
        if self._firsts is None:
            assert self._rows is not None
            relation, alias = self.bound.upstream, self.bound.stage.driver.alias
            keys = [part.name for part in relation.key]
            names = part_order(relation, _partition(self.bound)) or (VNODE, *keys)
            order = [_named(alias, name) for name in names]
            # In a struct, NULL is the least value; in the index it is the greatest.
            fields = [f"isnull({one}), {one}" for one in order]
            place = f"named_struct('order', struct({', '.join(fields)}), 'vnode', {ticked(VNODE)}"
            place += "".join(f", 'key_{at}', {_named(alias, name)}" for at, name in enumerate(keys)) + ")"
            rows = self._rows.select(*_part_columns(self.bound), F.expr(place).alias(_FIRST))
            names = _part_names(self.bound)
            least = rows.groupBy(*names).agg(F.min(_FIRST).alias(_FIRST))
            shown = [f"{_FIRST}.key_{at} as {ticked(name)}" for at, name in enumerate(keys)]
            self._firsts = least.selectExpr(*names, f"{_FIRST}.vnode as {ticked(VNODE)}", *shown).persist()
        return self._firsts


def _named(alias: str, name: str) -> str:
    return ticked(name if name == VNODE else spark_column(alias, name))


def _partition(bound: BoundStage) -> Partition:
    assert bound.stage.partition is not None
    return bound.stage.partition


def _part_names(bound: BoundStage) -> list[str]:
    return [f"{_PART}_{at}" for at in range(len(_partition(bound).columns))]


def _part_columns(bound: BoundStage) -> list[Column]:
    """Return the columns of a row's part, under names of their own."""
    alias = bound.stage.driver.alias
    names = zip(_partition(bound).columns, _part_names(bound), strict=True)
    return [F.col(_named(alias, column)).alias(name) for column, name in names]


def _same_part(bound: BoundStage) -> Column:
    alias = bound.stage.driver.alias
    names = zip(_partition(bound).columns, _part_names(bound), strict=True)
    return F.expr(" and ".join(f"{_named(alias, column)} <=> {name}" for column, name in names))
