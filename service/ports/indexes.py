"""Store indexes of stored relations: those that users named, and those by which stages look up rows."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Protocol

from service.protocol.ids import RelationId
from service.protocol.relation import Relation
from service.protocol.stage import LookupIndex, user_index


class IndexState(StrEnum):
    """The state of an index in the state store. A job may use it only while it is CREATED."""

    CREATING = "CREATING"
    CREATED = "CREATED"
    DROPPING = "DROPPING"


@dataclass(frozen=True, slots=True)
class NamedIndex:
    """An index that a user created. `relation` has its name, its key, and its columns: those of the key first.

    `on` is the indexed relation. `shown` is true once the index was built.
    """

    relation: Relation
    on: RelationId
    definition: str
    shown: bool = False

    @property
    def stored_as(self) -> LookupIndex:
        """The index of the state store that it stands for."""
        return user_index(self.relation, self.on)


@dataclass(frozen=True, slots=True)
class StoredIndex:
    """An index of the state store: its size, the named indexes that stand for it and the views whose stages need it.

    `error` is why the last attempt to build it failed.
    """

    index: LookupIndex
    state: IndexState = IndexState.CREATING
    bytes: int | None = None
    error: str | None = None
    named: tuple[RelationId, ...] = ()
    views: tuple[RelationId, ...] = ()


class NamedIndexes(Protocol):
    """The indexes that users created. `Catalog.remove` removes those of a relation with it."""

    async def add(self, index: Relation, on: RelationId, definition: str) -> RelationId:
        """Store a named index. Raises Conflict if the name is taken or if the indexed relation is being dropped."""
        ...

    async def named(self, name: str) -> NamedIndex | None: ...

    async def all(self) -> Sequence[NamedIndex]:
        """Return the named indexes, oldest first."""
        ...

    async def show(self, index: RelationId) -> None:
        """Record that a named index was built."""
        ...

    async def remove(self, index: RelationId) -> None:
        """Free the name. Repeatable."""
        ...


class StoredIndexes(Protocol):
    """The indexes of the state store.

    A transaction decides that an index is DROPPING only after it has locked the stored ones and then read who needs
    them. A job starts in a transaction that holds the indexes that it needs. So no index of a started job is dropped.
    """

    async def lock(self) -> Sequence[StoredIndex]:
        """Return all stored indexes. Until the transaction ends, no other one holds or changes them."""
        ...

    async def stored(self, relation: RelationId) -> Sequence[StoredIndex]:
        """Return the stored indexes of a relation."""
        ...

    async def hold(self, relations: Collection[RelationId]) -> frozenset[LookupIndex]:
        """Return the CREATED indexes of relations. None of them becomes DROPPING until the transaction ends."""
        ...

    async def expect(self, wanted: Collection[LookupIndex], *, now: datetime) -> None:
        """Store those of `wanted` that are not stored yet, as CREATING. This comes before anything is built."""
        ...

    async def put(self, index: StoredIndex, *, now: datetime) -> None:
        """Store an index, in place of what was stored of it."""
        ...

    async def ended(self, index: LookupIndex, *, error: str | None, now: datetime) -> None:
        """Record the end of a build of a CREATING index: that it was built, or the error."""
        ...

    async def forget(self, index: LookupIndex) -> None:
        """Delete what is stored of a DROPPING index."""
        ...
