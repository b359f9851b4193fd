"""The state store in memory: versioned tables, who may write to them, what is shown of them.

The service's side implements `service.ports.state_store` and sits its examination. The worker's side is a transaction
that buffers what it writes and is fenced when it commits, as the last statement of a real one is. Keys are whole
numbers and NULL, ascending: the orders of keys have tests of their own.
"""

from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from typing_extensions import override

from service.domain.errors import Conflict, Deposed, Invalid, Stale
from service.domain.fan_out import Statistics
from service.ports.state_store import IndexSize
from service.protocol.ids import Epoch, Generation, GraphId, RelationId, Term
from service.protocol.relation import ALIVE, Relation
from service.protocol.stage import LookupIndex
from service.protocol.vnodes import vnode_of
from tests.support.model import Half, Key, ModelPage, Row, Version, VersionedTable
from workers.backfill.order import Position, key_of
from workers.backfill.positions import Block, PageSize
from workers.backfill.reading import Reading

PIN_SECONDS = 60.0


class GenerationOverError(Exception):
    """The last statement of a worker's transaction found its generation gone. The text is the real one's."""

    def __init__(self, graph: GraphId, generation: Generation) -> None:
        super().__init__(f"generation {generation} of graph {graph} is over")
        self.graph, self.generation = graph, generation

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.graph, self.generation)


@lru_cache(maxsize=1 << 16)
def ranked(key: Key) -> tuple[Any, ...]:
    """Return what sorts as the key does: NULL is largest."""
    return tuple((value is None, value or 0) for value in key)


def key_at(texts: tuple[str | None, ...]) -> Key:
    """Return the key at a position."""
    return tuple(None if text is None else int(text) for text in texts)


@lru_cache(maxsize=1 << 16)
def placed(key: Key, vnode_count: int) -> int:
    """Return the vnode of a table's key."""
    return vnode_of([None if value is None else str(value) for value in key], vnode_count)


@dataclass(frozen=True, slots=True)
class PartialGroup:
    """The sums of one group over some pages of history, as an epoch has read them."""

    epoch: int
    vnode: int
    key: Key
    sums: tuple[int, ...]


class StoredTable(VersionedTable):
    """One relation's table, whose versions are found by key."""

    def __init__(self, relation: Relation) -> None:
        super().__init__(key_of(relation), relation.vnode_count)
        self.relation = relation
        self.indexed = True
        self.lookups: set[LookupIndex] = set()
        self.partials: list[PartialGroup] | None = None
        """The log of partial groups, if there is one."""
        self._by_key: dict[Key, list[Version]] = {}

    @override
    def in_order(self, versions: Iterable[Version]) -> list[Version]:
        return sorted(versions, key=_storage_order)

    @override
    def values(self, position: Position) -> Key:
        return tuple(None if text is None else int(text) for text in position)

    def rows(self, epoch: int) -> dict[Key, Row]:
        """Return what is readable at `epoch`."""
        return {one.key: one.row for one in self.versions if one.start <= epoch < one.end}

    def alive(self) -> dict[Key, Version]:
        """Return what DML sees: the versions that no epoch has ended."""
        return {one.key: one for one in self.versions if one.end == ALIVE}

    @override
    def vnode(self, key: Key) -> int:
        return placed(key, self.vnode_count)

    def put_version(self, version: Version) -> None:
        """Insert a version. As the unique index does, refuses a second one of the same key and epoch."""
        mine = self._by_key.setdefault(version.key, [])
        assert all(one.start != version.start for one in mine), f"{version} meets another of its key and epoch"
        assert version.start < version.end, f"{version} has no life"
        mine.append(version)
        self.versions.append(version)

    def ends(self, key: Key, epoch: int) -> int:
        """End the version alive at a key, unless it began in this epoch; return how many were ended."""
        assert self.indexed, f"{self.relation.name} has no index to find {key} by"
        ended = [one for one in self._by_key.get(key, ()) if one.end == ALIVE and one.start < epoch]
        for version in ended:
            version.end = epoch
        return len(ended)

    @override
    def roll_back(self, epoch: int) -> None:
        for version in self.versions:
            if epoch < version.end < ALIVE:
                version.end = ALIVE
        self._keep(lambda version: version.start <= epoch)
        if self.partials is not None:
            self.partials = [one for one in self.partials if one.epoch <= epoch]

    def vacuum(self, horizon: int) -> int:
        """Delete what ended at or before the horizon; return how much."""
        before = len(self.versions)
        self._keep(lambda version: version.end > horizon)
        return before - len(self.versions)

    def _keep(self, wanted: Callable[[Version], bool]) -> None:
        kept = [version for version in self.versions if wanted(version)]
        if len(kept) == len(self.versions):
            return
        self.versions, self._by_key = kept, {}
        for version in kept:
            self._by_key.setdefault(version.key, []).append(version)


