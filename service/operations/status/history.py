"""Read the history of barriers, commands and events, and the state of graphs and workers. Nothing here changes it."""

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import TypeVar

from service.domain.errors import NotFound
from service.domain.graph import GraphStatus
from service.domain.job import IN_GRAPH, Job
from service.domain.launching import Launch
from service.operations.polling import until
from service.operations.status.models import BarrierPage, BarrierView, CommandView, GraphDetail
from service.operations.world import Arrival, Context, World
from service.ports.records import BarrierRecord, Command, Event, WorkerRecord
from service.protocol.ids import DATABASE_GRAPH, CommandId, Epoch, GraphId, JobId

T = TypeVar("T")


async def barriers(world: World, *, limit: int, before: Epoch | None) -> BarrierPage:
    """Return the newest barriers before `before`, newest first."""
    async with world.calls.long_pages.turn():
        async with world.stores.begin() as tx:
            found = await tx.barriers.history(DATABASE_GRAPH, limit=limit + 1, before=before)
        views = tuple(_barrier(record) for record in found[:limit])
    return BarrierPage(views, views[-1].epoch if len(found) > limit else None)


async def command(world: Context, wanted: CommandId) -> CommandView:
    """Return a command with its state. Raises NotFound."""
    async with world.stores.begin() as tx:
        found = await tx.commands.get(wanted)
        if found is None:
            raise NotFound(f"command {wanted} not found", kind="command")
        published = (await tx.graphs.state(found.graph)).published
    return _command(found, published)


async def graphs(world: Context) -> list[GraphDetail]:
    """Return the database graph, as a list with one element."""
    async with world.stores.begin() as tx:
        state = await tx.graphs.state(DATABASE_GRAPH)
    return [
        GraphDetail(
            graph=DATABASE_GRAPH,
            status=state.status,
            generation=state.generation,
            committed=state.committed,
            published=state.published,
            paused=state.paused,
            recoveries=state.recoveries,
            last_error=state.last_error,
        )
    ]


async def workers(world: World) -> Sequence[WorkerRecord]:
    """Return the registered workers."""
    async with world.stores.begin() as tx:
        return await tx.workers.all(now=world.clock.now(), lease=world.workers.lease)


async def jobs_of(world: World, graphs: Collection[GraphId]) -> Mapping[GraphId, Job]:
    """Return the job that each of these graphs is of. The database graph is of none."""
    found: dict[GraphId, Job] = {}
    async with world.stores.begin() as tx:
        for graph in set(graphs) - {DATABASE_GRAPH}:
            for job in await tx.jobs.where(graph=graph):
                found[graph] = job
    return found


async def job_names(world: Context, jobs: Collection[JobId]) -> Mapping[JobId, str]:
    """Return the names of the relations of these jobs, of those that exist. An ended job keeps its name."""
    if not jobs:
        return {}
    async with world.stores.begin() as tx:
        return {job.id: job.name for job in await tx.jobs.where(ids=jobs)}


async def worker_of(world: World, wanted: JobId) -> WorkerRecord | None:
    """Return the worker that runs a job's graph. None while no worker does, or if the job has no graph any more."""
    now, lease = world.clock.now(), world.workers.lease
    async with world.stores.begin() as tx:
        job = await tx.jobs.get(wanted)
        if job is None or job.state not in IN_GRAPH:
            return None
        views = await tx.graphs.views({job.graph, DATABASE_GRAPH}, now=now, lease=lease)
        # The graph of a snapshot job ends, and its job goes on in the database graph.
        view = views.get(job.graph, views[DATABASE_GRAPH])
        if view.status is not GraphStatus.RUNNING or view.worker not in view.alive:
            return None
        return next((one for one in await tx.workers.all(now=now, lease=lease) if one.worker == view.worker), None)


async def launches(world: Context) -> Sequence[Launch]:
    """Return the launches of workers in a cluster, those of each graph oldest first."""
    async with world.stores.begin() as tx:
        return await tx.launches.all()


async def events(
    world: World, encode: Callable[[Event], T], *, after: int, limit: int, discreet: bool
) -> tuple[Sequence[T], int | None]:
    """Return the oldest events after `after`, each encoded, and the id after which there may be more. `discreet`: also
    those that only admins may see.
    """
    async with world.calls.long_pages.turn():
        async with world.stores.begin() as tx:
            found = await tx.events.since(after, limit=limit, discreet=discreet)
            full = len(found) == limit
            # Large events make a page shorter.
            more = full or bool(found and await tx.events.since(found[-1].id, limit=1, discreet=discreet))
        return [encode(event) for event in found], found[-1].id if more else None


async def newest_event(world: Context) -> int:
    """Return the id of the newest event, or 0 if there is none."""
    async with world.stores.begin() as tx:
        return await tx.events.newest()


async def next_events(world: World, *, after: int, limit: int, patience: timedelta, discreet: bool) -> Sequence[Event]:
    """Wait for events after `after` and return the oldest ones. Return no events after `patience`."""

    async def look() -> Sequence[Event] | None:
        return await world.calls.arrivals.get((after, limit, discreet), partial(_arrivals, world)) or None

    return await until(world, look, limit=patience) or []


async def _arrivals(world: Context, wanted: Collection[Arrival]) -> Mapping[Arrival, Sequence[Event]]:
    """Return the events after each one. All streams of a kind that are up to date share one key."""
    async with world.stores.begin() as tx:
        return {
            (after, limit, discreet): await tx.events.since(after, limit=limit, discreet=discreet)
            for after, limit, discreet in wanted
        }


def _barrier(record: BarrierRecord) -> BarrierView:
    barrier = record.barrier
    return BarrierView(
        epoch=barrier.curr,
        prev=barrier.prev,
        kind=barrier.kind,
        generation=barrier.generation,
        mutation=None if barrier.mutation is None else barrier.mutation.type,
        injected_at=record.injected_at,
        collected_at=record.collected_at,
        committed_at=record.committed_at,
        published_at=record.published_at,
        collect_ms=_between(record.injected_at, record.collected_at),
        commit_ms=_between(record.collected_at, record.committed_at),
        publish_ms=_between(record.committed_at, record.published_at),
        latency_ms=_between(record.injected_at, record.published_at),
        failure=record.failure,
        timings_ms=dict(record.timings_ms),
    )


def _command(found: Command, published: Epoch) -> CommandView:
    mutation = found.mutation
    state = "queued"
    if found.error is not None:
        state = "refused"
    elif found.done and found.epoch is not None and published >= found.epoch:
        state = "applied"
    kind = "flush" if mutation is None else mutation.type
    epoch = found.epoch if state != "queued" else None
    return CommandView(found.id, kind, state, found.asked_by, epoch, found.error)


def _between(first: datetime | None, last: datetime | None) -> float | None:
    return None if first is None or last is None else (last - first) / timedelta(milliseconds=1)
