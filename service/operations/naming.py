"""Look up named objects: relations, which have a job, and logical views, sources and indexes, which have none."""

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, TypeVar

from service.domain.errors import Conflict, Invalid, NotFound
from service.domain.job import JobState
from service.operations.polling import until
from service.operations.world import Context
from service.ports.indexes import NamedIndex
from service.ports.meta_store import Transaction
from service.ports.records import CatalogEntry, LogicalView
from service.ports.source_records import LakeSource, Source
from service.protocol.ids import JobId, RelationId
from service.protocol.relation import RelationKind

T = TypeVar("T")

OTHERS_MAX: Final = 20
"""How many names of a statement are looked up one by one, after those of relations and views."""
MADE_WAIT: Final = timedelta(seconds=30)
"""The longest time that IF NOT EXISTS waits for a source or a view that another call is creating."""


@dataclass(frozen=True, slots=True)
class Named:
    """A named object.

    `readable` is true once a SELECT can read it. For a source or an index it is true once that is created. `entry` is
    None for a logical view, a source and an index.
    """

    id: RelationId
    name: str
    kind: RelationKind
    definition: str
    readable: bool
    entry: CatalogEntry | None = None

    @property
    def taken(self) -> Conflict:
        """The error for a CREATE of the same name, in RisingWave's words."""
        if self.readable or (self.entry is not None and self.entry.state is JobState.CREATED):
            return Conflict(f'{self.kind} with name "{self.name}" exists')
        return Conflict(f"{self.kind} named {self.name} already exists and is still being created")

    @property
    def unreadable(self) -> Conflict:
        """The error for a statement that reads an object without readable rows."""
        if self.kind is RelationKind.SOURCE:
            return Conflict(f'source "{self.name}" cannot be read: CREATE TABLE ... FROM {self.name} can')
        if self.kind in (RelationKind.SINK, RelationKind.INDEX):
            return Conflict(f'{self.kind} "{self.name}" cannot be read: it stores no rows')
        return Conflict(f'{self.kind} "{self.name}" cannot be read: it is still being created')


async def named(tx: Transaction, name: str) -> Named | None:
    """Return the object with this name, or None if the name is free."""
    found = await tx.catalog.named(name) or await tx.views.named(name)
    return await _without_rows(tx, name) if found is None else as_named(found)


async def _without_rows(tx: Transaction, name: str) -> Named | None:
    """Return the source or the index with this name."""
    found = await tx.sources.named(name) or await tx.lakes.named(name) or await tx.indexes.named(name)
    return None if found is None else as_named(found)


async def those_named(tx: Transaction, names: Collection[str]) -> Mapping[str, Named]:
    """Return the objects with these names, by name. Of many that are no relations with rows, some may be left out: each
    takes some queries, and a thousand of them kept a transaction for 7 s.
    """
    found = {one.name: one for one in map(as_named, await tx.catalog.called(names))}
    if left := set(names) - found.keys():
        found |= {one.name: one for one in map(as_named, await tx.views.called(left))}
    for name in sorted(left - found.keys())[:OTHERS_MAX]:
        if (other := await _without_rows(tx, name)) is not None:
            found[name] = other
    return found


async def table_there(world: Context, name: str, *, if_not_exists: bool) -> JobId | None:
    """Return the job of the table that IF NOT EXISTS finds, or None if the name is free. Raises Conflict otherwise."""
    async with world.stores.begin() as tx:
        found = await named(tx, name)
    if found is None:
        return None
    if if_not_exists and found.kind is RelationKind.TABLE and found.entry is not None:
        return found.entry.job
    raise found.taken


async def readers(tx: Transaction, relation: RelationId) -> list[Named]:
    """Return every object that reads the relation, directly or through others, each once."""
    found: dict[RelationId, Named] = {}
    frontier = [relation]
    while frontier:
        read = frontier.pop()
        for reader in map(as_named, [*await tx.catalog.dependents(read), *await tx.views.reading(read)]):
            if reader.id not in found:
                found[reader.id] = reader
                frontier.append(reader.id)
    return list(found.values())


async def existing(world: Context, name: str, kind: RelationKind) -> Named:
    """Return the object with this name. Raises NotFound, or Invalid in Postgres's words if its kind differs."""
    async with world.stores.begin() as tx:
        found = await named(tx, name)
    if found is None:
        raise NotFound(f'{kind} "{name}" does not exist', kind="relation")
    if found.kind is not kind:
        raise Invalid(f'"{name}" is not a {kind}; it is a {found.kind}')
    return found


async def or_there(make: Awaitable[T], there: Callable[[], Awaitable[T | None]]) -> T:
    """Return the result of `make`. After a Conflict return the result of `there` instead.

    Another call may have taken the name meanwhile, which `there` checks. If it returns None, the Conflict is raised.
    """
    try:
        return await make
    except Conflict:
        found = await there()
        if found is None:
            raise
        return found


async def skipped(world: Context, name: str, kind: RelationKind) -> tuple[str, ...] | None:
    """Return the notice of IF NOT EXISTS once the source or view is created, or None if the name is free.

    Raises Conflict if a relation of another kind has the name, or if the object is not created within `MADE_WAIT`.
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


async def relation_names(world: Context, kind: RelationKind) -> list[str]:
    """Return the names of all objects of a kind, oldest first."""
    async with world.stores.begin() as tx:
        match kind:
            case RelationKind.VIEW:
                return [view.name for view in await tx.views.all()]
            case RelationKind.SOURCE:
                sources = [*await tx.sources.all(), *await tx.lakes.all()]
                return [source.name for source in sorted(sources, key=lambda one: int(one.id))]
            case RelationKind.INDEX:
                return [index.relation.name for index in await tx.indexes.all()]
            case RelationKind.INTERNAL:
                return await internal_tables(tx)
            case RelationKind.TABLE | RelationKind.MATERIALIZED_VIEW | RelationKind.SINK:
                return [one.name for one in await tx.catalog.outlines() if one.kind is kind]


async def internal_tables(tx: Transaction) -> list[str]:
    """Return the names of the internal tables of scans, as `rw_internal_table_info` shows them."""
    jobs = {one.job: one.name for one in await tx.catalog.outlines()}
    scans = await tx.fragments.scans(list(jobs))
    found = sorted((scan.fragment, jobs[job], scan.external) for job, of_job in scans.items() for scan in of_job)
    return [f"__internal_{name}_{id_}_{'cdcscan' if external else 'streamscan'}_{id_}" for id_, name, external in found]


def as_named(found: CatalogEntry | LogicalView | Source | LakeSource | NamedIndex) -> Named:
    """Convert a catalog entry, a logical view, a source or an index to a named object."""
    if isinstance(found, NamedIndex):
        return Named(found.relation.id, found.relation.name, RelationKind.INDEX, found.definition, found.shown)
    if isinstance(found, Source):
        return Named(RelationId(found.id), found.name, RelationKind.SOURCE, found.definition, found.shown)
    if isinstance(found, LakeSource):
        return Named(found.id, found.name, RelationKind.SOURCE, found.definition, readable=True)
    if isinstance(found, LogicalView):
        return Named(found.id, found.name, RelationKind.VIEW, found.definition, found.shown)
    relation = found.relation
    return Named(relation.id, relation.name, relation.kind, found.definition, found.shown, found)