def _storage_order(version: Version) -> tuple[Any, ...]:
    return ranked(version.key)


@dataclass
class StateStore:
    """The database. `seconds` is its clock, and `table` makes a relation's table."""

    seconds: Callable[[], float] = lambda: 0.0
    table: Callable[[Relation], StoredTable] = StoredTable
    term: Term = field(default_factory=lambda: Term(0))
    fences: dict[GraphId, Generation] = field(default_factory=dict[GraphId, Generation])
    published: dict[GraphId, Epoch] = field(default_factory=dict[GraphId, Epoch])
    horizons: dict[GraphId, Epoch] = field(default_factory=dict[GraphId, Epoch])
    pins: dict[tuple[GraphId, str], tuple[Epoch, float]] = field(
        default_factory=dict[tuple[GraphId, str], tuple[Epoch, float]]
    )
    tables: dict[RelationId, StoredTable] = field(default_factory=dict[RelationId, StoredTable])
    public: dict[str, tuple[RelationId, GraphId]] = field(default_factory=dict[str, tuple[RelationId, GraphId]])
    live: dict[str, RelationId] = field(default_factory=dict[str, RelationId])

    def assert_term(self, term: Term) -> None:
        """Raise Deposed where `term` is over."""
        if self.term != term:
            raise Deposed(term)

    def shown(self, name: str) -> dict[Key, Row] | None:
        """Return what a user reads, None where there is no such view."""
        if name not in self.public:
            return None
        relation, graph = self.public[name]
        return self.tables[relation].rows(self.published.get(graph, 0))


@dataclass
class Writing:
    """A worker's transaction: nobody sees what it wrote before it commits."""

    store: StateStore
    graph: GraphId
    generation: Generation
    closed: list[tuple[StoredTable, Key, int]] = field(default_factory=list[tuple[StoredTable, Key, int]])
    inserted: list[tuple[StoredTable, Version]] = field(default_factory=list[tuple[StoredTable, Version]])
    logged: list[tuple[StoredTable, PartialGroup]] = field(default_factory=list[tuple[StoredTable, PartialGroup]])

    def commit(self) -> int:
        """Hold the generation, and make everything durable at once (I7); return how many versions were closed."""
        if not self.held():
            raise GenerationOverError(self.graph, self.generation)
        closed = sum(table.ends(key, epoch) for table, key, epoch in self.closed)
        for table, version in self.inserted:
            table.put_version(version)
        for table, group in self.logged:
            assert table.partials is not None, f"{table.relation.name} has no log of partial groups"
            table.partials.append(group)
        return closed

    def held(self) -> bool:
        """Whether its generation is the present one."""
        return self.store.fences.get(self.graph) == self.generation


@dataclass
class Source:
    """What an executor reads in the epoch `curr`. Remembers each key's vnode, which its row downstream shares."""

    table: StoredTable
    reading: Reading
    curr: Epoch
    halves: int = 0
    vnodes: dict[Key, int] = field(default_factory=dict[Key, int])

    @property
    def key(self) -> Any:
        return self.table.key

    def values(self, position: Position) -> Key:
        return self.table.values(position)

    def changes(self, prev: int, curr: int) -> list[Half]:
        del prev, curr
        halves = self.table.changes(self.reading.after, self.reading.upto) if self.reading.changes else []
        self.halves += len(halves)
        self.vnodes.update((half.key, half.vnode) for half in halves)
        return halves

    def page(self, epoch: int, block: Block, size: PageSize) -> ModelPage:
        page = self.table.page(self.reading.at if epoch == self.curr else epoch, block, size)
        self.vnodes.update((version.key, version.vnode) for version in page.versions)
        return page


