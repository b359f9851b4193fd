"""A migrated meta store, and small values to put into it."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from sqlalchemy.ext.asyncio import AsyncEngine
from typing_extensions import override

from service.domain.graph import GraphStatus
from service.domain.job import Job, JobEvent
from service.domain.order import Order
from service.domain.parallelism import blocks
from service.meta_store.engine import connect
from service.meta_store.stores import PostgresStores
from service.ports.audit import itself
from service.ports.meta_store import Stores, Transaction
from service.ports.records import NewDml, NewJob, NewTableScan
from service.protocol.api import Registration
from service.protocol.barrier import Barrier, BarrierKind
from service.protocol.columns import Column, ColumnType, KeyColumn
from service.protocol.dml import Statement
from service.protocol.ids import (
    DATABASE_GRAPH,
    ActorId,
    CommandId,
    Epoch,
    FragmentId,
    Generation,
    JobId,
    RelationId,
    Vnode,
    WorkerId,
)
from service.protocol.mutation import Add, Mutation
from service.protocol.plan import PositionState, ScanType, TableScanPlan, VnodePosition
from service.protocol.relation import Relation, RelationKind
from service.protocol.report import ActorReport, Collected, FragmentReport, RelationReport
from service.protocol.stage import Condition, Input, Join, JoinKind, Stage, Value

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
LEASE = timedelta(seconds=10)
WORKER = WorkerId("w-1")
A_TEST = itself("a test")


class _Compiled(dict[Any, Any]):
    """Statements that were compiled for any engine: each test has one of its own, for the same driver and server."""

    @override
    def get(self, key: Any, default: Any = None) -> Any:
        return super().get(key[1:], default)

    @override
    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key[1:], value)


_COMPILED: Final = _Compiled()


@asynccontextmanager
async def stores_on(url: str) -> AsyncGenerator[tuple[PostgresStores, AsyncEngine]]:
    """Open stores on a database that is migrated."""
    engine = connect(url, application_name="tidefill-test").execution_options(compiled_cache=_COMPILED)
    try:
        yield PostgresStores(engine), engine
    finally:
        await engine.dispose()


def relation(name: str, kind: RelationKind = RelationKind.TABLE, *, vnode_count: int = 8) -> Relation:
    """Return a relation with a composite, descending key and a hidden column; its id is to be assigned."""
    return Relation(
        id=RelationId(0),
        name=name,
        kind=kind,
        columns=(
            Column(name="id", type=ColumnType.parse("bigint"), nullable=False),
            Column(name="name", type=ColumnType.parse("text")),
            Column(name="price", type=ColumnType.parse("numeric(12,2)")),
            Column(name="tags", type=ColumnType.parse("integer[]")),
            Column(name="_hidden", type=ColumnType.parse("date"), hidden=True),
        ),
        key=(KeyColumn(name="name", descending=True), KeyColumn(name="id")),
        vnode_count=vnode_count,
    )


def query_over(upstream: RelationId) -> Stage:
    """Return a projection of a relation."""
    driver = Input(alias="i", relation=upstream)
    return Stage(
        joins=(Join(kind=JoinKind.INNER, inputs=(driver,)),),
        where=(Condition(sql='"i"."id" > 0', spark="`i__id` > 0", inputs=("i",)),),
        rows=(
            Value(name="id", sql='"i"."id"', spark="`i__id`", column="id"),
            Value(name="name", sql='upper("i"."name")', spark="upper(`i__name`)"),
        ),
    )


def new_table(name: str) -> NewJob:
    """Return a table as CREATE TABLE asks for it."""
    fragments = (NewDml((((0, 7),),)),)
    return NewJob(relation(name), f"CREATE TABLE {name}", background=False, fragments=fragments)


def new_view(
    name: str,
    *upstreams: RelationId,
    parallelism: int = 2,
    rate_limit: int | None = None,
    order: Order = (),
    scan_type: ScanType = ScanType.ARRANGEMENT_BACKFILL,
) -> NewJob:
    """Return a view with one scan for each upstream."""
    actors = blocks(8, parallelism)
    scans = tuple(
        NewTableScan(
            actors=actors,
            upstream=upstream,
            query=query_over(upstream),
            scan_type=scan_type,
            rate_limit=rate_limit,
        )
        for upstream in upstreams
    )
    target = relation(name, RelationKind.MATERIALIZED_VIEW)
    return NewJob(target, f"CREATE MATERIALIZED VIEW {name}", background=True, fragments=scans, order=order)


async def add_created(tx: Transaction, new: NewJob) -> Job:
    """Store a job and bring it to Created."""
    job = await add_creating(tx, new)
    return await tx.jobs.move(job.id, JobEvent.FINISHED, now=NOW)


async def add_creating(tx: Transaction, new: NewJob) -> Job:
    """Store a job and bring it to Creating."""
    job = await tx.jobs.add(new, now=NOW)
    return await tx.jobs.move(job.id, JobEvent.STARTED, now=NOW)


async def table_and_view(stores: Stores, *, parallelism: int = 2) -> tuple[Job, Job]:
    """Store a created table `t` and a creating view `m` over it."""
    async with stores.begin() as tx:
        table = await add_created(tx, new_table("t"))
        return table, await add_creating(tx, new_view("m", table.relation, parallelism=parallelism))


async def scan_of(stores: Stores, job: JobId) -> TableScanPlan:
    """Return the plan of the job's first scan."""
    async with stores.begin() as tx:
        (plan,) = await tx.plans.of([job])
    return plan.table_scans[0]


