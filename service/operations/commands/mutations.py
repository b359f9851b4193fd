"""Enqueue mutations and flushes durably, and wait for the epoch of the barrier that carries them (I4)."""

from collections.abc import Collection, Mapping
from datetime import timedelta

from service.domain.errors import Conflict, Invalid, NotFound, Unavailable, UnderRecovery
from service.domain.graph import GraphStatus
from service.domain.job import JobState
from service.operations.commands.fan_out import ask, check_room
from service.operations.commands.limits import check_scans, scans_of
from service.operations.polling import until
from service.operations.retrying import retried
from service.operations.shared_reads import Together
from service.operations.world import Context, World
from service.ports.audit import Asker
from service.ports.meta_store import Transaction
from service.ports.records import Command
from service.protocol.ids import DATABASE_GRAPH, CommandId, Epoch, FragmentId, Generation, JobId
from service.protocol.mutation import (
    Add,
    Mutation,
    Pause,
    Reload,
    Resume,
    StartFragmentBackfill,
    Stop,
    Throttle,
    Update,
)
from service.protocol.stage import Stage

APPLIED_WAIT: timedelta = timedelta(minutes=2)
"""The longest wait for a command. After it the caller gets an error, and the command stays queued."""
RECOVERED_WAIT: timedelta = timedelta(seconds=30)
"""The longest wait for a recovery. A worker restarts within this time. It is shorter than `APPLIED_WAIT`, so that
callers learn earlier of a recovery that keeps failing.
"""
LOOKED_THROUGH = 20
"""The number of recent barriers that are searched for a published one. The newest may wait for a checkpoint."""


async def flush(world: World, *, asked_by: Asker) -> Epoch:
    """Force a checkpoint, wait until it is published, and return its epoch.

    Calls of a caller that come while it waits for one share the next one.
    """

    async def forced(_: object) -> Mapping[None, Epoch]:
        return {None: await applied(world, await _queued(world, None, asked_by=asked_by))}

    shared = world.calls.flushes.setdefault(asked_by.actor, Together[None, Epoch]())
    epoch = await shared.get(None, forced)
    assert epoch is not None
    return epoch


async def inject(world: World, mutation: Mutation | None, *, asked_by: Asker) -> CommandId:
    """Enqueue a mutation, or a flush for None.

    Raises NotFound for unknown jobs and fragments, and Invalid for Add, Update and an empty mutation. Raises Conflict
    for a Stop of a job that is not being cancelled or dropped, or whose Stop is already queued.
    """
    async with world.calls.limits.turn(asked_by.actor):
        return await _queued(world, mutation, asked_by=asked_by)


@retried
async def _queued(world: Context, mutation: Mutation | None, *, asked_by: Asker) -> CommandId:
    async with world.stores.begin(by=asked_by) as tx:
        await check_room(tx, None if mutation is None else mutation.type, asked_by.actor)
        if mutation is not None:
            await _check(tx, mutation)
        command = await ask(tx, mutation, asked_by=asked_by, now=world.clock.now())
    # A flush changes nothing until its barrier: only the graph that carries it has to look.
    world.signals.notify(*([DATABASE_GRAPH] if mutation is None else []))
    return command


async def applied(world: Context, command: CommandId, *, limit: timedelta = APPLIED_WAIT) -> Epoch:
    """Wait until every actor has applied the command and its epoch is published, and return the epoch.

    Raises Conflict if the command was refused, and Unavailable or UnderRecovery after `limit`.
    """

    async def look() -> Command | None:
        async with world.stores.begin() as tx:
            found = await tx.commands.get(command)
            if found is None:
                raise NotFound(f"command {command} not found", kind="command")
            if not found.done or found.epoch is None:
                return None
            state = await tx.graphs.state(found.graph)
            return found if state.published >= found.epoch else None

    found = await until(world, look, limit=limit)
    if found is None or found.epoch is None:
        raise await _not_carried(world)
    if found.error is not None:
        raise Conflict(found.error)
    return found.epoch


async def start_job(world: World, job: JobId, *, asked_by: Asker) -> CommandId:
    """Start every scan of a job, regardless of its backfill order. Raises NotFound, Conflict, Invalid."""
    async with world.stores.begin() as tx:
        scans = await scans_of(tx, job)
    return await inject(world, StartFragmentBackfill(fragments=scans), asked_by=asked_by)


