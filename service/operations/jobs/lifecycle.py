"""Jobs as their users ask for them: create, await, cancel, drop.

Next: `service.meta_store.jobs.jobs`, which stores them, and `service.operations.jobs.queue`, which starts them.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial

from service.domain.awaited import Awaited, Recovered, is_begun, is_over, is_settled
from service.domain.errors import Conflict, Invalid, NotFound, Unavailable, UnderRecovery
from service.domain.job import CREATING, IllegalTransition, Job, JobEvent, JobState
from service.operations import quotas
from service.operations.commands.fan_out import ask
from service.operations.jobs import moving_out, rescaling
from service.operations.leaving import Gone, unless
from service.operations.naming import Named, named, or_there, readers
from service.operations.polling import until
from service.operations.retrying import retried
from service.operations.world import Context, World
from service.ports.audit import Asker, itself
from service.ports.meta_store import Transaction
from service.ports.records import NewDml, NewJob, NewSourceScan
from service.protocol.ids import DATABASE_GRAPH, GraphId, JobId, RelationId, SourceId
from service.protocol.mutation import Stop
from service.protocol.relation import COLUMNS_MAX, Relation, RelationKind
from service.protocol.vnodes import Runs
from service.telemetry.log import bind

EARLY: timedelta = timedelta(seconds=30)
"""A recovery within this time after a foreground CREATE cancels the job and fails the statement. The job survives later
recoveries.
"""
GONE_WAIT: timedelta = timedelta(minutes=2)


@dataclass(frozen=True, slots=True)
class Asked:
    """The job of a CREATE. With `existed`, IF NOT EXISTS found a relation with the name, and this is its job."""

    job: JobId
    existed: bool = False


async def create(world: Context, new: NewJob, *, if_not_exists: bool, asked_by: Asker) -> Asked:
    """Record a job. The leader starts it. Raises Conflict if the name is taken, Invalid for too many columns, and
    OverQuota.
    """
    if len(new.relation.columns) > COLUMNS_MAX:
        raise Invalid(f"tables can have at most {COLUMNS_MAX} columns")

    async def there() -> Asked | None:
        async with world.stores.begin() as tx:
            taken = await tx.catalog.named(new.relation.name)
        if not if_not_exists or taken is None or taken.relation.kind is not new.relation.kind:
            return None
        return Asked(taken.job, existed=True)

    return await or_there(_create(world, new, asked_by=asked_by), there)


@retried
async def _create(world: Context, new: NewJob, *, asked_by: Asker) -> Asked:
    traceparent = None if asked_by.call is None else asked_by.call.traceparent
    if world.traces is not None and traceparent is not None:
        world.traces.asked_for_job(traceparent)
        new = replace(new, traceparent=traceparent)
    async with world.stores.begin(by=asked_by) as tx:
        if any(isinstance(one, NewSourceScan) for one in new.fragments):
            # One table of a source at a time: those of a caller are counted below.
            await tx.catalog.hold(new.views)
        job = await tx.jobs.add(new, now=world.clock.now(), by=asked_by.actor)
        bind(job=job.id)
        await quotas.check_jobs(world, tx, asked_by, job)
        await quotas.check_plans(tx, new, job.created_by)
        await quotas.check_followers(tx, asked_by, new)
        # The insert has locked the jobs of the upstreams, so no ALTER changes their actors after this check.
        await rescaling.check_beside(tx, new)
        await moving_out.check_reads(tx, new)
        facts = {"job": job.id, "name": job.name, "statement": new.statement, "asked_by": asked_by.actor}
        await tx.events.append("job.asked", facts, now=world.clock.now())
    world.signals.notify()
    return Asked(job.id)


def table_job(relation: Relation, statement: str) -> NewJob:
    """Return the job of a table: one DML fragment, with one actor that owns every vnode."""
    whole: Runs = ((0, relation.vnode_count - 1),)
    return NewJob(relation, statement, background=False, fragments=(NewDml((whole,)),))


async def created(world: World, job: JobId, *, gone: Gone | None = None) -> Job:
    """Wait until the job is Created and readable, as the foreground CREATE that made it does.

    Like every wait for a job here, it ends when the caller is `gone`, and the job goes on. A recovery within the first
    30 s cancels the job and raises UnderRecovery, unless some job was to blame for it, or a statement that Postgres
    could not stop. Raises Refused when the job failed, and Conflict when it was cancelled or its public view cannot be
    made.
    """
    began = world.clock.monotonic()
    before: Recovered | None = None

    async def look() -> Job | None:
        nonlocal before
        found = await seen(world, job)
        if is_settled(found.job):
            return found.job
        last, early = found.recovered, world.clock.monotonic() - began < EARLY.total_seconds()
        if early and before is not None and last.generation != before.generation and not last.blamed:
            await cancel(world, [job], asked_by=itself("recovery"))
            raise UnderRecovery(last.reason)
        # A recovery that a job or a statement caused does not cancel this one. That fails with the reason.
        before = last
        return None

    return await _waited(world, look, gone)


async def finished(world: World, job: JobId, *, gone: Gone | None = None) -> Job:
    """Wait until a job that another call created is Created and readable. A recovery does not cancel it.

    Raises Conflict if the job was cancelled or failed.
    """

    async def look() -> Job | None:
        found = (await seen(world, job)).job
        return found if is_settled(found) else None

    return await _waited(world, look, gone)


async def begun(world: World, job: JobId, *, gone: Gone | None = None) -> Job:
    """Wait until the job has started, or is queued or waits for something, as a background CREATE does."""

    async def look() -> Job | None:
        found = (await seen(world, job)).job
        return found if is_begun(found) else None

    return await _waited(world, look, gone)


async def over(world: World, job: JobId | None, *, limit: timedelta, gone: Gone | None = None) -> None:
    """Wait until a job is created and readable and has read its history, as WAIT does.

    None waits for every job, except for jobs that cannot finish their history or become visible. Raises Conflict if the
    single job cannot, and Unavailable after `limit`.
    """

    async def look() -> bool | None:
        if job is not None:
            return is_over(await seen(world, job)) or None
        return None if await world.calls.unfinished.get(None, partial(_unfinished, world)) else True

    if await unless(gone, until(world, look, limit=limit)) is None:
        raise Unavailable("timeout while waiting for jobs to finish")


async def seen(world: World, job: JobId) -> Awaited:
    """Return the state of a job for a waiting call. Concurrent callers share the read. Raises NotFound."""
    found = await world.calls.awaited.get(job, partial(_seen, world))
    if found is None:
        raise NotFound(f"job {job} not found", kind="job")
    return found


async def _seen(world: Context, wanted: Collection[JobId]) -> Mapping[JobId, Awaited]:
    async with world.stores.begin() as tx:
        found = await tx.jobs.where(ids=wanted)
        scans = await tx.fragments.scans(wanted)
        state = await tx.graphs.state(DATABASE_GRAPH)
        blamed = await tx.failures.blamed(DATABASE_GRAPH)
        blamed = blamed or bool(await tx.statements.unstoppable(since=world.clock.now() - EARLY))
    recovered = Recovered(state.generation, state.last_error or "adhoc recovery", blamed)
    return {job.id: Awaited(job, scans.get(job.id, ()), recovered) for job in found}


async def _unfinished(world: Context, _: Collection[None]) -> Mapping[None, Collection[JobId]]:
    """Return the jobs for which a WAIT without a name waits."""
    async with world.stores.begin() as tx:
        creating = await tx.jobs.where(CREATING)
        backfilling = await tx.jobs.backfilling()
        scans = await tx.fragments.scans([job.id for job in backfilling]) if backfilling else {}
        unshown = [JobId(relation.id) for relation in await tx.visibility.unshown()]
        created = await tx.jobs.where(ids=unshown) if unshown else ()
    read = [job for job in backfilling if not any(scan.stopped for scan in scans.get(job.id, ()))]
    shown_soon = [job for job in created if job.held_back is None]
    return {None: {job.id for job in (*creating, *read, *shown_soon)}}


async def _waited(world: Context, look: Callable[[], Awaitable[Job | None]], gone: Gone | None) -> Job:
    found = await unless(gone, until(world, look))
    assert found is not None
    return found


async def cancel(world: World, jobs: Sequence[JobId], *, asked_by: Asker) -> list[JobId]:
    """Cancel creating jobs and wait until they are cleaned up. Return the cancelled jobs. Others are ignored."""
    cancelled, relations, graphs = await _cancel(world, jobs, asked_by=asked_by)
    await _gone(world, relations, graphs)
    return cancelled


async def give_up(world: Context, job: JobId, reason: str) -> None:
    """Cancel a creating job for a reason of the service's own, which the job then shows. Nothing is waited for."""
    await _cancel(world, [job], asked_by=itself("the service"), reason=reason)


