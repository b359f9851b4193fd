"""Read the gauges of `/metrics` from the meta store. The counters are in `service.telemetry.metrics`."""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from service.domain.errors import Unavailable
from service.domain.graph import GraphStatus, GraphView
from service.domain.job import Job, JobState
from service.domain.launching import Launch
from service.domain.parameters import SystemParameters
from service.domain.progress import ScanProgress, metric_text, scan_backfill_type
from service.domain.readiness import age
from service.domain.waiting import Waiting
from service.operations.jobs.standing import standing_of
from service.operations.status.listing import listed
from service.operations.status.models import Broken
from service.operations.status.staleness import broken_of
from service.operations.status.wait_reasons import waits_of
from service.operations.world import World
from service.ports.meta_store import Transaction
from service.ports.records import CatalogOutline
from service.ports.source_records import Source
from service.protocol.epoch import NEVER, instant_of
from service.protocol.ids import DATABASE_GRAPH, Epoch, FragmentId, JobId, RelationId
from service.protocol.plan import ScanType
from service.telemetry.measures import (
    ConnectionsMeasure,
    FragmentMeasure,
    HeldUpMeasure,
    Measures,
    RelationMeasure,
    SnapshotMeasure,
    SourceMeasure,
    WaitMeasure,
)


async def scrape(world: World) -> bytes:
    """Return the metrics page."""
    return world.metrics.page(await measure(world))


async def measure(world: World) -> Measures:
    """Read the gauges in one transaction."""
    now = world.clock.now()
    async with world.stores.begin() as tx:
        state = await tx.graphs.state(DATABASE_GRAPH)
        parameters = SystemParameters.of(await tx.parameters.all())
        view = await tx.graphs.view(DATABASE_GRAPH, now=now, lease=world.workers.lease)
        entries = await tx.catalog.outlines()
        unfinished = await listed(tx)
        scans = await tx.fragments.scans([entry.job for entry in entries])
        sources = await tx.sources.all()
        staying = [job for job in await tx.jobs.where({JobState.CREATED}) if job.own_graph is not None]
        snapshots = await _snapshots(tx, [*unfinished, *staying], now=now, lease=world.workers.lease)
        broken = _broken(entries, await broken_of(tx))
        waits = await waits_of(world, tx, unfinished, await standing_of(tx, unfinished))
        held_up = _held_up(await tx.launches.all(), now=now)
    return Measures(
        jobs=Counter(str(entry.state) for entry in entries),
        queue_length=sum(job.state is JobState.QUEUED for job in unfinished),
        workers_alive=len(view.alive),
        in_flight_barriers=int(view.in_flight is not None),
        uncommitted_barriers=_in_flight(view),
        barrier_interval_ms=parameters.barrier_interval_ms,
        recoveries=state.recoveries,
        running=view.status is GraphStatus.RUNNING,
        paused=state.paused,
        committed_at=instant_of(view.committed).timestamp(),
        published_age_seconds=0.0 if view.published == NEVER else age(view.published, now=now).total_seconds(),
        fragments=_fragments(unfinished, scans, view.committed),
        limits=_limits(unfinished, scans),
        upstream_of=_upstreams(entries, scans),
        follower_of=_followers(entries, scans),
        sources=tuple(_source(one) for one in sources),
        snapshots=snapshots,
        broken=broken,
        snapshot_scans=_snapshot_scans(scans),
        relations=_relations(entries),
        waits=_waits(unfinished, waits, now=now),
        held_up=held_up,
        connections=await _connections(world),
    )


def _relations(entries: Sequence[CatalogOutline]) -> tuple[RelationMeasure, ...]:
    return tuple(RelationMeasure(one.id, one.name, str(one.kind).upper().replace(" ", "_")) for one in entries)


def _waits(unfinished: Sequence[Job], waits: Mapping[JobId, Waiting], *, now: datetime) -> tuple[WaitMeasure, ...]:
    found = ((job, waits[job.id]) for job in unfinished if job.id in waits)
    return tuple(
        WaitMeasure(job.id, job.name, one.reason, None if one.since is None else (now - one.since).total_seconds())
        for job, one in found
    )