@dataclass
class Target:
    """What an executor writes to: one branch of a view, in a transaction."""

    writing: Writing
    table: StoredTable
    source: Source
    branch: int

    def close(self, key: Key, epoch: int) -> None:
        self.writing.closed.append((self.table, self._key(key), epoch))

    def insert(self, key: Key, row: Row, epoch: int) -> None:
        version = Version(self.source.vnodes[key], self._key(key), row, epoch)
        self.writing.inserted.append((self.table, version))

    def _key(self, key: Key) -> Key:
        return view_key(self.branch, key, len(self.table.key))


def view_key(branch: int, key: Key, parts: int) -> Key:
    """Return a view's key: the branch of the union, the upstream's key, and NULLs where another branch has more."""
    return (branch, *key, *(None,) * (parts - 1 - len(key)))


def _unseen(_: str) -> None:
    return


@dataclass
class FakeLookups:
    """See `service.ports.state_store.LookupIndexes`. `passing` is as in `FakeTables`."""

    store: StateStore
    passing: Callable[[str], None] = _unseen

    async def missing(self, wanted: Collection[LookupIndex]) -> frozenset[LookupIndex]:
        tables = self.store.tables
        return frozenset(one for one in wanted if one.relation in tables and one not in tables[one.relation].lookups)

    async def build(self, index: LookupIndex, *, term: Term) -> None:
        self.passing("before build")
        self.store.assert_term(term)
        if index.relation not in self.store.tables:
            raise Invalid(f"relation state.t_{index.relation} does not exist")
        self.store.tables[index.relation].lookups.add(index)
        self.passing("after build")

    async def held(self) -> Mapping[LookupIndex, str]:
        return {}

    async def stored(self) -> Mapping[str, IndexSize]:
        every = (index for table in self.store.tables.values() for index in table.lookups)
        return {self.name(index): IndexSize(complete=True, bytes=8192) for index in every}

    def name(self, index: LookupIndex) -> str:
        return str(index)

    async def statistics(self, relations: Collection[RelationId]) -> Statistics:
        del relations
        return {}

    async def drop(self, names: Collection[str], *, term: Term) -> frozenset[str]:
        self.passing("before drop of indexes")
        self.store.assert_term(term)
        for table in self.store.tables.values():
            table.lookups = {index for index in table.lookups if self.name(index) not in names}
        return frozenset(names)


@dataclass
class FakeFences:
    """See `service.ports.state_store.Fences`. `passing` is as in `FakeTables`."""

    store: StateStore
    passing: Callable[[str], None] = _unseen

    async def claim(self, term: Term) -> None:
        self.passing("before claim")
        if self.store.term > term:
            raise Deposed(term)
        self.store.term = term
        self.passing("after claim")

    async def fence(self, graph: GraphId, generation: Generation, *, term: Term) -> Collection[Generation]:
        self.passing("before fence")
        if self.store.fences.get(graph, generation) > generation:
            raise Stale(generation)
        self.store.assert_term(term)
        self.store.fences[graph] = generation
        self.passing("after fence")
        return ()

    async def retire(self, graph: GraphId, generation: Generation, *, term: Term) -> None:
        await self.fence(graph, generation, term=term)
        self.passing("before retire")
        self.store.assert_term(term)
        for table in (self.store.fences, self.store.published, self.store.horizons):
            table.pop(graph, None)
        self.store.pins = {pin: held for pin, held in self.store.pins.items() if pin[0] != graph}
        self.passing("after retire")


