"""Give scans the number of actors that their job's parallelism requests (I11).

The commit of every epoch compares the requested and the current parallelism of the jobs that are marked as due. A job
is due after it was altered, created or started. All jobs are due when a generation begins, because its worker may have
another number of slots. The transaction with the cause marks a job, and the comparison that finds nothing to change
unmarks it. A leader that dies in between therefore loses no change. Jobs that a partial graph creates are resized
only when a generation begins (`fit`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import islice

from service.domain.errors import Conflict, Invalid, NotFound
from service.domain.graph import GraphStatus, GraphView
from service.domain.job import CREATING, IN_GRAPH, Job, JobState
from service.domain.parallelism import Fixed, Parallelism, blocks, check_vnodes, resolved
from service.domain.strategy import tied_actors
from service.operations.commands.fan_out import check_room
from service.operations.retrying import retried
from service.operations.world import Context, World
from service.ports.audit import Asker
from service.ports.meta_store import Transaction
from service.ports.records import NewJob
from service.protocol.ids import DATABASE_GRAPH, CommandId, FragmentId, GraphId, JobId, WorkerId
from service.protocol.mutation import Update
from service.protocol.plan import ActorPlan, ScanType
from service.protocol.relation import Relation, RelationKind
from service.protocol.vnodes import Runs, vnodes_of

Layouts = Mapping[FragmentId, Sequence[Runs]]
"""The vnodes of each actor, by scan."""


async def slots(tx: Transaction, *, now: datetime, lease: timedelta) -> int | None:
    """Return the number of slots of the database graph's worker, or None if no worker is alive."""
    known = await tx.workers.all(now=now, lease=lease)
    serving = (record.parallelism for record in known if record.alive and record.graph == DATABASE_GRAPH)
    return max(serving, default=None)


@retried
async def alter(
    world: World, wanted: JobId, changes: Mapping[str, Parallelism | None], *, asked_by: Asker
) -> CommandId:
    """Store a new `parallelism` or `backfill_parallelism`, and enqueue the command that applies it.

    Raises NotFound, Invalid, and Conflict if the job has ended or its actors cannot change alone.
    """
    now = world.clock.now()
    async with world.stores.begin(by=asked_by) as tx:
        held = await tx.jobs.hold(wanted)
        if held is None:
            raise NotFound(f"job {wanted} not found", kind="job")
        if held.state not in CREATING | {JobState.CREATED}:
            raise Conflict(f"job {wanted} is {held.state}")
        layouts = (await tx.actors.layouts([wanted]))[wanted]
        if not layouts:
            raise Invalid("stream scan node or source node not found")
        # A job that a partial graph creates keeps its actors until then.
        apart = [held] if held.in_partial_graph and held.state is not JobState.CREATED else []
        _check_untied(wanted, [*apart, *(await _tied(tx, [held]))[wanted]])
        for name, parallelism in changes.items():
            for layout in layouts.values():
                check_vnodes(parallelism, _vnodes(layout), backfill=name == "backfill_parallelism")
        altered = replace(held, **changes)
        await tx.rescaling.set_parallelism(wanted, altered.parallelism, altered.backfill_parallelism)
        asked = await _asked(tx, held.graph)
        present = {one: asked.get(one, layout) for one, layout in layouts.items()}
        resized = _resized(altered, present, await slots(tx, now=now, lease=world.workers.lease))
        update = await _update(tx, resized)
        if update is not None and held.state not in {JobState.CREATING, JobState.CREATED}:
            # No barrier has carried the job yet, so it starts with the new actors.
            await tx.actors.replace(update.fragments)
            update = None
        await check_room(tx, None if update is None else update.type, asked_by.actor)
        # If nothing changes now, the command is a flush, and the caller waits for it.
        command = await tx.commands.add(held.graph, update, asked_by=asked_by.actor, now=now)
        facts: dict[str, object] = {"job": wanted, "name": held.name, "asked_by": asked_by.actor, "command": command}
        facts |= {name: str(value or "default") for name, value in changes.items()}
        await tx.events.append("job.altered", facts, now=now)
    world.signals.notify()
    return command


async def actors_beside(tx: Transaction, upstream: Relation) -> int:
    """Return the number of actors of a NoShuffle scan: that of its upstream after all queued Updates."""
    entry = await tx.catalog.get(upstream.id)
    if entry is None:
        return tied_actors((), upstream.vnode_count)  # it was dropped, and adding the scan reports that
    # The actors of a followed table read only its history. They write none of its changes.
    layouts = {} if entry.follows else (await tx.actors.layouts([entry.job]))[entry.job]
    asked = await _asked(tx, DATABASE_GRAPH)
    return tied_actors([len(asked.get(one, layout)) for one, layout in layouts.items()], upstream.vnode_count)


async def check_beside(tx: Transaction, new: NewJob) -> None:
    """Raise Conflict if the upstream of a NoShuffle scan has another number of actors than when the job was planned."""
    for scan in new.table_scans:
        if scan.scan_type is not ScanType.BACKFILL:
            continue
        entry = await tx.catalog.get(scan.upstream)
        if entry is not None and await actors_beside(tx, entry.relation) != len(scan.actors):
            raise Conflict(f"the parallelism of {entry.relation.name} has just been changed: try again")


