"""Compute the progress of jobs. The queries run in the caller's transaction, and their number does not grow with jobs.

Next: `service.operations.status.wait_reasons`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from service.domain.fair_queue import Queued, start_order
from service.domain.graph import GraphStatus
from service.domain.job import Job, JobState
from service.domain.progress import JobProgress, ScanProgress, SnapshotProgress, of_job
from service.ports.meta_store import Transaction
from service.ports.records import GraphState
from service.ports.snapshots import Snapshot
from service.protocol.epoch import instant_of
from service.protocol.ids import DATABASE_GRAPH, Epoch, FragmentId, GraphId, JobId
from service.protocol.vnodes import Runs


@dataclass(frozen=True, slots=True)
class Standing:
    """The status snapshot of some jobs: their scans, their graphs and the database graph, and their queue positions."""

    scans: Mapping[JobId, Sequence[ScanProgress]]
    graphs: Mapping[GraphId, GraphState]
    places: Mapping[JobId, int]

    def graph_of(self, job: Job) -> GraphId:
        """Return a job's graph. If it was retired meanwhile, the job is in the database graph."""
        return job.graph if job.graph in self.graphs else DATABASE_GRAPH


async def standing_of(tx: Transaction, jobs: Sequence[Job]) -> Standing:
    """Read the status snapshot of these jobs as of the committed epoch."""
    queued = any(job.state is JobState.QUEUED for job in jobs)
    return Standing(
        scans=await tx.fragments.scans([job.id for job in jobs]),
        graphs=await tx.graphs.states({DATABASE_GRAPH, *(job.graph for job in jobs)}),
        places=await _places(tx) if queued else {},
    )


async def _places(tx: Transaction) -> Mapping[JobId, int]:
    """Return the place of each queued job, from 1: the order in which permits are given now."""
    return {job: place for place, job in enumerate(await in_turn(tx, await tx.queue.waiting()), start=1)}


async def in_turn(tx: Transaction, queued: Sequence[Queued]) -> Sequence[JobId]:
    """Return queued jobs in the order in which they start. `queued` is in the order of asking."""
    tenants = {one.tenant for one in queued}
    # The jobs of one tenant start in the order in which they were asked for, whatever it holds.
    return start_order(queued, await tx.queue.shares(tenants) if len(tenants) > 1 else {})


async def progress_of(
    tx: Transaction, jobs: Sequence[Job], standing: Standing | None = None
) -> Mapping[JobId, JobProgress]:
    """Return the progress of these jobs as of the committed epoch."""
    if not jobs:
        return {}
    known = await standing_of(tx, jobs) if standing is None else standing
    snapshots = await tx.snapshots.of_jobs([job.id for job in jobs])
    layouts = await tx.actors.layouts(snapshots) if snapshots else {}
    committed = known.graphs[DATABASE_GRAPH].committed
    recovering = {graph: _recovering(state) for graph, state in known.graphs.items()}
    return {
        job.id: of_job(
            job.state,
            scans := known.scans.get(job.id, ()),
            started=any(scan.at is not None for scan in scans),
            queue_place=known.places.get(job.id),
            queued_by=job.queued_by,
            paused=known.graphs[graph := known.graph_of(job)].paused,
            recovering=recovering[graph],
            snapshot=None if job.id not in snapshots else _snapshot(snapshots[job.id], layouts[job.id], committed),
        )
        for job in jobs
    }


def _recovering(state: GraphState) -> str | None:
    # A graph without an error has just been made, and starts for the first time.
    return None if state.status == GraphStatus.RUNNING else state.last_error


def _snapshot(snapshot: Snapshot, layouts: Mapping[FragmentId, Sequence[Runs]], committed: Epoch) -> SnapshotProgress:
    actors = sum(len(layout) for layout in layouts.values())
    if snapshot.consumed is None:
        return SnapshotProgress(actors, merged=snapshot.merged)
    lag = max(instant_of(committed) - instant_of(snapshot.consumed), timedelta(0))
    return SnapshotProgress(actors, lag, merged=snapshot.merged)
