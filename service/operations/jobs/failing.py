"""The end of a job that cannot go on."""

from datetime import datetime

from service.domain.job import JobEvent, JobState
from service.ports.meta_store import Transaction
from service.protocol.ids import JobId


async def fail(tx: Transaction, job: JobId, error: str, *, now: datetime) -> None:
    """End a job that is created or being created with its error; nothing is changed of one that is being stopped."""
    before = await tx.jobs.get(job)
    if before is None or before.state not in {JobState.CREATING, JobState.CREATED}:
        return  # its stop is on its way, and that ends it as well
    ended = await tx.jobs.move(job, JobEvent.FAILED, now=now, error=error)
    if before.state is JobState.CREATING:
        # No user could read it yet. A created view stays readable as it was until it is dropped.
        await tx.catalog.remove(ended.relation)
    await tx.events.append("job.failed", {"job": job, "name": ended.name, "error": error}, now=now)
