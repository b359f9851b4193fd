"""CREATE TABLE and CREATE MATERIALIZED VIEW: from a bound statement to a job, and the wait its session asks for."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from service.domain.adaptive import AUTO, Asked
from service.domain.errors import Conflict
from service.domain.job import JobState
from service.domain.parallelism import check_vnodes, for_backfill, normal, resolved
from service.domain.placement import blocks
from service.operations import jobs, requests
from service.operations.limits import first_limit
from service.operations.rescaling import slots
from service.operations.world import World
from service.ports.records import CatalogEntry, NewFragment, NewJob
from service.protocol.ids import JobId
from service.protocol.plan import FragmentKind, ScanType
from service.protocol.relation import Relation, RelationKind
from service.sql.statements import CreateMaterializedView, CreateTable
from service.sql.tables import table_relation
from service.sql.views import bind_view, view_relation

SLOW_DDL_SECONDS: Final = 30


@dataclass(frozen=True, slots=True)
class Created:
    """What a CREATE answers besides its tag."""

    notices: tuple[str, ...] = ()


async def create_table(
    world: World, statement: CreateTable, text: str, session: Mapping[str, str], *, asked_by: str
) -> Created:
    """Create a table and wait for it. The statement's own vnode count wins over the session's. Raises Conflict."""
    asked = session.get("streaming_max_parallelism", "default")
    if statement.vnode_count is None and asked != "default":
        statement = replace(statement, vnode_count=int(asked))
    new = jobs.table_job(table_relation(statement), text)
    made = await jobs.create(world, new, if_not_exists=statement.if_not_exists, asked_by=asked_by)
    await jobs.created(world, made.job)
    return _existing(RelationKind.TABLE, statement.name) if made.existed else Created()


async def create_view(
    world: World, statement: CreateMaterializedView, session: Mapping[str, str], *, asked_by: str
) -> Created:
    """Create a materialized view; with `background_ddl` only until its first barrier. Raises Invalid, NotFound,
    Conflict.
    """
    background = session.get("background_ddl") == "true"
    taken = await _taken(world, statement)
    if taken is not None:
        # A background caller, or one that finds it finished, has nothing to wait for.
        if not background:
            await jobs.created(world, taken.job)
        return _existing(RelationKind.MATERIALIZED_VIEW, statement.name)
    new = await _plan(world, statement, session, background=background)
    asked = await jobs.create(world, new, if_not_exists=statement.if_not_exists, asked_by=asked_by)
    return await (_started if background else _finished)(world, asked.job)


async def readable(world: World) -> dict[str, Relation]:
    """Return the relations a statement may read, by name."""
    async with world.stores.begin() as tx:
        return {entry.relation.name: entry.relation for entry in await tx.catalog.all() if entry.shown}


async def _plan(
    world: World, statement: CreateMaterializedView, session: Mapping[str, str], *, background: bool
) -> NewJob:
    relations = await readable(world)
    bound = bind_view(statement, relations)
    columns = [await requests.analyze(world, scan.upstream, scan.query, bound.names) for scan in bound.scans]
    relation = view_relation(bound, columns, statement.name)
    parallelism, backfill = normal(session, relation.kind), for_backfill(session)
    async with world.stores.begin() as tx:
        available = await slots(tx, now=world.clock.now(), lease=world.worker_lease)
        first = await first_limit(tx)
    limit = _rate_limit(statement, session)
    scans: list[NewFragment] = []
    for scan in bound.scans:
        vnode_count = scan.upstream.vnode_count
        check_vnodes(parallelism, vnode_count)
        check_vnodes(backfill, vnode_count, backfill=True)
        actors = resolved(backfill or parallelism, slots=available or 1, vnode_count=vnode_count)
        scans.append(
            NewFragment(
                FragmentKind.STREAM_SCAN,
                blocks(vnode_count, actors),
                upstream=scan.upstream.id,
                query=scan.query,
                scan_type=ScanType.ARRANGEMENT_BACKFILL,
                rate_limit=first if limit == AUTO else limit,
                auto=limit == AUTO,
            )
        )
    order = tuple((relations[before].id, relations[after].id) for before, after in bound.order)
    return NewJob(relation, statement.text, background, tuple(scans), parallelism, backfill, order)


async def _taken(world: World, statement: CreateMaterializedView) -> CatalogEntry | None:
    """Return the view that IF NOT EXISTS found. A taken name is refused here, before anything is asked of a worker."""
    async with world.stores.begin() as tx:
        entry = await tx.catalog.named(statement.name)
    if entry is None:
        return None
    if statement.if_not_exists and entry.relation.kind is RelationKind.MATERIALIZED_VIEW:
        return entry
    if entry.state is JobState.CREATED:
        raise Conflict(f'{entry.relation.kind} with name "{statement.name}" exists')
    raise Conflict(f"{entry.relation.kind} named {statement.name} already exists and is still being created")


async def _started(world: World, job: JobId) -> Created:
    started = await jobs.first_barrier(world, job)
    if started.state is not JobState.QUEUED:
        return Created()
    return Created((f"job {job} is queued: max_concurrent_creating_streaming_jobs is reached",))


async def _finished(world: World, job: JobId) -> Created:
    began = world.clock.monotonic()
    await jobs.created(world, job)
    seconds = world.clock.monotonic() - began
    if seconds < SLOW_DDL_SECONDS:
        return Created()
    return Created((f"the statement took {seconds:.0f} s; SET background_ddl = true returns at once",))


def _rate_limit(statement: CreateMaterializedView, session: Mapping[str, str]) -> Asked:
    """The view's own option wins over the session's variable."""
    if statement.limited:
        return statement.backfill_rate_limit
    asked = session.get("backfill_rate_limit", "default")
    if asked == AUTO:
        return AUTO
    return None if asked == "default" else int(asked)


def _existing(kind: RelationKind, name: str) -> Created:
    return Created((f'{kind} "{name}" already exists, skipping',))
