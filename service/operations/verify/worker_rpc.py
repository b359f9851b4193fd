"""Verify a view against its query, and a followed table against the external one."""

from contextlib import AsyncExitStack
from datetime import timedelta

from service.domain.errors import Conflict, Invalid, Moved, NotFound, Unavailable
from service.domain.job import Job, JobState
from service.domain.stage_engine import check_verifiable
from service.operations.asking import Asking, computing
from service.operations.jobs.stages import stages_of
from service.operations.leaving import Gone
from service.operations.polling import until
from service.operations.retrying import retried
from service.operations.status.staleness import broken_of, notice
from service.operations.verify import by_store, followed
from service.operations.world import Context, World
from service.ports.audit import Asker
from service.ports.meta_store import Transaction
from service.protocol.ids import DATABASE_GRAPH, Epoch, JobId, RequestId
from service.protocol.plan import JobPlan, OperatorPlan, TableScanPlan, VnodePosition
from service.protocol.relation import RelationKind
from service.protocol.request import Verified, Verify, VerifyStage
from service.protocol.stage import Engine
from service.protocol.stage_spark import verify_reason

VERIFY_WAIT: timedelta = timedelta(minutes=30)
MOVED_WAIT: timedelta = timedelta(minutes=3)
"""How long a view is asked for again whose table in a lake has got changes since its epoch was read."""
_UNASSIGNED = RequestId(0)
"""A placeholder. The meta store assigns the id."""


@retried
async def verify(
    world: World, job: JobId, engine: Engine | None = None, *, asked_by: Asker, gone: Gone | None = None
) -> Verified:
    """Verify a view or a followed table.

    Spark compares a view with its query over its upstreams at a committed epoch. With the store engine the state store
    computes the query. Without an engine, the store computes the queries of views with joins or aggregates. A followed
    table is compared with its external table.

    If the caller is `gone`, it stops waiting for its turn, and the worker stops comparing. With the store engine, and
    of a followed table, a running verification continues to its end. Raises NotFound, Conflict, Invalid, Unavailable.
    """
    async with world.stores.begin(by=asked_by) as tx:
        await _verifiable(tx, job)
    async with computing(world.of(asked_by.actor), asked_by, gone) as turn:
        return await _verified(turn, job, engine)


async def _verified(turn: Asking, job: JobId, engine: Engine | None) -> Verified:
    world = turn.world
    async with world.stores.begin() as tx:
        found = await _verifiable(tx, job)
        (plan,) = await tx.plans.of([job])
    stages = stages_of(plan)
    staged = () if plan.projects and all(verify_reason(one) is None for one in stages) else stages
    constant = found.kind is RelationKind.MATERIALIZED_VIEW and not plan.table_scans
    reads = (one for _, computing in plan.staged for one in computing.reads)
    lake = any(one.lake is not None for one in (plan.relation, *reads))
    if engine is Engine.STORE or ((staged or constant) and engine is None and not lake):
        return await _said_stale(world, found, await by_store.compare(world, found))
    check_verifiable(found.name, staged, created=found.state is JobState.CREATED)
    if found.kind is RelationKind.TABLE:
        return await followed.compare(world, plan)

    async def look() -> Verified | None:
        try:
            return await _compared(turn, job, engine, lake=lake)
        except Moved:
            return None

    answer = await until(world, look, limit=MOVED_WAIT)
    if answer is None:
        raise Unavailable(f"the table of {found.name} gets newer changes again and again: try again later")
    return await _said_stale(world, found, answer)