@retried
async def _cancel(
    world: Context, jobs: Sequence[JobId], *, asked_by: Asker, reason: str | None = None
) -> tuple[list[JobId], list[RelationId], Collection[GraphId]]:
    """Ask for the end of creating jobs. Return the jobs, their relations, and the partial graphs that end with them."""
    cancelled: list[JobId] = []
    stopping: list[JobId] = []
    relations: list[RelationId] = []
    async with world.stores.begin(by=asked_by) as tx:
        # Others wait for the jobs that it holds.
        creating = [job.id for job in await tx.jobs.where(CREATING, ids=jobs)]
        await tx.jobs.hold_all(creating)
        for job in creating:
            moved = await _ended(world, tx, job, JobEvent.CANCEL_ASKED, reason)
            if moved is None:
                continue
            relations.append(moved.relation)
            cancelled.append(job)
            await _told(world, tx, moved, "cancel_asked", asked_by)
            if moved.state is JobState.CANCELLED:
                await tx.catalog.remove(moved.relation)
                await tx.events.append("job.cancelled", {"job": job, "name": moved.name}, now=world.clock.now())
            else:
                stopping.append(job)
        graphs = await _stop(world, tx, stopping, asked_by=asked_by)
    world.signals.notify()
    return cancelled, relations, graphs


