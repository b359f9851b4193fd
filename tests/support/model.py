"""A plain-data reference of the arrangement executor: row by row what Postgres and Spark do by sets.

The decisions are the production ones (`positions.pages`, `scan`, `budget`); storage, marking and writing are said again
as plainly as possible, so that a schedule of thousands of epochs runs in a second and every committed epoch can be
compared with the upstream (I1). The order inside an epoch `(prev, curr]`: first forward the changes that are marked by
the positions stored at `prev`, then read pages at `curr`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cmp_to_key
from typing import Any, Final

from service.protocol.columns import ColumnType, TypeName
from service.protocol.ids import ActorId
from service.protocol.plan import PositionState, VnodePosition
from service.protocol.relation import ALIVE
from service.protocol.vnodes import canonical_float, vnode_of, vnodes_of
from workers.backfill.order import KeyPart, Position
from workers.backfill.positions import Block, PageSize, Span, alike, pages, samples, share_of_page
from workers.backfill.scan import ActorState, ScanState

Value = bool | int | float | str | bytes | None
Key = tuple[Value, ...]
Row = tuple[int, ...]
Query = Callable[[Row], Row | None]
"""Projects a row, or gives None where the filter drops it."""


def order_python(key: Sequence[KeyPart], left: Sequence[object], right: Sequence[object]) -> int:
    """Return a number below, at or above zero as `left` comes before, with or after `right` in storage order."""
    for part, one, other in zip(key, left, right, strict=True):
        first, second = _rank(one), _rank(other)
        if first != second:
            return -1 if (first < second) is not part.descending else 1
    return 0


def identity(values: Sequence[object]) -> tuple[Any, ...]:
    """Return what is equal for equal keys: NULL is one value, NaN is one value, -0.0 is 0.0."""
    return tuple(_rank(value) for value in values)


def _rank(value: Any) -> tuple[int, Any]:
    """Place a value among those of its column: NULL is largest, then NaN; text goes by its bytes."""
    if value is None:
        return (2, 0)
    if isinstance(value, float) and value != value:  # noqa: PLR0124 - the definition of NaN
        return (1, 0)
    return (0, value.encode() if isinstance(value, str) else value)


def text_of(value: Value) -> str | None:
    """Return a value as Postgres prints it."""
    match value:
        case None | str():
            return value
        case bool():
            return str(value).lower()
        case bytes():
            return "\\x" + value.hex()
        case _:
            return str(value)


_PARSERS: Final[Mapping[TypeName, Callable[[str], Value]]] = {
    TypeName.BOOLEAN: lambda text: text == "true",
    TypeName.BIGINT: int,
    TypeName.DOUBLE: float,
    TypeName.TEXT: str,
    TypeName.BYTEA: lambda text: bytes.fromhex(text[2:]),
}


def value_of(text: str | None, kind: ColumnType) -> Value:
    """Read a value back from its Postgres text. Only the types that the schedules use."""
    return None if text is None else _PARSERS[kind.name](text)


def canonical(value: Value) -> str | None:
    """Return the canonical text of a value for its vnode."""
    match value:
        case float():
            return canonical_float(value)
        case bytes():
            return value.hex()
        case _:
            return text_of(value)


@dataclass(slots=True)
class Version:
    """One version of a row: it is alive in `start <= epoch < end`."""

    vnode: int
    key: Key
    row: Row
    start: int
    end: int = ALIVE


@dataclass(frozen=True, slots=True)
class Half:
    """One half of a net change: the old row of a key, or (`new`) its new row."""

    vnode: int
    key: Key
    row: Row
    new: bool


@dataclass(frozen=True, slots=True)
class ModelPage:
    """A page and how far it leads."""

    versions: tuple[Version, ...]
    reached: Mapping[int, Position | None]

    @property
    def rows(self) -> Mapping[int, int]:
        """Rows by vnode."""
        counts: dict[int, int] = {}
        for version in self.versions:
            counts[version.vnode] = counts.get(version.vnode, 0) + 1
        return counts


@dataclass
class VersionedTable:
    """A relation of the state store. Invariants: `start < end`; lives of one key do not overlap."""

    key: tuple[KeyPart, ...]
    vnode_count: int
    versions: list[Version] = field(default_factory=list)

    def vnode(self, key: Key) -> int:
        """Return the vnode of a key."""
        return vnode_of([canonical(value) for value in key], self.vnode_count)

    def at(self, epoch: int) -> list[Version]:
        """Return the rows readable at `epoch`, in storage order."""
        readable = [version for version in self.versions if version.start <= epoch < version.end]
        return sorted(readable, key=cmp_to_key(self._order))

    def page(self, epoch: int, block: Block, size: PageSize) -> ModelPage:
        """Read a page of a block."""
        left = {span.vnode: self.left_of(epoch, span) for span in block}
        upto = None
        for some in (block,) if size.exact else samples(block):
            few, place = (
                self.in_order(one for span in some for one in left[span.vnode]),
                share_of_page(size.rows, some, block),
            )
            if place <= len(few):
                upto = few[place - 1].key
                break
        if upto is None:
            return ModelPage(tuple(one for rows in left.values() for one in rows), dict.fromkeys(left))
        part = [
            span.vnode
            for after, spans in alike(block).items()
            if after is None or order_python(self.key, upto, self.values(after)) > 0
            for span in spans
        ]
        found = [one for vnode in part for one in left[vnode] if order_python(self.key, one.key, upto) <= 0]
        return ModelPage(tuple(found), dict.fromkeys(part, tuple(text_of(value) for value in upto)))

    def left_of(self, epoch: int, span: Span) -> list[Version]:
        """Return what is left of a vnode at `epoch`, in the order of the key."""
        rows = [one for one in self.versions if one.vnode == span.vnode and one.start <= epoch < one.end]
        if span.after is not None:
            after = self.values(span.after)
            rows = [one for one in rows if order_python(self.key, one.key, after) > 0]
        return self.in_order(rows)

    def in_order(self, versions: Iterable[Version]) -> list[Version]:
        """Return versions in the order of their keys."""
        return sorted(versions, key=cmp_to_key(lambda one, other: order_python(self.key, one.key, other.key)))

    def changes(self, prev: int, curr: int) -> list[Half]:
        """Return the net changes of `(prev, curr]`, each half of an update by itself."""
        halves: list[Half] = []
        for version in self.versions:
            if version.start <= prev < version.end <= curr:
                halves.append(Half(version.vnode, version.key, version.row, new=False))
            if prev < version.start <= curr < version.end:
                halves.append(Half(version.vnode, version.key, version.row, new=True))
        return halves

    def close(self, key: Key, epoch: int) -> None:
        """End the life of a key, guarded so that it commutes with the epoch's inserts."""
        for version in self._of(key):
            if version.end == ALIVE and version.start < epoch:
                version.end = epoch

    def insert(self, key: Key, row: Row, epoch: int) -> None:
        """Begin a life. As the unique index does, refuses a second one of the same key and epoch."""
        assert all(version.start != epoch for version in self._of(key)), f"key {key} twice in epoch {epoch}"
        self.versions.append(Version(self.vnode(key), key, row, epoch))

    def put(self, key: Key, row: Row, epoch: int) -> None:
        """Insert or overwrite as DML does: one net change per key and epoch."""
        self.remove(key, epoch)
        self.insert(key, row, epoch)

    def remove(self, key: Key, epoch: int) -> None:
        """Delete as DML does: what began in this epoch never was."""
        young = [version for version in self._of(key) if version.start == epoch]
        self.versions = [version for version in self.versions if version not in young]
        self.close(key, epoch)

    def roll_back(self, epoch: int) -> None:
        """Forget everything after `epoch` (I3)."""
        self.versions = [version for version in self.versions if version.start <= epoch]
        for version in self.versions:
            if epoch < version.end < ALIVE:
                version.end = ALIVE

    def values(self, position: Position) -> Key:
        """Return the key at a position."""
        return tuple(value_of(text, part.type) for text, part in zip(position, self.key, strict=True))

    def _of(self, key: Key) -> list[Version]:
        wanted = identity(key)
        return [version for version in self.versions if identity(version.key) == wanted]

    def _order(self, one: Version, other: Version) -> int:
        return one.vnode - other.vnode or order_python(self.key, one.key, other.key)


