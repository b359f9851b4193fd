"""Enqueue rate limits: a number, none, or a limit that is adapted to the load.

A call locks the rows of its scans before it reads the current limits, until its command is committed. Concurrent
changes of one limit are therefore serialised, and wait with a connection to the meta store: a caller's take turns
before they take one. An adaptation never reverts a limit that a user has set.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace

from service.domain.adaptive import AUTO, Asked, started
from service.domain.errors import Conflict, Invalid, NotFound
from service.domain.job import TERMINAL, JobState
from service.domain.parameters import SystemParameters
from service.operations.commands.fan_out import ask, check_room, throttles
from service.operations.retrying import retried
from service.operations.world import Context, World
from service.ports.audit import Asker
from service.ports.limits import Held
from service.ports.meta_store import Transaction
from service.protocol.ids import CommandId, FragmentId, JobId
from service.protocol.mutation import Throttle
from service.protocol.plan import SCANS, FragmentKind


@retried
async def throttle_job(world: World, job: JobId, asked: Asked, *, asked_by: Asker) -> CommandId:
    """Set the limit of every scan of a job. Raises NotFound, Conflict if the job is over, Invalid if it has no scan."""
    async with world.calls.limits.turn(asked_by.actor), world.stores.begin(by=asked_by) as tx:
        await check_room(tx, "throttle", asked_by.actor)
        limits: dict[FragmentId, Asked] = dict.fromkeys(await scans_of(tx, job), asked)
        command = await _ask(world, tx, limits, asked_by=asked_by)
    world.signals.notify()
    return command


@retried
async def throttle_fragment(world: World, fragment: FragmentId, asked: Asked, *, asked_by: Asker) -> CommandId:
    """Set the limit of one scan. Raises NotFound, and Invalid if the fragment is not a scan."""
    async with world.calls.limits.turn(asked_by.actor), world.stores.begin(by=asked_by) as tx:
        await check_room(tx, "throttle", asked_by.actor)
        await check_scans(tx, [fragment])
        command = await _ask(world, tx, {fragment: asked}, asked_by=asked_by)
    world.signals.notify()
    return command


@retried
async def pause_job(world: World, job: JobId, *, asked_by: Asker) -> CommandId:
    """Pause every scan of a job until it is resumed or another limit is set. An adaptive limit stays adaptive.

    Raises NotFound, Conflict if the job is over, Invalid if it has no scan.
    """
    async with world.calls.limits.turn(asked_by.actor), world.stores.begin(by=asked_by) as tx:
        await check_room(tx, "throttle", asked_by.actor)
        held = await _asked_so_far(tx, await scans_of(tx, job))
        auto = tuple(one for one, limit in held.items() if limit.auto)
        mutation = Throttle(fragments=dict.fromkeys(held, 0), auto=auto)
        command = await ask(tx, mutation, asked_by=asked_by, now=world.clock.now())
        back = {one: limit.resumes_at if limit.paused else limit.rate_limit for one, limit in held.items()}
        await tx.limits.pause(back)
    world.signals.notify()
    return command


@retried
async def resume_job(world: World, job: JobId, *, asked_by: Asker) -> CommandId:
    """Resume every scan of a job with the last value of its adaptive limit, or with its limit before the pause.

    A scan that was not paused keeps its limit, except that 0 becomes no limit. A repeated call therefore changes
    nothing. Raises NotFound, Conflict if the job is over, Invalid if it has no scan.
    """
    async with world.calls.limits.turn(asked_by.actor), world.stores.begin(by=asked_by) as tx:
        await check_room(tx, "throttle", asked_by.actor)
        held = await _asked_so_far(tx, await scans_of(tx, job))
        limits: dict[FragmentId, Asked] = {one: _resumed(limit) for one, limit in held.items()}
        command = await _ask(world, tx, limits, asked_by=asked_by)
    world.signals.notify()
    return command


async def without_effect(world: Context, job: JobId) -> str | None:
    """Return what to tell a user who pauses or limits a job that has read its history. None while it reads."""
    async with world.stores.begin() as tx:
        found = await tx.jobs.get(job)
        scans = (await tx.fragments.scans([job]))[job]
    if found is None or found.state is not JobState.CREATED or not all(scan.finished for scan in scans):
        return None
    return f"{found.name} has read its history, so nothing is paused or limited: live changes never are"


def _resumed(limit: Held) -> Asked:
    if limit.auto:
        return AUTO
    return limit.resumes_at if limit.paused else limit.rate_limit or None


def asked_limit(limit: Asked, session: Mapping[str, str], *, given: bool) -> Asked:
    """Return the limit that a statement requests. Its own option, if `given`, overrides the session variable."""
    if given:
        return limit
    asked = session.get("backfill_rate_limit", "default")
    if asked == AUTO:
        return AUTO
    return None if asked == "default" else int(asked)


async def first_limit(tx: Transaction) -> int:
    """Return the initial value of an adaptive limit."""
    parameters = SystemParameters.of(await tx.parameters.all())
    return round(started(parameters.auto_bounds).present)


async def throttled(tx: Transaction) -> set[FragmentId]:
    """Return the scans with an uncommitted Throttle."""
    return {fragment for mutation in await throttles(tx) for fragment in mutation.fragments}


async def scans_of(tx: Transaction, job: JobId) -> tuple[FragmentId, ...]:
    """Lock a job and return its scans. Raises NotFound, Conflict if the job is over, Invalid if it has no scan."""
    # A drop locks the job before it removes its fragments. Every transaction locks the two in this order. A shared lock
    # would let one change after the other in, and keep out the commit of a barrier, which needs the row alone.
    await tx.jobs.hold_all([job])
    found = await tx.jobs.get(job)
    if found is None:
        raise NotFound(f"job {job} not found", kind="job")
    if found.state in TERMINAL:
        raise Conflict(f"job {job} is {found.state}")
    scans = tuple(scan.fragment for scan in (await tx.fragments.scans([job]))[job])
    if not scans:
        raise Invalid("stream scan node or source node not found")
    return scans


async def check_scans(tx: Transaction, fragments: Collection[FragmentId]) -> None:
    """Lock the jobs of fragments. Raise NotFound for an unknown fragment and Invalid for one that is not a scan."""
    known = await tx.fragments.job_of(fragments)
    await tx.jobs.hold_all({job for job, _ in known.values()})
    check_known(known, fragments)


def check_known(known: Mapping[FragmentId, tuple[JobId, FragmentKind]], fragments: Collection[FragmentId]) -> None:
    """Raise NotFound for a fragment that is not among the known ones, and Invalid for one that is not a scan."""
    for fragment in fragments:
        if fragment not in known:
            raise NotFound(f"fragment {fragment} not found", kind="fragment")
        if known[fragment][1] not in SCANS:
            raise Invalid(f"fragment {fragment} is not a backfill node")


async def _ask(world: Context, tx: Transaction, limits: Mapping[FragmentId, Asked], *, asked_by: Asker) -> CommandId:
    held = await _asked_so_far(tx, limits)
    first = await first_limit(tx)
    numbers: dict[FragmentId, int | None] = {}
    auto: list[FragmentId] = []
    for one, asked in limits.items():
        if asked == AUTO:
            if held[one].auto and held[one].rate_limit:
                continue  # already adaptive, and keeps its present value
            auto.append(one)
            present = held[one].present if held[one].auto else None
            numbers[one] = first if present is None else round(present)
        else:
            numbers[one] = asked
    mutation = Throttle(fragments=numbers, auto=tuple(auto))
    return await ask(tx, mutation, asked_by=asked_by, now=world.clock.now())


async def _asked_so_far(tx: Transaction, fragments: Collection[FragmentId]) -> dict[FragmentId, Held]:
    """Lock the scans' rows and return their limits as they will be after all queued commands."""
    held = dict(await tx.limits.hold(fragments))
    for mutation in await throttles(tx, held):
        for one, limit in mutation.fragments.items():
            if one in held:
                held[one] = replace(held[one], rate_limit=limit, auto=one in mutation.auto)
    return held
