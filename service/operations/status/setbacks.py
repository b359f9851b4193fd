"""Read why created jobs in graphs of their own make no progress: their graph fails again and again.

The graph of a sink does so while its target is away. The job stays Created, and `wait_reasons` names no wait.
"""

from collections.abc import Mapping, Sequence

from service.operations.status.models import JobView
from service.operations.world import Context
from service.protocol.ids import JobId


async def setbacks(world: Context, jobs: Sequence[JobView]) -> Mapping[JobId, str]:
    """Return the last error of the graph of each job that has failed since its last progress, with the number of these
    failures. Other jobs cost nothing.
    """
    failing = {job.id: job.failures for job in jobs if job.own_graph is not None and job.failures and job.error is None}
    if not failing:
        return {}
    async with world.stores.begin() as tx:
        found = [one for one in [await tx.jobs.get(job) for job in failing] if one is not None]
        states = await tx.graphs.states({one.graph for one in found})
    errors = {one.id: states[one.graph].last_error for one in found if one.graph in states}
    return {job: f"its graph failed {failing[job]} times in a row: {error}" for job, error in errors.items()}
