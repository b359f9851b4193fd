"""Read which relations there are, sources, logical views and indexes included, and which of them reads which."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from service.domain.errors import NotFound, Unavailable
from service.domain.job import JobState
from service.operations.world import Context, World
from service.ports.indexes import NamedIndex
from service.ports.records import CatalogOutline, LogicalView
from service.ports.source_records import LakeSource, Source
from service.protocol.epoch import instant_of
from service.protocol.ids import JobId, RelationId
from service.protocol.relation import RelationKind

Edge = tuple[RelationId, RelationId]


@dataclass(frozen=True, slots=True)
class Member:
    """An object of the catalog. No job creates a source, a logical view or an index: `job` and `state` are None then.
    `readable` is true once it is created. The rows of one with a `location` lie there, in a lake.
    """

    id: RelationId
    name: str
    kind: RelationKind
    job: JobId | None
    state: JobState | None
    readable: bool
    location: str | None = None


@dataclass(frozen=True, slots=True)
class LakeVersion:
    """The version of a Delta table from which the newest epoch is read, and since when it is that one."""

    version: int
    since: datetime


@dataclass(frozen=True, slots=True)
class Lineage:
    """The objects, oldest first, and the pairs (object that is read, object that reads it)."""

    members: tuple[Member, ...]
    edges: tuple[Edge, ...]


async def lineage(world: Context) -> Lineage:
    """Return every object of the catalog and what it reads, in one transaction and five queries."""
    async with world.stores.begin() as tx:
        outlines, views = await tx.catalog.outlines(), await tx.views.all()
        sources = [*await tx.sources.all(), *await tx.lakes.all()]
        indexes, references = await tx.indexes.all(), await tx.views.references()
    return lineage_of(outlines, views, sources, indexes, references)


def lineage_of(
    outlines: Sequence[CatalogOutline],
    views: Sequence[LogicalView],
    sources: Sequence[Source | LakeSource],
    indexes: Sequence[NamedIndex],
    references: Mapping[RelationId, Sequence[RelationId]],
) -> Lineage:
    """Return the lineage of these objects. Edges to objects that are not among them are left out."""
    members = (
        *map(_of_outline, outlines),
        *(Member(one.id, one.name, RelationKind.VIEW, None, None, one.shown) for one in views),
        *map(_of_source, sources),
        *(Member(one.relation.id, one.relation.name, RelationKind.INDEX, None, None, one.shown) for one in indexes),
    )
    known = {one.id for one in members}
    edges = dict.fromkeys(_edges(outlines, indexes, references))
    return Lineage(
        tuple(sorted(members, key=lambda one: one.id)),
        tuple((read, reader) for read, reader in edges if read in known and reader in known),
    )


def _of_outline(one: CatalogOutline) -> Member:
    return Member(one.id, one.name, one.kind, one.job, one.state, one.shown, one.location)


def _of_source(one: Source | LakeSource) -> Member:
    in_lake = isinstance(one, LakeSource)
    location = one.connector.options.get("location") if in_lake else None
    return Member(RelationId(one.id), one.name, RelationKind.SOURCE, None, None, in_lake or one.shown, location)


def _edges(
    outlines: Sequence[CatalogOutline],
    indexes: Sequence[NamedIndex],
    references: Mapping[RelationId, Sequence[RelationId]],
) -> Iterator[Edge]:
    for outline in outlines:
        yield from ((read, outline.id) for read in outline.upstreams)
    for reader, read in references.items():
        yield from ((one, reader) for one in read)
    yield from ((one.on, one.relation.id) for one in indexes)


async def lake_versions(world: World, members: Iterable[Member]) -> Mapping[RelationId, LakeVersion]:
    """Return the newest version of each of these objects that is a table of a lake and has one, none at all while the
    state store is away.
    """
    in_lake = [one.id for one in members if one.location is not None and one.job is not None]
    try:
        found = await world.state_store.tables.lake_versions(in_lake) if in_lake else {}
    except Unavailable:
        found = {}
    return {one: LakeVersion(version, instant_of(since)) for one, (version, since) in found.items()}


@dataclass(frozen=True, slots=True)
class IndexView:
    """An index of a relation. `name` is None for one that only the stages of views need. `bytes` is None before it was
    measured, and `error` is why the last attempt to build it failed.
    """

    name: str | None
    columns: tuple[str, ...]
    state: str
    bytes: int | None
    error: str | None


async def indexes_of(world: Context, name: str) -> list[IndexView]:
    """Return the indexes of a relation as the state store has them. Raises NotFound."""
    async with world.stores.begin() as tx:
        entry = await tx.catalog.named(name)
        if entry is None:
            raise NotFound(f'relation "{name}" does not exist', kind="relation")
        stored = await tx.stored_indexes.stored(entry.relation.id)
        names = {one.relation.id: one.relation.name for one in await tx.indexes.all()}
    return [
        IndexView(named, tuple(one.index.columns), one.state, one.bytes, one.error)
        for one in stored
        for named in ([names[each] for each in one.named if each in names] or [None])
    ]
