"""Inputs of a stage, read whole into Spark's memory and disk, and kept while the stage reads history.

They are read in parts, so that an epoch ends in time however large they are (I13). A relation that has not changed
since the epoch at which it was read is not read again.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial, reduce
from typing import NamedTuple

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark import Accumulator, StorageLevel
from pyspark.sql import DataFrame, SparkSession

from service.protocol.ids import Epoch, RelationId
from service.protocol.relation import Relation
from service.protocol.stage import Input
from service.protocol.vnodes import Runs
from workers.backfill.stages import BoundStage
from workers.engines.rows import actor_indexes
from workers.engines.whole import whole_rows
from workers.queries.stage_spark import loaded_columns, named_columns, used_columns
from workers.spark.frames import bytes_of, spark_schema
from workers.state_store.port import Pages, VersionedStore
from workers.state_store.wire import read_schema

FIRST_VNODES = 8
"""So many vnodes of a large relation are read by a task at first, and twice as many whenever that took little of a
slice.
"""
LARGE_ROWS = 500_000
"""A smaller relation is read as a whole at once."""
BROADCAST_BYTES = 64 << 20
"""A smaller input is sent to all tasks, so that the driver's rows need not be exchanged between them."""


@dataclass(frozen=True, slots=True)
class Whole:
    """A relation to be read whole at an epoch, by tasks over some vnodes each."""

    store: Pages
    relation: Relation
    at: Epoch
    blocks: tuple[Runs, ...]

    def frame(self, spark: SparkSession, reads: Accumulator[int] | None = None) -> DataFrame:
        """Return its rows, with its columns in their Spark types. `reads` counts the blocks that tasks have read."""
        count = len(self.blocks)
        read = spark.range(0, count, 1, count).mapInArrow(
            partial(_read_blocks, self, reads), spark_schema(read_schema(self.relation))
        )
        return read.selectExpr(*loaded_columns(self.relation))


def _read_blocks(
    whole: Whole, reads: Accumulator[int] | None, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for block in actor_indexes(batch):
            if reads is not None:
                reads.add(1)
            yield from whole_rows(whole.store, whole.relation, whole.blocks[block], at=whole.at)


@dataclass
class Loaded:
    """The part of a relation that has been read: its vnodes before `vnode`. The next part has `width` more per task."""

    relation: Relation
    at: Epoch
    vnode: int = 0
    width: int = FIRST_VNODES
    frames: list[DataFrame] = field(default_factory=list[DataFrame])

    @property
    def whole(self) -> bool:
        """Whether all vnodes are read."""
        return self.vnode >= self.relation.vnode_count

    def read_part(self, spark: SparkSession, store: VersionedStore, reads: Accumulator[int] | None = None) -> int:
        """Read and persist the next part as of `at`, by one task for each processor. Return how many blocks it has."""
        end = self.relation.vnode_count
        # Rows of a lake have no vnode that stays: they are read together.
        lake = self.relation.lake is not None
        if not self.vnode and (lake or not store.has_rows(self.relation, LARGE_ROWS, at=self.at)):
            self.width = -(-end // spark.sparkContext.defaultParallelism)
        starts = range(self.vnode, end, self.width)[: spark.sparkContext.defaultParallelism]
        blocks: list[Runs] = [((first, min(first + self.width, end) - 1),) for first in starts]
        frame = Whole(store, self.relation, self.at, tuple(blocks)).frame(spark, reads)
        self.frames.append(frame.persist(StorageLevel.MEMORY_AND_DISK))
        frame.count()
        self.vnode = starts[-1] + self.width
        return len(blocks)

    def drop(self) -> None:
        """Release the memory of all parts."""
        while self.frames:
            # If Spark has ended, nothing is left of them.
            with suppress(Py4JError, OSError):
                self.frames.pop().unpersist()


class LookedUp(NamedTuple):
    """The rows of each input, which of them are `small` enough for all tasks, and how many bytes the others have."""

    rows: dict[str, DataFrame]
    small: set[str]
    exchanged_bytes: int


@dataclass
class Lookups:
    """Some inputs of one stage. `version` changes whenever one is read again."""

    spark: SparkSession
    store: VersionedStore
    bound: BoundStage
    inputs: Sequence[Input]
    broadcast_bytes: int = BROADCAST_BYTES
    version: int = 0
    closed: bool = False
    loaded: dict[RelationId, Loaded] = field(default_factory=dict[RelationId, Loaded])

    @property
    def aliases(self) -> Mapping[RelationId, Sequence[str]]:
        """The inputs by their relation."""
        found: dict[RelationId, list[str]] = {}
        for one in self.inputs:
            found.setdefault(one.relation, []).append(one.alias)
        return found

    def ready(self, at: Mapping[RelationId, Epoch], *, slice_seconds: float) -> bool:
        """Read what is missing, one part at least and then for about a slice. Return whether all is there.

        Raises InterruptedError when closed meanwhile.
        """
        began = time.monotonic()  # noqa: TID251 - the engine owns the clock of its slice
        parts = 0
        try:
            for relation, aliases in self.aliases.items():
                loaded = self._current(relation, aliases, at[relation])
                while not loaded.whole:
                    now = time.monotonic()  # noqa: TID251 - as above
                    if parts and now - began >= slice_seconds:
                        return False
                    if self.closed:
                        raise InterruptedError("the generation is over")
                    loaded.read_part(self.spark, self.store)
                    parts += 1
                    took = time.monotonic() - now  # noqa: TID251 - as above
                    if took < slice_seconds / 4:
                        loaded.width *= 2
            return True
        finally:
            if self.closed:
                self.close()

    def _current(self, relation: RelationId, aliases: Sequence[str], at: Epoch) -> Loaded:
        loaded = self.loaded.get(relation)
        if loaded is not None and loaded.at != at:
            first, last = min(loaded.at, at), max(loaded.at, at)
            if self.store.changed(self.bound.relations[relation], after=first, upto=last):
                loaded.drop()
                loaded = None
        if loaded is None:
            self.version += 1
            loaded = self.loaded[relation] = Loaded(used_columns(self.bound, aliases), at)
        loaded.at = at
        return loaded

    def frames(self) -> "LookedUp":
        """Return the rows of each input."""
        exchanged, found, small = 0, dict[str, DataFrame](), set[str]()
        for relation, aliases in self.aliases.items():
            loaded = self.loaded[relation]
            whole = reduce(DataFrame.unionAll, loaded.frames)
            size = bytes_of(whole)
            if size <= self.broadcast_bytes:
                small.update(aliases)
            else:
                exchanged += size * len(aliases)
            for alias in aliases:
                found[alias] = whole.selectExpr(*named_columns(alias, loaded.relation, typed=True))
        return LookedUp(found, small, exchanged)

    def close(self) -> None:
        """Release the memory of all inputs. A part that another thread reads meanwhile is released when it is there."""
        self.closed = True
        for loaded in self.loaded.values():
            loaded.drop()
