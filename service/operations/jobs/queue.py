"""Start jobs, alternately of each tenant, while permits are free. The job of a table needs no permit."""

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from service.domain.backoff import SetAside
from service.domain.barrier import Chore
from service.domain.errors import Deposed, InUse, Refused, Unavailable
from service.domain.fair_queue import Queued, start_order
from service.domain.indexes import lacking
from service.domain.job import IllegalTransition, Job, JobEvent, JobState
from service.domain.parameters import SystemParameters
from service.domain.slow_views import SLOW_VIEW
from service.domain.waiting import NAME_KEPT
from service.operations.commands.fan_out import follow
from service.operations.jobs.failing import refuse
from service.operations.jobs.snapshots import is_snapshot, many_rows
from service.operations.jobs.stages import lookups_of, named, of_users, only_inserts, sums_of
from service.operations.jobs.standing import in_turn
from service.operations.retrying import retried
from service.operations.world import Context, World
from service.ports.meta_store import Transaction
from service.protocol.ids import DATABASE_GRAPH, JobId, RelationId, Term
from service.protocol.mutation import Add
from service.protocol.plan import JobPlan
from service.protocol.stage import LookupIndex
from service.telemetry.log import logger

log = logger("queue")

STARTED_TOGETHER: Final = 8
"""How many tables, and how many other jobs, one call starts. The jobs asked for meanwhile then take their turns."""


@retried
async def start_jobs(world: World, *, term: Term, aside: SetAside[JobId] | None = None) -> int:
    """Start the waiting jobs that may start. Return how many were attempted or are left for the next call.

    A job that waits for an index, or cannot be started now, is set aside, and the others continue. A job whose tables
    the state store refuses fails. Raises Deposed, Unavailable.
    """
    aside = SetAside() if aside is None else aside
    async with world.stores.begin(term) as tx:
        parameters = SystemParameters.of(await tx.parameters.all())
        limit = parameters.max_concurrent_creating_streaming_jobs
        line = await tx.queue.line()
        full = 0 < limit <= line.held
        waiting = await tx.jobs.where({JobState.INITIAL} if full else {JobState.INITIAL, JobState.QUEUED})
        aside.keep({job.id for job in waiting})
        due = aside.due([job.id for job in waiting], now=world.clock.now())
        free = [job for job in waiting if job.id in due]
        own = len(await tx.workers.wanted()) if parameters.serverless_workers_max else 0
        order = await in_turn(tx, [Queued(job.id, job.created_by) for job in free if job.takes_permit])
        permits, workers = Places(line.held, limit), Places(own, parameters.serverless_workers_max)
        chosen = [*_without_permit(free), *_choose(free, order, permits, workers)]
        for job in free:
            if job.state is JobState.INITIAL and job not in chosen:
                # A concurrent cancel must not keep the other jobs out of the queue.
                with suppress(IllegalTransition):
                    await tx.jobs.move(job.id, JobEvent.QUEUED, now=world.clock.now())
        starting = _first(chosen)
        outputs = await tx.plans.outputs([job.id for job in starting])
    tried = sum([await _try(world, job, outputs.get(job.id, ()), aside, term=term) for job in starting])
    return tried + len(chosen) - len(starting)


async def _try(world: World, job: Job, outputs: Collection[RelationId], aside: SetAside[JobId], *, term: Term) -> bool:
    world.leading.starting.update(outputs)
    try:
        started = await _start(world, job, term=term)
    except Deposed:
        raise
    except Exception as error:
        failures = aside.failed(job.id, now=world.clock.now())
        if isinstance(error, InUse):
            await _say_kept(world, job.id, error, term=term)
        if not isinstance(error, Unavailable):
            log.exception("job.not_started", job=job.id, name=job.name, failures=failures)
        else:
            log.warning("job.not_started", job=job.id, name=job.name, failures=failures, error=str(error))
        return True
    else:
        if not started:
            aside.failed(job.id, now=world.clock.now())
        return started
    finally:
        world.leading.starting.difference_update(outputs)


@retried
async def _say_kept(world: Context, job: JobId, error: InUse, *, term: Term) -> None:
    async with world.stores.begin(term) as tx:
        await tx.queue.prepare(job, f"{NAME_KEPT} {error}")
    world.signals.notify(None)


@dataclass(slots=True)
class Places:
    """Places of which `taken` are taken. A limit of 0 means no limit."""

    taken: int
    limit: int

    @property
    def free(self) -> bool:
        """Whether there is one more."""
        return self.limit == 0 or self.taken < self.limit


def _choose(waiting: Sequence[Job], order: Sequence[JobId], permits: Places, workers: Places) -> list[Job]:
    """Return the jobs that get a permit, in the order of their starts. `order` has those that take one.

    A job that waits for a worker of its own lets others pass.
    """
    named = {job.id: job for job in waiting}
    chosen: list[Job] = []
    for job in (named[one] for one in order):
        if permits.free and (not job.serverless or workers.free):
            permits.taken += 1
            workers.taken += job.serverless
            chosen.append(job)
    return chosen


