"""What has a name: a relation with a job; or a logical view or a source, which have none."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, TypeVar

from service.domain.errors import Conflict, Invalid, NotFound
from service.domain.job import JobState
from service.operations.polling import until
from service.operations.world import World
from service.ports.meta_store import Transaction
from service.ports.records import CatalogEntry, LogicalView
from service.ports.source_records import Source
from service.protocol.ids import RelationId
from service.protocol.relation import RelationKind

T = TypeVar("T")

MADE_WAIT: Final = timedelta(seconds=30)
"""How long IF NOT EXISTS waits for a source or a view that another call is making."""


@dataclass(frozen=True, slots=True)
class Named:
    """Whatever has a name. `readable` says that a SELECT can see it; `entry` is None for a logical view and for a
    source, of which it says instead that it was made.
    """

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
        if self.kind is RelationKind.SOURCE:
            return Conflict(f'source "{self.name}" cannot be read: CREATE TABLE ... FROM {self.name} can')
        if self.kind is RelationKind.SINK:
            return Conflict(f'sink "{self.name}" cannot be read: it stores no rows')
        return Conflict(f'{self.kind} "{self.name}" cannot be read: it is still being created')


async def named(tx: Transaction, name: str) -> Named | None:
    """Return what has the name, None where it is free."""
    found = await tx.catalog.named(name) or await tx.views.named(name) or await tx.sources.named(name)
    return None if found is None else as_named(found)


async def existing(world: World, name: str, kind: RelationKind) -> Named:
    """Return what has the name. Raises NotFound, and Invalid in Postgres's words where it is of another kind."""
    async with world.stores.begin() as tx:
        found = await named(tx, name)
    if found is None:
        raise NotFound(f'{kind} "{name}" does not exist', kind="relation")
    if found.kind is not kind:
        raise Invalid(f'"{name}" is not a {kind}; it is a {found.kind}')
    return found


async def or_there(make: Awaitable[T], there: Callable[[], Awaitable[T | None]]) -> T:
    """Return what `make` gives, or what `there` finds after a Conflict, because another call may have taken the name
    meanwhile. The Conflict stands where that is None.
    """
    try:
        return await make
    except Conflict:
        found = await there()
        if found is None:
            raise
        return found


async def skipped(world: World, name: str, kind: RelationKind) -> tuple[str, ...] | None:
    """Return the notice of IF NOT EXISTS once the source or view of this name can be read; None where the name is free.
    Raises Conflict where another kind of relation has it, or where nobody makes it in time.
    """
    taken: Named | None = None

    async def look() -> bool | None:
        nonlocal taken
        async with world.stores.begin() as tx:
            taken = await named(tx, name)
        if taken is None or taken.kind is not kind:
            return False
        return True if taken.readable else None

    there = await until(world, look, limit=MADE_WAIT)
    if taken is None:
        return None
    if not there:
        raise taken.taken
    return (f'{kind} "{name}" already exists, skipping',)


async def relation_names(world: World, kind: RelationKind) -> list[str]:
    """Return the names of all relations of a kind, oldest first."""
    async with world.stores.begin() as tx:
        match kind:
            case RelationKind.VIEW:
                return [view.name for view in await tx.views.all()]
            case RelationKind.SOURCE:
                return [source.name for source in await tx.sources.all()]
            case RelationKind.INTERNAL:
                return await internal_tables(tx)
            case RelationKind.TABLE | RelationKind.MATERIALIZED_VIEW | RelationKind.SINK:
                entries = await tx.catalog.all()
                return [entry.relation.name for entry in entries if entry.relation.kind is kind]


async def internal_tables(tx: Transaction) -> list[str]:
    """Return the names of the tables in which scans keep their positions, as rw_internal_table_info has them."""
    jobs = {entry.job: entry.relation.name for entry in await tx.catalog.all()}
    scans = await tx.fragments.scans(list(jobs))
    found = sorted((scan.fragment, jobs[job], scan.external) for job, of_job in scans.items() for scan in of_job)
    return [f"__internal_{name}_{id_}_{'cdcscan' if external else 'streamscan'}_{id_}" for id_, name, external in found]


def as_named(found: CatalogEntry | LogicalView | Source) -> Named:
    """Return any of them in the same shape."""
    if isinstance(found, Source):
        return Named(RelationId(found.id), found.name, RelationKind.SOURCE, found.definition, found.shown)
    if isinstance(found, LogicalView):
        return Named(found.id, found.name, RelationKind.VIEW, found.definition, found.shown)
    relation = found.relation
    return Named(relation.id, relation.name, relation.kind, found.definition, found.shown, found)
