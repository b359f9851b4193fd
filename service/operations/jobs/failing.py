"""End the creation of a job: record that it is created, or fail a job that cannot continue."""

from datetime import datetime

from service.domain.job import Job, JobEvent, JobState
from service.ports.meta_store import Transaction
from service.protocol.ids import JobId


async def tell_created(tx: Transaction, job: Job, *, now: datetime, **facts: str | None) -> None:
    """Record the event that a job is created, with what each engine has done for it."""
    work = (await tx.status.engine_work([job.id]))[job.id]
    engines = {name.value: {"jobs": done.jobs, "rows": done.rows} for name, done in work.items()}
    await tx.events.append("job.created", {"job": job.id, "name": job.name, **facts, "engines": engines}, now=now)


async def refuse(tx: Transaction, job: Job, error: str, *, now: datetime) -> None:
    """Fail a job that has not started. Raises IllegalTransition."""
    await tx.jobs.move(job.id, JobEvent.FAILED, now=now, error=error)
    await tx.catalog.remove(job.relation)
    await tx.events.append("job.failed", {"job": job.id, "name": job.name, "error": error}, now=now)


async def fail(tx: Transaction, job: JobId, error: str, *, now: datetime) -> None:
    """Fail a created or creating job with an error. Do nothing for a job in another state."""
    before = await tx.jobs.get(job)
    if before is None or before.state not in {JobState.CREATING, JobState.CREATED}:
        return  # its stop is queued and ends the job
    ended = await tx.jobs.move(job, JobEvent.FAILED, now=now, error=error)
    if before.state is JobState.CREATING:
        # No user could read it yet. A created view stays readable with its last rows until it is dropped.
        await tx.catalog.remove(ended.relation)
    await tx.events.append("job.failed", {"job": job, "name": ended.name, "error": error}, now=now)
