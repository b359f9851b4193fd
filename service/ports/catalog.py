"""Relations whose names are taken, with jobs and without; part of `service.ports.meta_store`."""

from collections.abc import Collection, Sequence
from typing import Protocol

from service.ports.records import CatalogEntry, Cleanup, LogicalView, NewLogicalView
from service.protocol.ids import RelationId
from service.protocol.relation import Relation


class Catalog(Protocol):
    """Relations whose names are taken."""

    async def named(self, name: str) -> CatalogEntry | None: ...

    async def get(self, relation: RelationId) -> CatalogEntry | None: ...

    async def all(self) -> Sequence[CatalogEntry]: ...

    async def called(self, names: Collection[str]) -> Sequence[CatalogEntry]:
        """Return the relations with these names, oldest first; names that nothing has are passed over."""
        ...

    async def dependents(self, relation: RelationId) -> Sequence[CatalogEntry]:
        """Return the relations with jobs that read `relation` directly, or name it where it is a logical view."""
        ...

    async def remove(self, relation: RelationId) -> None:
        """Free the name, forget the columns, fragments, actors and positions, and queue a cleanup."""
        ...

    async def unshown(self) -> Sequence[Relation]:
        """Return created relations whose public view the state store has yet to make."""
        ...

    async def hold_back(self, relation: RelationId, reason: str) -> None:
        """Store why a created relation cannot be shown yet; showing it takes the reason back."""
        ...

    async def cleanups(self) -> Sequence[Cleanup]: ...

    async def cleaned(self, relation: RelationId) -> None: ...


class LogicalViews(Protocol):
    """The logical views of the catalog. `Catalog.remove` frees their names as it does those of other relations."""

    async def add(self, new: NewLogicalView) -> RelationId:
        """Store a view that is not shown yet. Raises Conflict when the name is taken or what it reads is on its way
        out; that is held until the transaction ends.
        """
        ...

    async def named(self, name: str) -> LogicalView | None: ...

    async def all(self) -> Sequence[LogicalView]: ...

    async def hold(self, view: RelationId) -> LogicalView | None:
        """Return the view, whose row is locked until the transaction ends: until then nobody drops it."""
        ...

    async def show(self, view: RelationId) -> None:
        """The state store has it: it can be read from now on."""
        ...

    async def reading(self, relation: RelationId) -> Sequence[LogicalView]:
        """Return the views that read a relation directly. Call `Catalog.dependents` first, which holds it."""
        ...