@retried
async def drop(world: World, name: str, kind: RelationKind, *, cascade: bool, asked_by: Asker) -> Collection[SourceId]:
    """Drop a relation in any state, and with CASCADE the relations that read it.

    Return the affected sources: dropped ones, and those of followed tables that were dropped. Raises NotFound,
    Conflict.
    """
    async with world.stores.begin(by=asked_by) as tx:
        doomed = await _held(world, tx, name, kind, cascade=cascade)
        concerned = await _concerned(tx, doomed)
        # The cleanup of a source is locked after all rows of relations.
        in_order = sorted(doomed, key=lambda victim: (victim.kind is RelationKind.SOURCE, victim.id))
        stopping = [job for victim in in_order if (job := await _doom(world, tx, victim, asked_by)) is not None]
        graphs = await _stop(world, tx, stopping, asked_by=asked_by)
    world.signals.notify()
    await _gone(world, [victim.id for victim in doomed], graphs)
    return concerned


async def _held(world: World, tx: Transaction, name: str, kind: RelationKind, *, cascade: bool) -> list[Named]:
    """Lock the objects that a DROP removes, and return them. Raises NotFound, Conflict."""
    held: set[RelationId] = set()
    while True:
        doomed = await _doomed(tx, name, kind, cascade=cascade)
        # Another look finds the readers that were added before what they read was locked.
        if held.issuperset(victim.id for victim in doomed):
            return doomed
        # The state store may be slow, so this query runs before the transaction locks any row.
        await _check_foreign(world, doomed)
        held.update(victim.id for victim in doomed)
        await tx.catalog.hold(held)


async def _check_foreign(world: World, doomed: Sequence[Named]) -> None:
    """Raise Conflict if objects of users in the state store depend on what is dropped."""
    shown = [victim.name for victim in doomed if victim.kind.stored or victim.kind is RelationKind.VIEW]
    if shown and (foreign := await world.state_store.tables.foreign_readers(shown)):
        raise Conflict(
            f"cannot drop {doomed[0].kind} {doomed[0].name} because objects that tidefill did not make depend on it:"
            f" {', '.join(foreign)}. Drop those first"
        )


async def _concerned(tx: Transaction, doomed: Sequence[Named]) -> Collection[SourceId]:
    found = {SourceId(victim.id) for victim in doomed if victim.kind is RelationKind.SOURCE}
    followers = {victim.id for victim in doomed if victim.entry is not None and victim.entry.follows}
    if followers:
        found |= {table.source for table in await tx.following.tables() if table.relation in followers}
    return found


