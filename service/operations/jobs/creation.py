"""Record that a job is created."""

from datetime import datetime

from service.domain.job import Job
from service.ports.meta_store import Transaction


async def tell_created(tx: Transaction, job: Job, *, now: datetime, **facts: str | None) -> None:
    """Record the event that a job is created, with what each engine has done for it."""
    work = (await tx.status.engine_work([job.id]))[job.id]
    engines = {name.value: {"jobs": done.jobs, "rows": done.rows} for name, done in work.items()}
    await tx.events.append("job.created", {"job": job.id, "name": job.name, **facts, "engines": engines}, now=now)
