"""Advance Snapshot jobs until they are in the database graph: build the index, follow the replay, merge, retire.

Each commit of the partial graph records how far the change log was replayed. When little is left, the transaction of
such a commit *merges* the job. It enqueues an Add in the database graph with the epoch that the job has consumed. The
first epoch there reads the changes since then, and the job is created with that epoch. No epoch of the partial graph is
in flight at the merge, so the job's table has no other writer. Next: `workers.backfill.reading`.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from service.domain.backoff import GRAPHS
from service.domain.errors import Exhausted, MetaError, Refused, Unavailable
from service.domain.graph import FailedIndex, GraphView
from service.domain.job import CREATING, Job, JobEvent, JobState
from service.domain.parameters import SystemParameters
from service.operations.jobs.failing import fail, tell_created
from service.operations.retrying import retried
from service.operations.world import Context, World
from service.ports.meta_store import Transaction
from service.ports.snapshots import Snapshot
from service.protocol.epoch import instant_of
from service.protocol.ids import DATABASE_GRAPH, Epoch, Generation, GraphId, JobId, Term
from service.protocol.mutation import Add, Pause
from service.protocol.plan import JobPlan, ScanType
from service.protocol.report import Collected
from service.telemetry.log import logger

LAG_MAX: Final = timedelta(seconds=3)
"""A job merges if at most this, or three barrier intervals, is left to replay. The database graph reads the rest."""
INDEX_LATER_ROWS: Final = 100_000
"""Above this number of rows, building the storage-order index after the load is faster than maintaining it."""
INDEX_TRIES: Final = 3
"""The job fails after this many attempts for which the state store lacked space, memory or time."""
INDEX_PAUSE: Final = timedelta(seconds=30)
"""The pause before the next attempt. Meanwhile other jobs may end, or an operator may free resources."""

log = logger("snapshots")


def is_snapshot(plan: JobPlan) -> bool:
    """Whether a job is created in a partial graph."""
    return any(scan.scan_type is ScanType.SNAPSHOT_BACKFILL for scan in plan.table_scans)


def lag_max(parameters: SystemParameters) -> timedelta:
    """Return the largest remaining replay with which a job merges."""
    return max(LAG_MAX, 3 * timedelta(milliseconds=parameters.barrier_interval_ms))


async def many_rows(tx: Transaction, plan: JobPlan) -> bool:
    """Whether a job loads so many rows that its index is built after the load."""
    entries = [await tx.catalog.get(scan.upstream.id) for scan in plan.table_scans]
    return sum(entry.key_count for entry in entries if entry is not None) > INDEX_LATER_ROWS


async def replay_upto(tx: Transaction, graph: GraphId) -> Epoch | None:
    """Return the epoch up to which the change log may be replayed, or None before the job's index is built."""
    snapshot = await tx.snapshots.of_graph(graph)
    return await tx.snapshots.readable(snapshot.job) if snapshot is not None and snapshot.indexed else None


async def is_read(tx: Transaction, graph: GraphId) -> bool:
    """Whether users read what the graph writes: its job stays, and is created."""
    snapshot = await tx.snapshots.of_graph(graph)
    job = None if snapshot is None or not snapshot.stays else await tx.jobs.get(snapshot.job)
    return job is not None and job.state not in CREATING | {JobState.CANCELLING}


async def follow(
    tx: Transaction,
    graph: GraphId,
    answers: Sequence[Collected],
    *,
    upto: Epoch | None = None,
    lag_max: timedelta,
    now: datetime,
) -> bool:
    """Record how far the committed epoch has replayed the change log. Merge the job if little is left.

    A job that stays is created once its replay has come to the end of the log as it was when the epoch began (`upto`).
    Later changes would always be there if its epochs take long. Return whether the job merges.
    """
    consumed = consumed_by(answers)
    if consumed is None:
        return False
    snapshot, job = await _recorded(tx, graph, consumed)
    if job is None or job.state is not JobState.CREATING:
        return False
    if not snapshot.stays:
        return await _merged(tx, graph, job, consumed, lag_max=lag_max, now=now)
    if upto is not None and consumed >= upto:
        await tx.jobs.move(job.id, JobEvent.FINISHED, now=now)
        # Its actors fit the worker whenever a generation begins.
        await tx.rescaling.settled([job.id])
        await tell_created(tx, job, now=now, consumed=str(consumed), own_graph=job.own_graph)
    return False