def _upstreams(
    entries: Sequence[CatalogOutline], scans: Mapping[JobId, Sequence[ScanProgress]]
) -> Mapping[FragmentId, int]:
    ids = {entry.name: int(entry.id) for entry in entries}
    return {
        scan.fragment: ids[scan.upstream]
        for found in scans.values()
        for scan in found
        if not scan.external and scan.upstream in ids
    }


def _snapshot_scans(scans: Mapping[JobId, Sequence[ScanProgress]]) -> frozenset[FragmentId]:
    every = (scan for found in scans.values() for scan in found)
    return frozenset(scan.fragment for scan in every if scan.scan_type is ScanType.SNAPSHOT_BACKFILL)


async def _connections(world: World) -> ConnectionsMeasure | None:
    try:
        found = await world.state_store.gauge.measure()
    except Unavailable:
        return None
    return ConnectionsMeasure(found.connections, found.connections_max)


def _followers(
    entries: Sequence[CatalogOutline], scans: Mapping[JobId, Sequence[ScanProgress]]
) -> Mapping[FragmentId, int]:
    return {scan.fragment: int(entry.id) for entry in entries for scan in scans[entry.job] if scan.external}


def _broken(entries: Sequence[CatalogOutline], broken: Mapping[RelationId, Broken]) -> tuple[tuple[str, str, str], ...]:
    named = ((entry, broken.get(entry.id)) for entry in entries)
    return tuple((str(entry.job), entry.name, one.state) for entry, one in named if one is not None)


def _limits(unfinished: Sequence[Job], scans: Mapping[JobId, Sequence[ScanProgress]]) -> Mapping[FragmentId, int]:
    found = (scan for job in unfinished for scan in scans.get(job.id, ()))
    return {scan.fragment: scan.rate_limit for scan in found if scan.rate_limit is not None}


def _source(one: Source) -> SourceMeasure:
    return SourceMeasure(one.name, one.standing.lag_bytes, one.standing.retained_bytes, one.standing.commit_lag_ms)


async def _snapshots(
    tx: Transaction, jobs: Sequence[Job], *, now: datetime, lease: timedelta
) -> tuple[SnapshotMeasure, ...]:
    alone = {job.id: job for job in jobs}
    found = [one for one in (await tx.snapshots.of_jobs(alone)).values() if not one.merged]
    graphs = await tx.graphs.views({DATABASE_GRAPH, *(one.graph for one in found)}, now=now, lease=lease)
    committed = graphs[DATABASE_GRAPH].committed
    return tuple(
        SnapshotMeasure(
            relation=alone[one.job].relation,
            lag=max(committed - (one.consumed or one.epoch), 0),
            in_flight=_in_flight(graphs[one.graph]),
        )
        for one in found
        if one.graph in graphs
    )


def _in_flight(view: GraphView) -> int:
    return view.uncommitted + (view.in_flight is not None)


def _held_up(launches: Sequence[Launch], *, now: datetime) -> tuple[HeldUpMeasure, ...]:
    """Return the longest wait of each graph and cause."""
    found: dict[tuple[int, str], float] = {}
    for launch in launches:
        if launch.held is not None and launch.end is None:
            place = (launch.graph, launch.held.cause)
            found[place] = max(found.get(place, 0.0), (now - launch.held.since).total_seconds())
    return tuple(HeldUpMeasure(graph, cause, seconds) for (graph, cause), seconds in found.items())


def _fragments(
    unfinished: Sequence[Job], scans: Mapping[JobId, Sequence[ScanProgress]], committed: Epoch
) -> tuple[FragmentMeasure, ...]:
    return tuple(
        FragmentMeasure(
            (
                str(job.id),
                str(scan.fragment),
                # Positions are stored in the meta store, so there is no state table to name.
                "",
                str(job.relation),
                job.name,
                job.kind.upper(),
                scan_backfill_type(scan),
                str(committed),
                "TABLE",
                metric_text(scan),
            )
        )
        for job in unfinished
        for scan in scans.get(job.id, ())
    )