def registration(worker: WorkerId = WORKER) -> Registration:
    """Return how a worker presents itself."""
    return Registration(worker=worker, graph=DATABASE_GRAPH, pid=7, host="h", parallelism=2)


async def running(stores: Stores, worker: WorkerId = WORKER) -> None:
    """Register a worker and let it run the database graph."""
    async with stores.begin() as tx:
        await tx.workers.register(registration(worker), now=NOW)
        await tx.graphs.set_status(DATABASE_GRAPH, GraphStatus.RUNNING, now=NOW, worker=worker)


def barrier(
    curr: int,
    prev: int = 0,
    *,
    kind: BarrierKind = BarrierKind.CHECKPOINT,
    generation: int = 0,
    mutation: Mutation | None = None,
    statements: tuple[Statement, ...] = (),
) -> Barrier:
    """Return a barrier of the database graph."""
    return Barrier(
        graph=DATABASE_GRAPH,
        generation=Generation(generation),
        prev=Epoch(prev),
        curr=Epoch(curr),
        kind=kind,
        mutation=Add(jobs=()) if kind is BarrierKind.INITIAL else mutation,
        statements=statements,
    )


async def inject(stores: Stores, one: Barrier, *commands: CommandId, worker: WorkerId = WORKER) -> Barrier:
    """Record a barrier."""
    async with stores.begin() as tx:
        await tx.barriers.record(one, worker=worker, now=NOW, commands=commands)
    return one


async def committed(stores: Stores, epoch: int = 10) -> None:
    """Register a worker and commit the first epoch of the database graph."""
    await running(stores)
    await inject(stores, barrier(epoch))
    async with stores.begin() as tx:
        await tx.barriers.answer(collected(epoch), now=NOW)
        await tx.barriers.commit(DATABASE_GRAPH, Epoch(epoch), now=NOW)


def collected(
    epoch: int,
    *reports: FragmentReport,
    generation: int = 0,
    worker: WorkerId = WORKER,
    keys: dict[RelationId, int] | None = None,
) -> Collected:
    """Return what a worker answers."""
    return Collected(
        worker=worker,
        graph=DATABASE_GRAPH,
        generation=Generation(generation),
        epoch=Epoch(epoch),
        reports=reports,
        relations=tuple(RelationReport(relation=one, key_count_delta=delta) for one, delta in (keys or {}).items()),
        timings_ms={"run": 1.5},
    )


def report(
    actor: int, fragment: FragmentId, rows: int, *positions: VnodePosition, finished: bool = False
) -> ActorReport:
    """Return what one scan actor says."""
    return ActorReport(
        actor=ActorId(actor), fragment=fragment, rows=rows, positions=positions, finished=finished, snapshot_rows=rows
    )


async def committed_rows(tx: Transaction, fragment: FragmentId, actor: ActorId) -> int:
    """Return what an actor of an open scan has read as of the last commit: less would be refused."""
    less = await tx.fragments.receded([report(actor, fragment, 0)])
    return 0 if less is None else less.committed


def at(vnode: int, *key: str | None, rows: int) -> VnodePosition:
    """Return a position in progress."""
    return VnodePosition(vnode=Vnode(vnode), state=PositionState.IN_PROGRESS, key=key, rows=rows)


def done(vnode: int, *, rows: int) -> VnodePosition:
    """Return a completed position."""
    return VnodePosition(vnode=Vnode(vnode), state=PositionState.COMPLETED, rows=rows)