def _without_permit(waiting: Sequence[Job]) -> list[Job]:
    """Return the jobs that take no permit, alternately of each caller."""
    named = {job.id: job for job in waiting if not job.takes_permit}
    return [named[one] for one in start_order([Queued(job.id, job.created_by) for job in named.values()], {})]


def _first(chosen: Sequence[Job]) -> list[Job]:
    """Return the jobs that one call starts. Neither kind of job waits for many of the other one."""
    kinds = ([job for job in chosen if job.takes_permit is permit] for permit in (False, True))
    return [job for kind in kinds for job in kind[:STARTED_TOGETHER]]


@retried
async def _start(world: World, job: Job, *, term: Term) -> bool:
    """Create the job's tables, then queue the Add, or begin the snapshot. Repeatable until the second step commits.

    Return whether that is done. A job that waits for an index, or for its caller's budget, is not started.
    """
    async with world.stores.begin(term) as tx:
        plan = next(iter(await tx.plans.of([job.id])), None)
        if plan is None:
            return True  # cancelled before any table existed
        loading = is_snapshot(plan) and only_inserts(plan) and await many_rows(tx, plan)
        sums = sums_of(plan) if is_snapshot(plan) else {}
        needed = lookups_of(plan)
        await tx.jobs.hold(job.id)
        waits = await _waits_for_budget(world, tx, job, plan) or await _lacks_indexes(world, tx, job, plan, needed)
    if waits:
        world.signals.notify(None, Chore.INDEX)
        return False
    try:
        for output in plan.outputs:
            mine, its_sums = [one for one in needed if one.relation == output.id], sums.get(output.id, ())
            await world.state_store.tables.create(
                output, term=term, loading=loading, lookups=mine, sums=its_sums, logged=plan.is_logged
            )
    except Refused as error:
        async with world.stores.begin(term) as tx:
            await refuse(tx, job, str(error), now=world.clock.now())
        return True
    async with world.stores.begin(term) as tx:
        current = await tx.jobs.hold(job.id)
        if current is None or current.state not in {JobState.INITIAL, JobState.QUEUED}:
            return True  # cancelled meanwhile, and its removal queued the clean-up of the table
        if not await _pinned(tx, plan, needed):
            return False
        await tx.jobs.move(job.id, JobEvent.STARTED, now=world.clock.now())
        begun = None
        if is_snapshot(plan):
            begun = await tx.partial_graphs.begin(job.id, indexed=not (loading or sums))
            await follow(tx, plan, begun.graph, now=world.clock.now())
        else:
            await tx.commands.add(DATABASE_GRAPH, Add(jobs=(plan,)), asked_by=f"job {job.id}", now=world.clock.now())
        facts = {"job": job.id, "name": job.name, "graph": (current if begun is None else begun).graph}
        await tx.events.append("job.started", facts | {"serverless": job.serverless}, now=world.clock.now())
    return True


async def _waits_for_budget(world: Context, tx: Transaction, job: Job, plan: JobPlan) -> bool:
    """Store whether the job waits because an earlier view of its caller held up others, and return it.

    Only views whose pages are computed in the database graph do so.
    """
    if is_snapshot(plan) or plan.projects or not job.takes_permit:
        return False
    slow = await tx.queue.slow_view(job.created_by)
    limit_ms = SystemParameters.of(await tx.parameters.all()).stage_timeout_ms
    if slow is not None and world.clock.now() < slow.until(limit_ms):
        await tx.queue.prepare(job.id, slow.reason(limit_ms))
        return True
    if (job.preparing or "").startswith(SLOW_VIEW):
        await tx.queue.prepare(job.id, None)
    return False


async def _pinned(tx: Transaction, plan: JobPlan, needed: Collection[LookupIndex]) -> bool:
    """Pin what the job's scans start from. Return False if an index was given up since it was found."""
    if is_snapshot(plan):
        await tx.partial_graphs.pin_totals(plan.id)
    return not await _lacking(tx, plan, needed)


async def _lacks_indexes(
    world: Context, tx: Transaction, job: Job, plan: JobPlan, needed: frozenset[LookupIndex]
) -> bool:
    """Store the indexes that are to be built, and whether the job waits for one of them. Return whether it does.

    Those of hidden relations are made with their tables.
    """
    missing = await _lacking(tx, plan, needed)
    await tx.stored_indexes.expect(missing | (needed - of_users(plan, needed)), now=world.clock.now())
    if missing and job.preparing is None:
        listed = ", ".join(sorted(named(one, [plan]) for one in missing))
        await tx.queue.prepare(job.id, f"an index of {listed} is being built")
    return bool(missing)


async def _lacking(tx: Transaction, plan: JobPlan, needed: Collection[LookupIndex]) -> frozenset[LookupIndex]:
    """Return the lookups of users' relations that no index serves. One that serves is kept for this transaction."""
    wanted = of_users(plan, needed)
    held = await tx.stored_indexes.hold({one.relation for one in wanted}) if wanted else ()
    return lacking(wanted, held)