async def _doomed(tx: Transaction, name: str, kind: RelationKind, *, cascade: bool) -> list[Named]:
    """Return the objects that a DROP removes, the named one first. Raises NotFound, Conflict."""
    first = await named(tx, name)
    if first is None:
        raise NotFound(f'{kind} "{name}" does not exist', kind="relation")
    if first.kind is not kind:
        raise Conflict(f'"{name}" is not a {kind}; use DROP {str(first.kind).upper()}')
    doomed = [first, *await readers(tx, first.id)]
    if len(doomed) > 1 and not cascade:
        names = ", ".join(f"{reader.kind} {reader.name}" for reader in doomed[1:])
        raise Conflict(f"cannot drop {kind} {name} because other objects depend on it: {names}. Use DROP .. CASCADE")
    return doomed


async def _stop(world: Context, tx: Transaction, jobs: Collection[JobId], *, asked_by: Asker) -> Collection[GraphId]:
    """Queue the stop of jobs, and return their partial graphs.

    This runs in the transaction that moves the jobs to a state that waits for the stop. With two transactions, a crash
    in between would leave the jobs in that state for ever (I9).
    """
    if jobs:
        await ask(tx, Stop(jobs=tuple(sorted(jobs))), asked_by=asked_by, now=world.clock.now())
    return {snapshot.graph for snapshot in (await tx.snapshots.of_jobs(jobs)).values()}


async def _doom(world: Context, tx: Transaction, victim: Named, asked_by: Asker) -> JobId | None:
    """Remove a source or a logical view, or end a job. Return the job if a barrier has to stop its actors."""
    entry = victim.entry
    if victim.kind is RelationKind.SOURCE:
        if not await tx.lakes.remove(victim.id):
            await tx.sources.remove(SourceId(victim.id), now=world.clock.now())
        facts = {"name": victim.name, "asked_by": asked_by.actor}
        await tx.events.append("source.dropped", facts, now=world.clock.now())
        return None
    if entry is None:
        await tx.catalog.remove(victim.id)
        await tx.events.append("view.dropped", {"name": victim.name}, now=world.clock.now())
        return None
    for event in (JobEvent.CANCEL_ASKED, JobEvent.DROP_ASKED):
        moved = await _ended(world, tx, entry.job, event)
        if moved is not None:
            break
    else:
        return None  # another call has already queued the stop
    await _told(world, tx, moved, event, asked_by)
    if moved.state in {JobState.CANCELLED, JobState.DROPPED}:
        await tx.catalog.remove(entry.relation.id)
        await tx.events.append(
            f"job.{moved.state.lower()}", {"job": moved.id, "name": moved.name}, now=world.clock.now()
        )
        return None
    return entry.job


async def _ended(world: Context, tx: Transaction, job: JobId, event: JobEvent, reason: str | None = None) -> Job | None:
    """Apply an event that ends a job. Return None if the job's state does not allow it or the job does not exist."""
    # The state is known only after the job's row is locked, so an illegal transition is not checked beforehand.
    try:
        return await tx.jobs.move(job, event, now=world.clock.now(), error=reason)
    except (IllegalTransition, NotFound):
        return None


async def _told(world: Context, tx: Transaction, job: Job, event: str, asked_by: Asker) -> None:
    facts = {"job": job.id, "name": job.name, "asked_by": asked_by.actor}
    await tx.events.append(f"job.{event}", facts, now=world.clock.now())


async def _gone(world: World, relations: Collection[RelationId], graphs: Collection[GraphId]) -> None:
    """Wait until the relations are removed from catalog and state store, and their partial graphs and workers are gone.

    A relation that somebody keeps in the state store counts as removed, because no name leads to it any more. Give up
    silently after `GONE_WAIT`: the stop stays queued.
    """
    wanted = set(relations)

    async def look() -> bool | None:
        async with world.stores.begin() as tx:
            for relation in wanted:
                if await tx.catalog.get(relation) is not None:
                    return None
            # Read after the catalog: a transaction that frees a name and queues its clean-up may commit in between.
            left = {one.relation for one in await tx.cleanups.all() if one.held is None} & wanted
            left_graphs = graphs and set(graphs).intersection(await tx.partial_graphs.all())
            known = await tx.workers.all(now=world.clock.now(), lease=world.workers.lease) if graphs else ()
        served = any(record.alive and record.graph in graphs for record in known)
        return None if left or left_graphs or served else True

    await until(world, look, limit=GONE_WAIT)