async def recovering(world: Context) -> bool:
    """Whether the database graph is not running, so that no barrier carries a change now."""
    async with world.stores.begin() as tx:
        return (await tx.graphs.state(DATABASE_GRAPH)).status != GraphStatus.RUNNING


async def settle(tx: Transaction, graph: GraphId, *, now: datetime, lease: timedelta) -> None:
    """Enqueue an Update of every scan of a due job that has another number of actors than the job requests."""
    due = await tx.rescaling.due(graph)
    if not due:
        return
    layouts = await tx.actors.layouts([job.id for job in due])
    available = await slots(tx, now=now, lease=lease)
    asked, tied = await _asked(tx, graph), await _tied(tx, due)
    resized: dict[FragmentId, Sequence[Runs]] = {}
    settled: list[JobId] = []
    for job in due:
        if tied[job.id]:
            continue  # stays due until no NoShuffle backfill ties its actors
        if not asked.keys().isdisjoint(layouts[job.id]):
            continue  # stays due until its Update has committed
        changed = _resized(job, layouts[job.id], available)
        resized.update(changed)
        if not changed:
            settled.append(job.id)
    if settled:
        await tx.rescaling.settled(settled)
    update = await _update(tx, resized)
    if update is not None:
        await tx.commands.add(graph, update, asked_by="the parallelism of jobs", now=now)


async def fit(tx: Transaction, view: GraphView, worker: WorkerId, *, now: datetime, lease: timedelta) -> None:
    """Resize the scans of a partial graph for its worker when a generation begins.

    No actor runs yet, so no barrier is needed. The scans of the database graph are resized by `settle`, which considers
    tied actors, and so are those of jobs that stay in graphs of their own, once they are created.
    """
    if view.policy.shared:
        return
    jobs = await tx.jobs.where(IN_GRAPH, graph=view.graph)
    known = await tx.workers.all(now=now, lease=lease)
    available = next((record.parallelism for record in known if record.worker == worker), None)
    layouts = await tx.actors.layouts([job.id for job in jobs])
    resized: dict[FragmentId, Sequence[Runs]] = {}
    for job in jobs:
        resized.update(_resized(job, layouts[job.id], available))
    update = await _update(tx, resized)
    if update is not None:
        await tx.actors.replace(update.fragments)


async def _asked(tx: Transaction, graph: GraphId) -> dict[FragmentId, Sequence[Runs]]:
    """Return the layouts of Updates that are queued or in flight. The last one of a scan counts."""
    return {
        fragment: [actor.vnodes for actor in actors]
        for command in await tx.commands.unfinished("update")
        if command.graph == graph and isinstance(command.mutation, Update)
        for fragment, actors in command.mutation.fragments.items()
    }


async def _tied(tx: Transaction, jobs: Sequence[Job]) -> Mapping[JobId, Sequence[Job]]:
    """Return for each job the jobs whose actors are tied to its actors by NoShuffle.

    No job is tied to the actors of a table, because they write no changes.
    """
    tables = [job.id for job in jobs if job.kind is RelationKind.TABLE]
    others = await tx.rescaling.tied([job.id for job in jobs if job.kind is not RelationKind.TABLE])
    return {**others, **dict.fromkeys(tables, ())}


def _check_untied(job: JobId, tied: Sequence[Job]) -> None:
    """Raise Conflict if the actors of a job are tied to others. RisingWave's message is used where it has one."""
    if any(one.state in CREATING for one in tied):
        names = ", ".join(one.name for one in tied if one.state in CREATING)
        raise Conflict(
            f"Cannot alter the job {job} because it is blocked by creating unreschedulable backfill jobs: {names} keeps"
            " its actors until it is created. Wait for that (WAIT), or cancel it, SET streaming_parallelism and create"
            " it again"
        )
    if tied:
        names = ", ".join(one.name for one in tied)
        raise Conflict(f"Cannot alter the job {job} because NoShuffle backfill has tied its actors: {names}")


def _resized(job: Job, layouts: Layouts, available: int | None) -> Layouts:
    """Return new layouts for the scans that have another number of actors than the job requests."""
    asked = job.present_parallelism
    if asked is None or (available is None and not isinstance(asked, Fixed)):
        return {}
    counts = {one: _vnodes(layout) for one, layout in layouts.items()}
    actors = {
        one: resolved(asked, slots=available or 1, vnode_count=count, scans=len(counts))
        for one, count in counts.items()
    }
    return {one: blocks(counts[one], actors[one]) for one, layout in layouts.items() if len(layout) != actors[one]}


def _vnodes(layout: Sequence[Runs]) -> int:
    """Return the vnode count. The actors of a scan own all vnodes of its upstream."""
    return sum(len(vnodes_of(runs)) for runs in layout)


async def _update(tx: Transaction, layouts: Layouts) -> Update | None:
    if not layouts:
        return None
    ids = iter(await tx.actors.reserve(sum(len(layout) for layout in layouts.values())))
    return Update(
        fragments={
            one: tuple(
                ActorPlan(id=actor, vnodes=runs) for actor, runs in zip(islice(ids, len(layout)), layout, strict=True)
            )
            for one, layout in layouts.items()
        }
    )
