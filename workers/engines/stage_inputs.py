"""The inputs of a stage in Spark while it follows changes: what was there before an epoch, and what changed in it.

Of an input that is looked up, all rows are read once, part by part, and persisted. The changes of later epochs are kept
beside them, in the memory of the worker: a change has an *age*, and an older row of the same key has gone. A relation
with many changes is read again.

The store may remove the versions of a past epoch, so a part that Spark has lost cannot be read again. Every read is
counted, and a second one fails the epoch.
"""

import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own customary name

from service.protocol.ids import RelationId
from service.protocol.relation import TRAVEL_PREFIX, Relation
from workers.backfill.stages import BoundStage, Window, Windows
from workers.engines.stage_lookups import Loaded
from workers.queries.stage_spark import loaded_columns, named_columns, used_columns
from workers.spark.frames import RepeatedTaskError, bytes_of, spark_schema
from workers.state_store.port import CLOSE, LIVE, OPERATION, VNODE, VersionedStore
from workers.state_store.wire import read_schema, ticked

CHANGES_MAX: Final = 200_000
"""A relation with so many changes beside it, and with more changes than a fourth of its rows, is read again."""
CHUNKS_MAX: Final = 64
UNCOMPILED_BYTES: Final = 4 << 20
"""About a hundred thousand rows of three columns."""
_AGE: Final = f"{TRAVEL_PREFIX}age"
_CLOSED: Final = f"{TRAVEL_PREFIX}closed_"


@dataclass(frozen=True, slots=True)
class InputStates:
    """An input in an epoch: its old and new versions, and the rows that are the same before and after, if it is needed.

    The frames have its columns by their names among those of all inputs. The driver's have `VNODE` too. None: no rows,
    because every frame of a plan costs time.
    """

    old: DataFrame | None
    new: DataFrame | None
    unchanged: DataFrame | None
    is_small: bool
    """Whether its rows can be sent to all tasks."""

    @property
    def same(self) -> DataFrame:
        """The rows before and after the epoch."""
        assert self.unchanged is not None, "an input that no other one's change concerns"
        return self.unchanged

    def versions(self, side: int) -> DataFrame | None:
        """Return the old or the new versions, for `CLOSE` and `LIVE`."""
        return self.old if side == CLOSE else self.new

    def state(self, side: int) -> DataFrame:
        """Return all rows before the epoch (`CLOSE`) or after it (`LIVE`)."""
        versions = self.versions(side)
        return self.same if versions is None else self.same.unionAll(versions)


@dataclass
class _Held:
    """The rows of a relation as of the epoch `loaded.at`: the parts, and what changed in them since they were read."""

    loaded: Loaded
    known: pa.Table
    """The changes, with their ages."""
    ages: list[int] = field(default_factory=list[int])
    """The age of the last change before each part was read."""
    age: int = 0
    size_bytes: int = 0
    """The memory of its rows, when it is whole."""

    def record(self, changes: pa.Table) -> None:
        """Keep the changes of the vnodes that have been read: a part that is read later has its own."""
        self.age += 1
        read = changes.filter(pc.less(changes.column(VNODE), pa.scalar(self.loaded.vnode, pa.int32())))
        self.known = pa.concat_tables([self.known, _aged(read, self.age)])
        if self.known.column(VNODE).num_chunks > CHUNKS_MAX:
            self.known = self.known.combine_chunks()


