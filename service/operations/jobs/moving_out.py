"""Move a created job out of the database graph, because one of its epochs cost more than others may wait for (I13).

This takes two transactions. `decide` records it while the generation is abandoned, in which actors of the job may still
write. `PartialGraphs.leave` gives the job its graph after the state store has been fenced and rolled back. No epoch is
in flight then, so the job has read every input up to the committed epoch and follows the change log from there. Readers
of the job move too, because they may read no epoch that the job has not committed.
"""

from collections.abc import Collection, Sequence
from datetime import datetime

from service.domain.errors import Conflict
from service.domain.job import CREATING, Job, JobState
from service.domain.own_graph import reading
from service.operations.jobs import failing
from service.operations.jobs.snapshots import is_snapshot
from service.operations.naming import readers
from service.ports.meta_store import Transaction
from service.ports.records import CatalogEntry, NewJob
from service.protocol.ids import JobId
from service.protocol.report import Failed


async def concerned(tx: Transaction, failure: Failed | None) -> Collection[JobId]:
    """Return the jobs whose changes took too long, and what reads them, to be locked before `decide`."""
    slow = await tx.jobs.where(ids=failure.slow) if failure is not None and failure.slow else ()
    return {one.id for job in slow for one in (job, *await _readers(tx, job))}


async def decide(tx: Transaction, job: JobId, reason: str, *, now: datetime) -> bool:
    """Let a job, and what reads it, leave the database graph. Return False if it is not created there and must fail.

    A reader that is being created in the database graph fails, because it has read the job's newest epochs.
    """
    its = await tx.jobs.get(job)
    if its is None or not await _is_at_rest(tx, its):
        return False
    await _leaves(tx, its, reason, now=now)
    why = reading([its.name])
    for reader in await _readers(tx, its):
        if reader.own_graph is not None or reader.state not in CREATING | {JobState.CREATED}:
            continue
        if await _is_at_rest(tx, reader) or await _begins_apart(tx, reader):
            await _leaves(tx, reader, why, now=now)
        elif reader.state is JobState.CREATING:
            await failing.fail(tx, reader.id, f"{why} since now: create it again", now=now)
        else:
            await failing.refuse(tx, reader, f"{why} since now: create it again", now=now)
    return True


async def staying(tx: Transaction, entries: Sequence[CatalogEntry]) -> Sequence[str]:
    """Return the names of the relations whose jobs stay in graphs of their own."""
    return [one.name for one in await tx.jobs.where(ids=[entry.job for entry in entries]) if one.own_graph is not None]


async def check_reads(tx: Transaction, new: NewJob) -> None:
    """Raise Conflict if a relation that a new job reads left the database graph after the job was planned."""
    if new.own_graph is not None:
        return
    found = [await tx.catalog.get(one) for one in sorted(new.upstreams)]
    if left := await staying(tx, [one for one in found if one is not None]):
        raise Conflict(f"{', '.join(left)} has just got a graph of its own: send the statement again")


async def _leaves(tx: Transaction, job: Job, reason: str, *, now: datetime) -> None:
    await tx.jobs.stay(job.id, reason)
    await tx.events.append("job.leaves_graph", {"job": job.id, "name": job.name, "reason": reason}, now=now)


async def _is_at_rest(tx: Transaction, job: Job) -> bool:
    """Whether the job is created in the database graph, and its former graph is retired."""
    created = job.state is JobState.CREATED and not job.in_partial_graph
    return created and not await tx.snapshots.of_jobs([job.id])


async def _begins_apart(tx: Transaction, job: Job) -> bool:
    """Whether an unfinished job is in a graph of its own, or will begin in one."""
    if job.state is JobState.CREATING:
        return job.in_partial_graph
    return job.state in CREATING and all(map(is_snapshot, await tx.plans.outlines([job.id])))


async def _readers(tx: Transaction, job: Job) -> Sequence[Job]:
    """Return the jobs that read the job's relation, directly or through others, oldest first."""
    found = await readers(tx, job.relation)
    return await tx.jobs.where(ids=[one.entry.job for one in found if one.entry is not None])