def consumed_by(answers: Sequence[Collected]) -> Epoch | None:
    """Return the epoch up to which the change log has been replayed, if one of the answers tells."""
    return max((answer.consumed for answer in answers if answer.consumed is not None), default=None)


async def _recorded(tx: Transaction, graph: GraphId, consumed: Epoch) -> tuple[Snapshot, Job | None]:
    snapshot = await tx.snapshots.of_graph(graph)
    assert snapshot is not None
    # Users' calls lock the job before the snapshot. Lock in the same order, so that the two cannot deadlock.
    job = await tx.jobs.hold(snapshot.job)
    await tx.snapshots.replayed(graph, consumed)
    return snapshot, job


async def _merged(
    tx: Transaction, graph: GraphId, job: Job, consumed: Epoch, *, lag_max: timedelta, now: datetime
) -> bool:
    lag = instant_of(await _committed(tx)) - instant_of(consumed)
    if lag > lag_max:
        return False
    await tx.partial_graphs.merge(graph)
    (plan,) = await tx.plans.of([job.id])
    await tx.commands.add(DATABASE_GRAPH, Add(jobs=(plan,)), asked_by=f"job {job.id}", now=now)
    facts = {"job": job.id, "name": job.name, "consumed": str(consumed), "lag_seconds": lag.total_seconds()}
    await tx.events.append("job.merging", facts, now=now)
    return True


async def pause_all(tx: Transaction, *, now: datetime) -> None:
    """Enqueue a Pause in every partial graph that has not merged."""
    for graph in await tx.partial_graphs.unmerged():
        await tx.commands.add(graph, Pause(), asked_by="pause_on_next_bootstrap", now=now)


@retried
async def build_index(world: World, view: GraphView, *, term: Term) -> None:
    """Build the indexes of the job's tables and drop its logs, then record that the snapshot is consumed.

    No task writes the tables meanwhile. Repeatable.
    """
    graph = view.graph
    async with world.stores.begin(term) as tx:
        snapshot = await tx.snapshots.of_graph(graph)
        plans = [] if snapshot is None else await tx.plans.of([snapshot.job])
    for plan in plans:
        try:
            for output in plan.outputs:
                await world.state_store.tables.end_load(output, term=term)
        except (Refused, Unavailable) as error:
            await _index_failed(world, view, plan.id, error, term=term)
            return
    async with world.stores.begin(term) as tx:
        if snapshot is not None:
            parameters = SystemParameters.of(await tx.parameters.all())
            stored, job = await _recorded(tx, graph, snapshot.epoch)
            if job is not None and job.state is JobState.CREATING and not stored.stays:
                limit, now = lag_max(parameters), world.clock.now()
                await _merged(tx, graph, job, snapshot.epoch, lag_max=limit, now=now)
        await tx.snapshots.index_built(graph)


@retried
async def _index_failed(world: Context, view: GraphView, job: JobId, error: MetaError, *, term: Term) -> None:
    """Schedule another attempt, or fail the job, because it occupies a permit (I13).

    The job fails at once if the state store refuses the index, and after `INDEX_TRIES` if it lacks space, memory or
    time. If the store is unreachable, the attempts continue.
    """
    failed = view.policy.index_failed
    failures = (0 if failed is None else failed.failures) + isinstance(error, Exhausted)
    over = isinstance(error, Refused) or failures >= INDEX_TRIES
    log.warning("index.not_built", graph=view.graph, job=job, failures=failures, error=str(error))
    async with world.stores.begin(term) as tx:
        now = world.clock.now()
        await tx.jobs.hold_all([job])
        # Also for a job that is being stopped, which `fail` leaves unchanged.
        due = now + (INDEX_PAUSE if isinstance(error, Exhausted) else GRAPHS.longest)
        await tx.snapshots.index_failed(view.graph, FailedIndex(failures, str(error), due))
        if over:
            await fail(tx, job, f"the index of its table could not be built: {error}", now=now)


@retried
async def retire(world: World, view: GraphView, *, term: Term) -> None:
    """Remove an unused partial graph, first from the state store, so that the store refuses late writers."""
    await world.state_store.fences.retire(view.graph, Generation(view.generation + 1), term=term)
    async with world.stores.begin(term) as tx:
        await tx.partial_graphs.retire(view.graph)
    log.info("graph.retired", graph=view.graph)


async def _committed(tx: Transaction) -> Epoch:
    return (await tx.graphs.state(DATABASE_GRAPH)).committed