@dataclass(frozen=True, slots=True)
class Reading:
    """How much history an epoch may read. `pages_max` ends the time slice after so many pages of each actor."""

    page_rows: int
    pages_max: int
    now: float
    interval_seconds: float = 1.0


@dataclass(frozen=True, slots=True)
class Passed:
    """A named point that an actor passes; a test counts there, or kills there by raising."""

    point: str
    actor: ActorId
    rows: int = 0


Marks = Mapping[int, VnodePosition]


@dataclass
class Arrangement:
    """The executor. Each step is a method of its own, so that a test can break exactly one of them."""

    upstream: VersionedTable
    target: VersionedTable
    query: Query
    scan: ScanState
    passed: Callable[[Passed], None]

    def epoch(self, prev: int, curr: int, reading: Reading | None) -> frozenset[ActorId]:
        """Run one epoch; `reading` is None while paused. Return the actors that report their finish."""
        finished = frozenset(actor.id for actor in self.scan.actors if actor.positions.completed)
        for actor in self.scan.actors:
            self.run(actor, prev, curr, reading)
        return finished

    def run(self, actor: ActorState, prev: int, curr: int, reading: Reading | None) -> None:
        """Run one actor: live changes by the positions at `prev`, then history at `curr`."""
        self.passed(Passed("before_forward", actor.id))
        self.forward(actor, prev, curr, dict(actor.positions.by_vnode))
        self.passed(Passed("after_forward", actor.id))
        if reading is not None:
            self.read(actor, self.snapshot_epoch(prev, curr), curr, reading)
        self.passed(Passed("after_pages", actor.id))

    def snapshot_epoch(self, prev: int, curr: int) -> int:
        """Return the epoch at which pages are read."""
        assert prev < curr
        return curr

    def forward(self, actor: ActorState, prev: int, curr: int, marks: Marks) -> None:
        """Close and insert what the marked changes of the actor's vnodes ask for."""
        owned = set(vnodes_of(actor.positions.runs))
        changes = [half for half in self.upstream.changes(prev, curr) if half.vnode in owned]
        marked = self.marked(changes, marks)
        for half in marked:
            if not half.new and self.query(half.row) is not None:
                self.target.close(half.key, curr)
        for half in marked:
            out = self.query(half.row) if half.new else None
            if out is not None:
                self.target.insert(half.key, out, curr)

    def marked(self, changes: Sequence[Half], marks: Marks) -> list[Half]:
        """Return the halves that are downstream's business: each is decided by itself."""
        return [half for half in changes if self.visible(marks.get(half.vnode), half.key)]

    def visible(self, position: VnodePosition | None, key: Key) -> bool:
        """Whether the key is at or before the position."""
        if position is None:
            return False
        if position.state is PositionState.COMPLETED:
            return True
        assert position.key is not None
        return order_python(self.upstream.key, key, self.upstream.values(position.key)) <= 0

    def read(self, actor: ActorState, at: int, curr: int, reading: Reading) -> None:
        """Read pages with the production loop and write what the query makes of them."""
        actor.budget = actor.budget.refilled(reading.now, interval_seconds=reading.interval_seconds)
        done = 0

        def more_time() -> bool:
            return done < reading.pages_max

        def read(block: Block, size: PageSize) -> ModelPage:
            return self.upstream.page(at, block, size)

        def page_rows() -> int:
            return reading.page_rows

        permits = actor.budget.permits
        for page in pages(actor.positions, read, page_rows=page_rows, permits=permits, more_time=more_time):
            self._write(actor, page, curr)
            done += 1

    def _write(self, actor: ActorState, page: ModelPage, curr: int) -> None:
        count = len(page.versions)
        actor.budget = actor.budget.spent(count)
        self.passed(Passed("page_read", actor.id, count))
        for version in page.versions:
            out = self.query(version.row)
            if out is not None:
                self.target.insert(version.key, out, curr)
        self.passed(Passed("page_written", actor.id))
