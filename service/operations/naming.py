"""What has a name: a relation with a job, or a logical view, which has none."""

from dataclasses import dataclass

from service.domain.errors import Conflict
from service.domain.job import JobState
from service.ports.meta_store import Transaction
from service.ports.records import CatalogEntry, LogicalView
from service.protocol.ids import RelationId
from service.protocol.relation import RelationKind


@dataclass(frozen=True, slots=True)
class Named:
    """Whatever has a name. `readable` says that a SELECT can see it; `entry` is None for a logical view."""

    id: RelationId
    name: str
    kind: RelationKind
    definition: str
    readable: bool
    entry: CatalogEntry | None = None

    @property
    def taken(self) -> Conflict:
        """The refusal of another one of its name, in the reference's words."""
        if self.readable or (self.entry is not None and self.entry.state is JobState.CREATED):
            return Conflict(f'{self.kind} with name "{self.name}" exists')
        return Conflict(f"{self.kind} named {self.name} already exists and is still being created")

    @property
    def unreadable(self) -> Conflict:
        """The refusal of who wants to read it too early."""
        return Conflict(f'{self.kind} "{self.name}" cannot be read: it is still being created')


async def named(tx: Transaction, name: str) -> Named | None:
    """Return what has the name, None where it is free."""
    found = await tx.catalog.named(name) or await tx.views.named(name)
    return None if found is None else as_named(found)


def as_named(found: CatalogEntry | LogicalView) -> Named:
    """Return either in the same shape."""
    if isinstance(found, LogicalView):
        return Named(found.id, found.name, RelationKind.VIEW, found.definition, found.shown)
    relation = found.relation
    return Named(relation.id, relation.name, relation.kind, found.definition, found.shown, found)
