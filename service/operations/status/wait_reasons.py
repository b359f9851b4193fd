"""Find the reasons why jobs wait, in the transaction of the caller."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from service.domain.graph import GraphView
from service.domain.job import CREATING, Job, JobState
from service.domain.launching import Launch
from service.domain.parameters import SystemParameters
from service.domain.progress import follows_unread
from service.domain.waiting import Around, Reason, Waiting, why
from service.operations.barriers.advance import pace_of
from service.operations.jobs.standing import Standing
from service.operations.world import World
from service.ports.meta_store import Transaction
from service.protocol.ids import DATABASE_GRAPH, GraphId, JobId

UNDER_WAY = CREATING | {JobState.CANCELLING, JobState.DROPPING}


async def waits_of(world: World, tx: Transaction, jobs: Sequence[Job], standing: Standing) -> Mapping[JobId, Waiting]:
    """Return the reason for each of these jobs that waits."""
    away = {one.job: Waiting(Reason.SOURCE, one.reason, one.since) for one in await tx.lakes.away()}
    found = {job.id: away[job.id] for job in jobs if job.id in away and job.state is JobState.CREATED}
    under_way = [job for job in jobs if _waits(job, standing)]
    if not under_way:
        return found
    now = world.clock.now()
    around = await _around(world, tx, standing, now=now)
    for job in under_way:
        here = around.get(job.graph) or around[DATABASE_GRAPH]
        waiting = why(job, standing.scans[job.id], here, now=now, place=standing.places.get(job.id))
        if waiting is not None:
            found[job.id] = waiting
    late = [job for job, waiting in found.items() if waiting.reason is Reason.BARRIER]
    # The worker answers once for all actors, so every unfinished actor of the job is named.
    for job, actors in (await tx.status.unfinished_actors(late) if late else {}).items():
        text = f"{found[job].text}: actors {', '.join(str(actor) for actor in actors)}"
        found[job] = replace(found[job], text=text)
    return found


def _waits(job: Job, standing: Standing) -> bool:
    return job.state in UNDER_WAY or (job.state is JobState.CREATED and follows_unread(standing.scans[job.id]))


async def _around(world: World, tx: Transaction, standing: Standing, *, now: datetime) -> Mapping[GraphId, Around]:
    parameters = SystemParameters.of(await tx.parameters.all())
    led = await tx.leases.held()
    views = await tx.graphs.views(standing.graphs, now=now, lease=world.workers.lease)
    launches: Mapping[GraphId, Launch] = {}
    if any(view.worker not in view.alive for view in views.values()):
        launches = {launch.graph: launch for launch in await tx.launches.all()}
    return {
        graph: Around(
            graph=view,
            pace=pace_of(world, view.policy, parameters),
            last_error=standing.graphs[graph].last_error,
            paused=standing.graphs[graph].paused,
            paused_since=standing.graphs[graph].paused_since,
            paused_by=standing.graphs[graph].paused_by,
            led=led,
            own_workers=world.workers.startable,
            launch=launches.get(_served_by(view)),
        )
        for graph, view in views.items()
    }


def _served_by(view: GraphView) -> GraphId:
    """Return the graph whose worker serves this one."""
    return DATABASE_GRAPH if view.policy.own_worker is None else view.graph
