"""Store relations with jobs. Part of `service.ports.meta_store`."""

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Protocol

from service.ports.records import CatalogEntry, CatalogOutline, Cleanup
from service.protocol.ids import Epoch, GraphId, RelationId
from service.protocol.relation import Relation


class Catalog(Protocol):
    """The relations with jobs."""

    async def named(self, name: str) -> CatalogEntry | None: ...

    async def get(self, relation: RelationId) -> CatalogEntry | None: ...

    async def all(self) -> Sequence[CatalogEntry]: ...

    async def outlines(self) -> Sequence[CatalogOutline]:
        """Return the outlines of `all`, in its order. Columns are most of what an entry costs."""
        ...

    async def called(self, names: Collection[str]) -> Sequence[CatalogEntry]:
        """Return the relations with these names, oldest first. Unknown names are ignored."""
        ...

    async def dependents(self, relation: RelationId) -> Sequence[CatalogEntry]:
        """Return the relations that read `relation` directly, or whose query names it if it is a logical view."""
        ...

    async def hold(self, wanted: Collection[RelationId]) -> None:
        """Lock the jobs of relations with their fragments, and the rows of sources and logical views.

        A reader that is being added either commits first, and `dependents` then returns it, or waits and sees the new
        state of what it reads.
        """
        ...

    async def add_column(self, relation: Relation, statement: str | None) -> None:
        """Store the last column of a relation, which is new, and add the statement to the relation's definition.

        Without a statement the definition stays: it names no columns.
        """
        ...

    async def remove(self, relation: RelationId) -> None:
        """Free the name, delete the columns, fragments, actors and positions, and queue a clean-up."""
        ...


class Cleanups(Protocol):
    """The removed relations whose tables are still in the state store."""

    async def all(self) -> Sequence[Cleanup]: ...

    async def done(self, relation: RelationId) -> None:
        """Nothing of the relation is left. Cut its texts and its job's, and forget a logical view, which has no job."""
        ...

    async def hold(self, relation: RelationId, reason: str) -> None:
        """Record why the tables cannot be removed yet."""
        ...


class Visibility(Protocol):
    """The epochs and created relations that users see."""

    async def publish(
        self,
        graph: GraphId,
        epoch: Epoch,
        *,
        now: datetime,
        created: bool = True,
        held_back: Collection[RelationId] = (),
    ) -> None:
        """Record that the state store has published `epoch`, on the graph and on the barriers up to it.

        With `created`, also record that created relations are now visible, except for those in `held_back`.
        """
        ...

    async def unshown(self, graph: GraphId | None = None) -> Sequence[Relation]:
        """Return the created relations whose public view does not exist yet in the state store."""
        ...

    async def hold_back(self, relation: RelationId, reason: str) -> None:
        """Store why the public view of a created relation cannot be created. Creating it clears the reason."""
        ...
