"""The indexes of the meta store in memory. See `service.ports.indexes`."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from service.domain.errors import Conflict
from service.domain.job import CREATING
from service.ports.indexes import IndexState, NamedIndex, StoredIndex
from service.protocol.ids import RelationId
from service.protocol.relation import Relation, RelationKind
from service.protocol.stage import LookupIndex
from tests.support.fake_meta_tables import UNREADABLE, Tables, printable


def check_free(tables: Tables, name: str) -> None:
    """Raise Conflict where a relation or an index has the name."""
    indexes = ((RelationKind.INDEX, row.relation.name, row.shown, False) for row in tables.named_indexes.values())
    relations = (
        (row.relation.kind, row.relation.name, tables.jobs[row.job].job.state not in CREATING, row.dropped)
        for row in tables.relations.values()
    )
    for kind, taken, made, dropped in (*indexes, *relations):
        if taken == name and not dropped:
            if made:
                raise Conflict(f'{kind} with name "{name}" exists')
            raise Conflict(f"{kind} named {name} already exists and is still being created")


@dataclass(frozen=True, slots=True)
class FakeNamedIndexes:
    tables: Tables

    async def add(self, index: Relation, on: RelationId, definition: str) -> RelationId:
        read = self.tables.relations[on]
        state = self.tables.jobs[read.job].job.state
        if state in UNREADABLE:
            raise Conflict(f'{read.relation.kind} "{read.relation.name}" cannot be read: it is {state}')
        check_free(self.tables, index.name)
        number = RelationId(next(self.tables.ids))
        made = index.model_copy(update={"id": number, "kind": RelationKind.INDEX, "vnode_count": 1})
        self.tables.named_indexes.put(number, NamedIndex(made, on, definition))
        return number

    async def named(self, name: str) -> NamedIndex | None:
        return next((one for one in await self.all() if one.relation.name == name), None)

    async def all(self) -> Sequence[NamedIndex]:
        return [one for _, one in sorted(self.tables.named_indexes.items())]

    async def show(self, index: RelationId) -> None:
        self.tables.named_indexes.put(index, replace(self.tables.named_indexes[index], shown=True))

    async def remove(self, index: RelationId) -> None:
        self.tables.named_indexes.take(index)
        for one, stored in list(self.tables.stored_indexes.items()):
            if index in stored.named:
                others = tuple(each for each in stored.named if each != index)
                self.tables.stored_indexes.put(one, replace(stored, named=others))


@dataclass(frozen=True, slots=True)
class FakeStoredIndexes:
    tables: Tables

    async def lock(self) -> Sequence[StoredIndex]:
        return [one for _, one in sorted(self.tables.stored_indexes.items(), key=str)]

    async def stored(self, relation: RelationId) -> Sequence[StoredIndex]:
        return [one for one in await self.lock() if one.index.relation == relation]

    async def hold(self, relations: Collection[RelationId]) -> frozenset[LookupIndex]:
        of_these = (one for one in self.tables.stored_indexes.values() if one.index.relation in relations)
        return frozenset(one.index for one in of_these if one.state is IndexState.CREATED)

    async def expect(self, wanted: Collection[LookupIndex], *, now: datetime) -> None:
        del now
        for index in wanted:
            if index not in self.tables.stored_indexes:
                self.tables.stored_indexes.put(index, StoredIndex(index))

    async def put(self, index: StoredIndex, *, now: datetime) -> None:
        del now
        error = None if index.error is None else printable(index.error)
        self.tables.stored_indexes.put(index.index, replace(index, error=error))

    async def ended(self, index: LookupIndex, *, error: str | None, now: datetime) -> None:
        del now
        found = self.tables.stored_indexes.get(index)
        if found is None or found.state is not IndexState.CREATING:
            return
        state = IndexState.CREATED if error is None else IndexState.CREATING
        told = None if error is None else printable(error)
        self.tables.stored_indexes.put(index, replace(found, state=state, error=told))

    async def forget(self, index: LookupIndex) -> None:
        found = self.tables.stored_indexes.get(index)
        if found is not None and found.state is IndexState.DROPPING:
            self.tables.stored_indexes.take(index)
