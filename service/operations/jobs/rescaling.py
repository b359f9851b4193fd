"""Giving scans as many actors as their job's parallelism asks for (I11).

What is asked for is compared with what is there, in the commit of every epoch, for the jobs marked as due: those that
were altered, created or started, and all of them once a generation begins, for its worker may have other slots. A job
is marked in the transaction that gives the reason, and unmarked by the look that finds nothing to change; so nothing
is lost with a leader that dies in between. Jobs with a graph of their own get theirs when a generation begins (`fit`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import islice

from service.domain.barrier import GraphStatus
from service.domain.errors import Conflict, Invalid, NotFound
from service.domain.job import CREATING, IN_GRAPH, Job, JobState
from service.domain.parallelism import Fixed, Parallelism, check_vnodes, resolved
from service.domain.placement import blocks
from service.domain.strategy import tied_actors
from service.operations.commands.fan_out import unfinished_in
from service.operations.world import World
from service.ports.meta_store import Transaction
from service.ports.records import NewJob
from service.protocol.ids import DATABASE_GRAPH, CommandId, FragmentId, GraphId, JobId, WorkerId
from service.protocol.mutation import Update
from service.protocol.plan import ActorPlan, ScanType
from service.protocol.relation import Relation, RelationKind
from service.protocol.vnodes import Runs, vnodes_of

Layouts = Mapping[FragmentId, Sequence[Runs]]
"""What the actors of each scan own."""


async def slots(tx: Transaction, *, now: datetime, lease: timedelta) -> int | None:
    """Return how many tasks a worker of the database graph runs at once, None while none is alive."""
    known = await tx.workers.all(now=now, lease=lease)
    serving = (record.parallelism for record in known if record.alive and record.graph == DATABASE_GRAPH)
    return max(serving, default=None)


async def alter(world: World, wanted: JobId, changes: Mapping[str, Parallelism | None], *, asked_by: str) -> CommandId:
    """Store what `parallelism` or `backfill_parallelism` shall be from now on, and ask for the barrier from which on it
    is. Raises NotFound, Conflict where the job has ended, Invalid.
    """
    now = world.clock.now()
    async with world.stores.begin() as tx:
        held = await tx.actors.hold(wanted)
        if held is None:
            raise NotFound(f"job {wanted} not found", kind="job")
        if held.state not in CREATING | {JobState.CREATED}:
            raise Conflict(f"job {wanted} is {held.state}")
        layouts = (await tx.actors.layouts([wanted]))[wanted]
        if not layouts:
            raise Invalid("stream scan node or source node not found")
        # What reads one epoch of its upstreams in a graph of its own has its actors until it merges.
        decoupled = [held] if held.graph != DATABASE_GRAPH else []
        _check_untied(wanted, [*decoupled, *(await _tied(tx, [held]))[wanted]])
        for name, parallelism in changes.items():
            for layout in layouts.values():
                check_vnodes(parallelism, _vnodes(layout), backfill=name == "backfill_parallelism")
        altered = replace(held, **changes)
        await tx.actors.set_parallelism(wanted, altered.parallelism, altered.backfill_parallelism)
        asked = await _asked(tx, DATABASE_GRAPH)
        present = {one: asked.get(one, layout) for one, layout in layouts.items()}
        resized = _resized(altered, present, await slots(tx, now=now, lease=world.worker_lease))
        update = await _update(tx, resized)
        if update is not None and held.state not in {JobState.CREATING, JobState.CREATED}:
            # No barrier has carried it yet: it starts with the new actors.
            await tx.actors.replace(update.fragments)
            update = None
        # Where nothing changes now, a flush says from when on the answer holds.
        command = await tx.commands.add(DATABASE_GRAPH, update, asked_by=asked_by, now=now)
        facts = {
            "job": wanted,
            "name": held.name,
            "asked_by": asked_by,
            "command": command,
            **{name: str(value or "default") for name, value in changes.items()},
        }
        await tx.events.append("job.altered", facts, now=now)
    world.signals.notify()
    return command


async def actors_beside(tx: Transaction, upstream: Relation) -> int:
    """Return how many actors a NoShuffle scan of a relation has: as many as write it, once what was asked for runs."""
    entry = await tx.catalog.get(upstream.id)
    if entry is None:
        return tied_actors((), upstream.vnode_count)  # it was dropped, which whoever adds the scan will be told
    # The actors of a table that follows another one read its history, and write none of its changes.
    layouts = {} if entry.follows else (await tx.actors.layouts([entry.job]))[entry.job]
    asked = await _asked(tx, DATABASE_GRAPH)
    return tied_actors([len(asked.get(one, layout)) for one, layout in layouts.items()], upstream.vnode_count)


async def check_beside(tx: Transaction, new: NewJob) -> None:
    """Raise Conflict where the upstream of a NoShuffle scan has other actors by now than when the job was planned."""
    for scan in new.table_scans:
        if scan.scan_type is not ScanType.BACKFILL:
            continue
        entry = await tx.catalog.get(scan.upstream)
        if entry is not None and await actors_beside(tx, entry.relation) != len(scan.actors):
            raise Conflict(f"the parallelism of {entry.relation.name} has just been changed: try again")


async def recovering(world: World) -> bool:
    """Whether no barrier can carry a change just now."""
    async with world.stores.begin() as tx:
        return (await tx.graphs.state(DATABASE_GRAPH)).status != GraphStatus.RUNNING


async def settle(tx: Transaction, graph: GraphId, *, now: datetime, lease: timedelta) -> None:
    """Ask for an Update of every scan that has another number of actors than its job asks for."""
    due = await tx.actors.due(graph)
    if not due:
        return
    layouts = await tx.actors.layouts([job.id for job in due])
    available = await slots(tx, now=now, lease=lease)
    asked, tied = await _asked(tx, graph), await _tied(tx, due)
    resized: dict[FragmentId, Sequence[Runs]] = {}
    settled: list[JobId] = []
    for job in due:
        if tied[job.id]:
            continue  # to be looked at again when nobody's actors are beside its own any more
        if not asked.keys().isdisjoint(layouts[job.id]):
            continue  # to be looked at again when its Update has committed
        changed = _resized(job, layouts[job.id], available)
        resized.update(changed)
        if not changed:
            settled.append(job.id)
    if settled:
        await tx.actors.settled(settled)
    update = await _update(tx, resized)
    if update is not None:
        await tx.commands.add(graph, update, asked_by="the parallelism of jobs", now=now)


async def fit(tx: Transaction, graph: GraphId, worker: WorkerId, *, now: datetime, lease: timedelta) -> None:
    """Give the scans of a graph that begins a generation as many actors as suit the worker that runs it. None runs yet,
    so that nothing has to be asked of a barrier: a job with a graph of its own has no other time for it. Those of the
    database graph are asked about afterwards (`settle`), with what is tied to them.
    """
    if graph == DATABASE_GRAPH:
        return
    jobs = await tx.jobs.where(IN_GRAPH, graph=graph)
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
    """Return the layouts that Updates have been asked for and not committed: the last one of a scan counts."""
    return {
        fragment: [actor.vnodes for actor in actors]
        for command in await unfinished_in(tx, graph)
        if isinstance(command.mutation, Update)
        for fragment, actors in command.mutation.fragments.items()
    }


async def _tied(tx: Transaction, jobs: Sequence[Job]) -> Mapping[JobId, Sequence[Job]]:
    """Return whose actors are tied to those of each of these jobs. A table's are to nobody's: they write no change."""
    tables = [job.id for job in jobs if job.kind is RelationKind.TABLE]
    others = await tx.actors.tied([job.id for job in jobs if job.kind is not RelationKind.TABLE])
    return {**others, **dict.fromkeys(tables, ())}


def _check_untied(job: JobId, tied: Sequence[Job]) -> None:
    """Raise Conflict, in the reference's words where it has them, where actors cannot change alone."""
    if any(one.state in CREATING for one in tied):
        raise Conflict(f"Cannot alter the job {job} because it is blocked by creating unreschedulable backfill jobs")
    if tied:
        names = ", ".join(one.name for one in tied)
        raise Conflict(f"Cannot alter the job {job} because NoShuffle backfill has tied its actors: {names}")


def _resized(job: Job, layouts: Layouts, available: int | None) -> Layouts:
    """Return the new layouts of those scans whose number of actors is not what the job asks for."""
    asked = job.present_parallelism
    if asked is None or (available is None and not isinstance(asked, Fixed)):
        return {}
    counts = {one: _vnodes(layout) for one, layout in layouts.items()}
    actors = {one: resolved(asked, slots=available or 1, vnode_count=count) for one, count in counts.items()}
    return {one: blocks(counts[one], actors[one]) for one, layout in layouts.items() if len(layout) != actors[one]}


def _vnodes(layout: Sequence[Runs]) -> int:
    """The actors of a scan own all vnodes of its upstream."""
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