@dataclass
class StageInputs:
    """The relations of one stage in one generation."""

    spark: SparkSession
    store: VersionedStore
    bound: BoundStage
    broadcast_bytes: int
    held: dict[RelationId, _Held] = field(default_factory=dict[RelationId, _Held])
    closed: bool = False

    def __post_init__(self) -> None:
        self.reads = self.spark.sparkContext.accumulator(0)
        self.blocks = 0
        self.used = {
            one: used_columns(self.bound, [alias for alias, of in self.bound.of.items() if of.id == one])
            for one in self.bound.relations
        }

    def changes(self, changed: Collection[RelationId], windows: Windows) -> dict[RelationId, pa.Table]:
        """Read the net changes of some relations, with their operation and in wire types."""
        return {one: self._changes(self.used[one], windows[one]) for one in changed}

    def ready(self, needed: Collection[RelationId], windows: Windows, *, slice_seconds: float | None) -> bool:
        """Read what is missing of the needed relations, for about a slice. Return whether all is there.

        Held rows have to be as of the beginning of the window. Without a slice all is read.
        Raises InterruptedError when closed meanwhile.
        """
        began = time.monotonic()  # noqa: TID251 - the engine owns the clock of its slice
        ends = None if slice_seconds is None else began + slice_seconds
        for one, held in list(self.held.items()):
            if not self._continues(held, windows[one]):
                self.held.pop(one).loaded.drop()
        try:
            return all(self._is_read(one, windows[one], ends) for one in needed)
        finally:
            if self.closed:
                self.close()

    def _is_read(self, relation: RelationId, window: Window, ends: float | None) -> bool:
        """Read parts of a relation until it is whole, or the slice ends. Return whether it is whole."""
        held = self.held.get(relation)
        if held is None:
            nothing = _aged(_no_changes(self.used[relation]), 0)
            held = self.held[relation] = _Held(Loaded(self.used[relation], window.after), nothing)
        held.loaded.at = window.after
        while not held.loaded.whole:
            if self.closed:
                raise InterruptedError("the generation is over")
            self.blocks += held.loaded.read_part(self.spark, self.store, self.reads)
            held.loaded.width *= 2
            held.ages.append(held.age)
            if held.loaded.whole:
                held.size_bytes = sum(map(bytes_of, held.loaded.frames))
            elif ends is not None and time.monotonic() > ends:  # noqa: TID251 - as above
                return False
        return True

    def record(self, changes: Mapping[RelationId, pa.Table], windows: Windows) -> None:
        """Bring what is held to the end of the windows."""
        for one, held in list(self.held.items()):
            if one in changes:
                held.record(changes[one])
            held.loaded.at = windows[one].upto
            changed = held.known.num_rows
            if changed > CHANGES_MAX and changed > sum(frame.count() for frame in held.loaded.frames) // 4:
                self.held.pop(one).loaded.drop()

    def states(self, changes: Mapping[RelationId, pa.Table]) -> dict[str, InputStates]:
        """Return the states of each input. Whatever is needed is there (`ready`)."""
        return {alias: self._states(alias, relation, changes.get(relation.id)) for alias, relation in self._aliases()}

    @property
    def are_few(self) -> bool:
        """Whether to compile a plan over the rows that are held costs more than to run it without."""
        return sum(held.size_bytes for held in self.held.values()) <= UNCOMPILED_BYTES

    def assure_single_reads(self) -> None:
        """Raise RepeatedTaskError if Spark has lost a part and read it again, by now at another epoch."""
        if self.reads.value != self.blocks:
            raise RepeatedTaskError("an executor was lost with rows of a stage's inputs")

    def close(self) -> None:
        """Release the memory of all relations. A part that another thread reads now is released when it is there."""
        self.closed = True
        for held in list(self.held.values()):
            held.loaded.drop()

    def _aliases(self) -> Iterator[tuple[str, Relation]]:
        for alias, relation in self.bound.of.items():
            yield alias, self.used[relation.id]

    def _changes(self, relation: Relation, window: Window) -> pa.Table:
        schema = read_schema(relation)
        every = ((0, relation.vnode_count - 1),)
        read = self.store.read_changes(relation, after=window.after, upto=window.upto, runs=every)
        operations: list[pa.Array[Any]] = []
        batches: list[pa.RecordBatch] = []
        for operation, batch in read:
            operations.append(pa.repeat(pa.scalar(operation, pa.int8()), batch.num_rows))
            batches.append(batch)
        rows = pa.Table.from_batches(batches, schema)
        return rows.append_column(OPERATION, pa.chunked_array(operations, pa.int8()))

    def _continues(self, held: _Held, window: Window) -> bool:
        at = held.loaded.at
        if at > window.after:
            return False
        return at == window.after or not self.store.changed(held.loaded.relation, after=at, upto=window.after)

    def _states(self, alias: str, relation: Relation, changes: pa.Table | None) -> InputStates:
        held = self.held.get(relation.id)
        table = _no_changes(relation) if changes is None else changes
        old, new = (self._typed(_of(table, side), relation) for side in (CLOSE, LIVE))
        beside = [ticked(VNODE)] if alias == self.bound.stage.driver.alias else []
        columns = [*beside, *named_columns(alias, relation, typed=True)]
        unchanged = None if held is None or not held.loaded.whole else self._unchanged(held, table)
        return InputStates(
            None if old is None else F.broadcast(old.selectExpr(*columns)),
            None if new is None else F.broadcast(new.selectExpr(*columns)),
            None if unchanged is None else unchanged.selectExpr(*columns),
            held is not None and held.loaded.whole and held.size_bytes <= self.broadcast_bytes,
        )

    def _unchanged(self, held: _Held, changes: pa.Table) -> DataFrame:
        """Return the rows of a relation before and after an epoch with these changes."""
        relation = held.loaded.relation
        aged = [frame.withColumn(_AGE, F.lit(age)) for frame, age in zip(held.loaded.frames, held.ages, strict=True)]
        lives = self._typed(_of(held.known, LIVE), relation, aged=True)
        rows = reduce(DataFrame.unionAll, aged if lives is None else [*aged, lives])
        every = pa.concat_tables([held.known, _aged(changes, held.age + 1)])
        keys = [part.name for part in relation.key]
        closes = self._typed(_of(every, CLOSE), relation, aged=True)
        if closes is None:
            return rows.drop(_AGE)
        closed = closes.selectExpr(*(f"{ticked(name)} as {ticked(_CLOSED + name)}" for name in (*keys, _AGE)))
        same = [f"{ticked(name)} <=> {ticked(_CLOSED + name)}" for name in keys]
        later = f"{ticked(_CLOSED + _AGE)} > {ticked(_AGE)}"
        return rows.join(F.broadcast(closed), F.expr(" and ".join([*same, later])), "leftanti").drop(_AGE)

    def _typed(self, table: pa.Table, relation: Relation, *, aged: bool = False) -> DataFrame | None:
        if not table.num_rows:
            return None
        frame = self.spark.createDataFrame(table, schema=spark_schema(table.schema)).coalesce(1)
        return frame.selectExpr(*loaded_columns(relation), *([ticked(_AGE)] if aged else []))


def _no_changes(relation: Relation) -> pa.Table:
    return read_schema(relation).empty_table().append_column(OPERATION, pa.array([], pa.int8()))


def _of(changes: pa.Table, operation: int) -> pa.Table:
    return changes.filter(pc.equal(changes.column(OPERATION), pa.scalar(operation, pa.int8())))


def _aged(changes: pa.Table, age: int) -> pa.Table:
    return changes.append_column(_AGE, pa.repeat(pa.scalar(age, pa.int32()), changes.num_rows))
