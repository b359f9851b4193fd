"""Why jobs wait, read in the transaction that shows them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from service.domain.job import CREATING, Job, JobState
from service.domain.parameters import SystemParameters
from service.domain.waiting import Around, Reason, Waiting, why
from service.operations.barriers import pace_of
from service.operations.world import World
from service.ports.meta_store import Transaction
from service.protocol.ids import GraphId, JobId

UNDER_WAY = CREATING | {JobState.CANCELLING, JobState.DROPPING}


async def waits_of(world: World, tx: Transaction, jobs: Sequence[Job]) -> Mapping[JobId, Waiting]:
    """Return why those of these jobs wait that do."""
    under_way = [job for job in jobs if job.state in UNDER_WAY]
    if not under_way:
        return {}
    now = world.clock.now()
    around = {graph: await _around(world, tx, graph) for graph in {job.graph for job in under_way}}
    scans = await tx.fragments.scans([job.id for job in under_way])
    queued = any(job.state is JobState.QUEUED for job in under_way)
    queue = [job.id for job in await tx.jobs.where({JobState.QUEUED})] if queued else []
    places = {job: place for place, job in enumerate(queue, start=1)}
    found: dict[JobId, Waiting] = {}
    for job in under_way:
        waiting = why(job, scans[job.id], replace(around[job.graph], place=places.get(job.id)), now=now)
        if waiting is not None and waiting.reason is Reason.BARRIER:
            waiting = replace(waiting, text=f"{waiting.text}: actors {await _actors(tx, job)}")
        if waiting is not None:
            found[job.id] = waiting
    return found


async def _around(world: World, tx: Transaction, graph: GraphId) -> Around:
    state = await tx.graphs.state(graph)
    return Around(
        graph=await tx.graphs.view(graph, now=world.clock.now(), lease=world.worker_lease),
        pace=pace_of(world, graph, SystemParameters.of(await tx.parameters.all())),
        last_error=state["last_error"],
        paused=bool(state["paused"]),
        paused_since=state["paused_since"],
        own_workers=world.own_workers,
    )


async def _actors(tx: Transaction, job: Job) -> str:
    """Name the actors that have yet to pass the barrier: a worker answers for all of a job's at once."""
    fragments = await tx.fragments.detail(job.id)
    return ", ".join(str(actor["id"]) for one in fragments for actor in one["actors"] if not actor["finished"])