async def _compared(turn: Asking, job: JobId, engine: Engine | None, *, lake: bool) -> Verified:
    """Have Spark compare a view at the present epochs. Raises Moved, Conflict, Invalid, Unavailable."""
    world = turn.world
    async with world.stores.begin() as tx:
        epochs = await _epochs(tx, await _verifiable(tx, job))
        while True:
            (plan,) = await tx.plans.of([job])
            found, seen = await _verifiable(tx, job), epochs
            epochs = await _epochs(tx, found)
            if epochs == seen:
                break  # Otherwise an epoch was committed in between, and the positions may not match the epochs.
        request = _request(found, plan, *epochs)
        # The holder of a pin must be unique, so each verification reserves a number.
        asked = await tx.statements.reserve()
    try:
        return await _by_spark(turn, found, request, f"verify {asked}")
    except Invalid:
        # A value that Spark does not hold, and Postgres does.
        if engine is not None or lake or found.state is not JobState.CREATED:
            raise
        return await by_store.compare(world, found)


async def _by_spark(turn: Asking, job: Job, request: Verify, holder: str) -> Verified:
    """Have a worker answer while the epochs that it reads are pinned. Raises Invalid and Unavailable."""
    world = turn.world
    async with AsyncExitStack() as pins:
        await pins.enter_async_context(world.state_store.pins.pin(DATABASE_GRAPH, request.epoch, holder=holder))
        if job.in_partial_graph and job.state is JobState.CREATED:
            await pins.enter_async_context(world.state_store.pins.pin(job.graph, request.relation_epoch, holder=holder))
        answer = await turn.ask(request, limit=VERIFY_WAIT)
        assert isinstance(answer, Verified), answer
        return answer


def _request(job: Job, plan: JobPlan, epoch: Epoch, relation_epoch: Epoch) -> Verify:
    """Return the question to a worker. Raises Conflict if a job is not built from an upstream."""
    whole = job.state is JobState.CREATED
    if not plan.table_scans:
        raise Conflict(f"job {job.id} is a {job.kind}: only what is built from an upstream can be verified")
    return Verify(
        id=_UNASSIGNED,
        graph=DATABASE_GRAPH,
        epoch=epoch,
        relation_epoch=relation_epoch,
        timeout_ms=int(VERIFY_WAIT.total_seconds() * 1000),
        relation=plan.relation,
        stages=tuple(
            VerifyStage(
                stage=stage,
                target=plan.written_by(computing),
                relations=computing.reads,
                positions=None if whole else _positions(computing),
            )
            for stage, computing in plan.staged
        ),
    )


def _positions(computing: TableScanPlan | OperatorPlan) -> tuple[VnodePosition, ...] | None:
    if isinstance(computing, OperatorPlan):
        return None
    return tuple(position for actor in computing.positioned for position in actor.positions)


async def _said_stale(world: Context, job: Job, answer: Verified) -> Verified:
    """Add a notice to the answer if the relation is not kept current, for example because its upstream is not."""
    async with world.stores.begin() as tx:
        broken = (await broken_of(tx)).get(job.relation)
    return answer if broken is None else answer.model_copy(update={"stale": notice(job.name, broken)})


async def _verifiable(tx: Transaction, job: JobId) -> Job:
    found = await tx.jobs.get(job)
    if found is None:
        raise NotFound(f"job {job} not found", kind="job")
    if found.state not in {JobState.CREATING, JobState.CREATED}:
        raise Conflict(f"job {job} is {found.state} and cannot be verified")
    return found


async def _epochs(tx: Transaction, job: Job) -> tuple[Epoch, Epoch]:
    """Return the epochs at which the upstreams and the view of a job match: (upstreams, view).

    Both are committed epochs, like the positions. The published epoch may be older.
    """
    created = job.state is JobState.CREATED and job.own_graph is None
    snapshot = None if created else (await tx.snapshots.of_jobs([job.id])).get(job.id)
    if snapshot is None:
        committed = (await tx.graphs.state(DATABASE_GRAPH)).committed
        return committed, committed
    if not snapshot.indexed:
        raise Conflict(f"job {job.id} loads its snapshot: it can be verified when its index has been built")
    committed = (await tx.graphs.state(snapshot.graph)).committed
    return (snapshot.epoch if snapshot.consumed is None else snapshot.consumed), committed