@dataclass
class FakeTables:
    """See `service.ports.state_store.VersionedTables`. `passing` is called around each transaction, with its name."""

    store: StateStore
    passing: Callable[[str], None] = _unseen

    async def create(
        self,
        relation: Relation,
        *,
        term: Term,
        loading: bool = False,
        lookups: Collection[LookupIndex] = (),
        sums: Sequence[str] = (),
        logged: bool = False,
    ) -> None:
        assert not logged, "the fake store follows no table"
        self.passing("before create")
        self.store.assert_term(term)
        table = self.store.tables.get(relation.id)
        if table is not None and table.relation != relation:
            raise Conflict(f"state.t_{relation.id} belongs to another relation: was the meta store replaced?")
        if table is None:
            table = self.store.tables[relation.id] = self.store.table(relation)
            table.indexed = False
            table.partials = [] if sums else None
        table.indexed |= not loading
        table.lookups.update(lookups)
        self.store.live[relation.name] = relation.id
        self.passing("after create")

    async def end_load(self, relation: Relation, *, term: Term) -> None:
        self.passing("before index")
        self.store.assert_term(term)
        if table := self.store.tables.get(relation.id):
            table.indexed = True
            table.partials = None
        self.passing("after index")

    async def publish(
        self, graph: GraphId, epoch: Epoch, *, term: Term, created: Sequence[Relation]
    ) -> Mapping[RelationId, str]:
        self.passing("before publish")
        self.store.assert_term(term)
        for relation in created:
            self.store.public[relation.name] = (relation.id, graph)
        self.store.published[graph] = max(epoch, self.store.published.get(graph, epoch))
        self.passing("after publish")
        return {}

    async def roll_back(self, relations: Collection[RelationId], graph: GraphId, epoch: Epoch, *, term: Term) -> None:
        if self.store.horizons.get(graph, Epoch(0)) > epoch:
            raise Conflict("the state store keeps no versions of the epoch")
        for relation in sorted(relations):
            self.passing("before roll back")
            self.store.assert_term(term)
            if table := self.store.tables.get(relation):
                table.roll_back(epoch)
        self.passing("after roll back")

    async def vacuum(self, relations: Collection[RelationId], graph: GraphId, epoch: Epoch, *, term: Term) -> int:
        self.passing("before vacuum")
        self.store.assert_term(term)
        horizon = self._advance(graph, epoch)
        deleted = 0
        for relation in sorted(relations):
            self.passing("amid vacuum")
            self.store.assert_term(term)
            if table := self.store.tables.get(relation):
                deleted += table.vacuum(horizon)
        self.passing("after vacuum")
        return deleted

    async def add_column(self, relation: Relation) -> None:
        del relation

    async def foreign_readers(self, names: Collection[str]) -> Sequence[str]:
        del names
        return ()

    async def lake_versions(self, relations: Collection[RelationId]) -> Mapping[RelationId, tuple[int, Epoch]]:
        del relations
        return {}

    async def drop(self, relation: RelationId, name: str, *, term: Term) -> None:
        self.passing("before drop")
        self.store.assert_term(term)
        if name in self.store.public and self.store.public[name][0] == relation:
            del self.store.public[name]
        if self.store.live.get(name) == relation:
            del self.store.live[name]
        self.store.tables.pop(relation, None)
        self.passing("after drop")

    async def hide(self, relation: RelationId, name: str, *, term: Term) -> None:
        self.store.assert_term(term)
        if name in self.store.public and self.store.public[name][0] == relation:
            del self.store.public[name]

    def _advance(self, graph: GraphId, epoch: Epoch) -> Epoch:
        now = self.store.seconds()
        self.store.pins = {pin: held for pin, held in self.store.pins.items() if held[1] > now}
        pinned = [pinned for (of, _), (pinned, _) in self.store.pins.items() if of == graph]
        wanted = min(epoch, self.store.published.get(graph, epoch), *pinned)
        horizon = max(wanted, self.store.horizons.get(graph, Epoch(0)))
        self.store.horizons[graph] = horizon
        return horizon


@dataclass
class FakePins:
    """See `service.ports.state_store.Pins`. A pin of a holder that died runs out by itself."""

    store: StateStore

    @asynccontextmanager
    async def pin(self, graph: GraphId, epoch: Epoch, *, holder: str) -> AsyncGenerator[None]:
        if epoch < self.store.horizons.get(graph, Epoch(0)):
            raise Conflict(f"epoch {epoch} can no longer be read")
        self.store.pins[graph, holder] = (epoch, self.store.seconds() + PIN_SECONDS)
        yield
        del self.store.pins[graph, holder]