@retried
async def recover(world: Context, reason: str = "adhoc recovery", *, asked_by: Asker) -> Generation:
    """Request a recovery of all graphs and return the present generation of the database graph.

    The next generation starts from the last committed epoch.
    """
    async with world.stores.begin(by=asked_by) as tx:
        ended = await generation_of(tx)
        # Graphs are locked in the order in which a merge locks them, and the snapshots are not locked. A merged graph
        # makes no more barriers and ignores the request.
        for graph in (*await tx.partial_graphs.all(), DATABASE_GRAPH):
            await tx.graphs.ask_recovery(graph, reason)
        facts = {"graph": DATABASE_GRAPH, "reason": reason, "asked_by": asked_by.actor}
        await tx.events.append("recovery.asked", facts, now=world.clock.now())
    world.signals.notify()
    return ended


async def recovered(world: World, ended: Generation) -> bool:
    """Wait until a generation after `ended` has published an epoch. Return whether one has.

    Later commands are then not affected by the recovery. If no worker is alive, no epoch will be published, so this
    returns False at once.
    """

    async def look() -> bool | None:
        async with world.stores.begin() as tx:
            generation = await generation_of(tx)
            known = await tx.workers.all(now=world.clock.now(), lease=world.workers.lease)
            newest = await tx.barriers.history(DATABASE_GRAPH, limit=LOOKED_THROUGH)
        if any(one.barrier.generation > ended and one.published_at is not None for one in newest):
            return True
        return False if generation > ended and not any(worker.alive for worker in known) else None

    return bool(await until(world, look, limit=RECOVERED_WAIT))


async def _check(tx: Transaction, mutation: Mutation) -> None:
    match mutation:
        case Pause() | Resume():
            return
        case Add():
            raise Invalid("an Add belongs to a CREATE statement and cannot be injected", pointer="/type")
        case Reload():
            raise Invalid("a Reload belongs to ALTER TABLE .. RELOAD and cannot be injected", pointer="/type")
        case Update():
            raise Invalid(
                "an Update belongs to the parallelism of a job, and is made where that changes", pointer="/type"
            )
        case Throttle(fragments=limits):
            await check_scans(tx, limits)
            await tx.limits.hold(limits)
        case StartFragmentBackfill(fragments=fragments):
            _check_named(fragments, "/fragments")
            await check_scans(tx, fragments)
            await _check_no_stages(tx, fragments)
        case Stop(jobs=jobs):
            _check_named(jobs, "/jobs")
            await _check_stopping(tx, jobs)


def _check_named(named: Collection[int], pointer: str) -> None:
    if not named:
        raise Invalid("names nothing that it could be about", pointer=pointer)


async def _check_no_stages(tx: Transaction, fragments: Collection[FragmentId]) -> None:
    """Raise Conflict if a stage among the scans waits. Started early, it would read a part of its input."""
    jobs = {job for job, _ in (await tx.fragments.job_of(fragments)).values()}
    for plan in await tx.plans.outlines(jobs):
        for scan in plan.table_scans:
            if scan.id in fragments and scan.waiting and not plan.projects and isinstance(scan.query, Stage):
                raise Conflict(f"fragment {scan.id} reads {scan.upstream.name}, and starts when that is complete")


async def _check_stopping(tx: Transaction, jobs: Collection[JobId]) -> None:
    await tx.partial_graphs.of_jobs(jobs)
    for job in jobs:
        found = await tx.jobs.get(job)
        if found is None:
            raise NotFound(f"job {job} not found", kind="job")
        if found.state not in {JobState.CANCELLING, JobState.DROPPING}:
            raise Conflict(f"job {job} is {found.state}: cancel or drop it, which injects the Stop")
    stopping = {job for command in await tx.commands.unfinished("stop") for job in _stopped(command.mutation)}
    if again := stopping & set(jobs):
        raise Conflict(f"a Stop of job {min(again)} is already queued")


def _stopped(mutation: Mutation | None) -> Collection[JobId]:
    return mutation.jobs if isinstance(mutation, Stop) else ()


async def generation_of(tx: Transaction) -> Generation:
    """Return the present generation of the database graph."""
    return (await tx.graphs.state(DATABASE_GRAPH)).generation


async def _not_carried(world: Context) -> Unavailable:
    async with world.stores.begin() as tx:
        state = await tx.graphs.state(DATABASE_GRAPH)
    if state.status is not GraphStatus.RUNNING:
        return UnderRecovery(state.last_error or "no worker is alive")
    return Unavailable("no barrier has carried the command yet; it stays queued")
