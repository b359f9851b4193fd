"""Lives through a world: the texts go through the service's binder to plans, the plans through a worker's executors.

The database graph has the views that interleave, each snapshot view a graph of its own until it has caught up. After
every epoch a view holds no row that its text does not answer; once its history is read it holds exactly those.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from typing import Any

from pyspark.sql import SparkSession

from service.domain.placement import blocks
from service.protocol.barrier import Barrier, BarrierKind
from service.protocol.dml import Delete, InsertValues, Statement, Update
from service.protocol.ids import (
    DATABASE_GRAPH,
    ActorId,
    Epoch,
    FragmentId,
    Generation,
    GraphId,
    JobId,
    RelationId,
    RequestId,
    StatementId,
    Term,
    WorkerId,
)
from service.protocol.mutation import Add, Mutation, Resume
from service.protocol.plan import (
    ActorPlan,
    JobPlan,
    ScanType,
    SnapshotPlan,
    TableScanPlan,
    VnodePosition,
)
from service.protocol.relation import Relation
from service.protocol.report import ActorReport, DmlReport
from service.protocol.request import Analyze
from service.protocol.vnodes import vnodes_of
from service.sql.parse import parse
from service.sql.statements.tables import CreateTable, table_relation
from service.sql.statements.views import CreateMaterializedView
from service.sql.views.bind import bind_view, view_relation
from service.sql.views.keys import BoundScan, BoundView
from tests.differential.oracle import Oracle, Rows
from tests.differential.worlds import Change, Strategy, View, World, literal
from tests.support.state_store import Store
from tests.support.table_scans import scans_of, table_scans
from workers.graph import GraphExecutor
from workers.rpc.answer import analyze
from workers.runners.port import Stores
from workers.state_store.dml import DmlStore
from workers.state_store.postgres import PostgresStore

TERM = Term(1)
SETTLED_WITHIN = 200
_SCAN_TYPES = {
    Strategy.ARRANGEMENT: ScanType.ARRANGEMENT_BACKFILL,
    Strategy.NO_SHUFFLE: ScanType.BACKFILL,
    Strategy.SNAPSHOT: ScanType.SNAPSHOT_BACKFILL,
}


@dataclass(frozen=True)
class Difference:
    """A view that is not what its text says. `output` is the one that differs, where one is known to."""

    view: View
    what: str
    output: int | None = None
    row: int | None = None
    postgres: str | None = None
    ours: str | None = None


@dataclass
class Planned:
    """A view that was accepted: its relation and its scan."""

    view: View
    relation: Relation
    scan: BoundScan
    names: tuple[str, ...]


@dataclass
class _Job:
    """A view as it runs. `graph` is its own until it joins the others."""

    planned: Planned
    plan: JobPlan
    graph: GraphId
    executor: GraphExecutor
    prev: int
    consumed: int | None = None
    finished: bool = False
    over: bool = False
    """Whether it has failed."""


@dataclass
class Run:
    """One world on a prepared store."""

    store: Store
    spark: SparkSession
    world: World
    generation: Generation = field(default_factory=partial(Generation, 1))
    """Of several worlds on one store each has its own."""
    committed: int = 1
    newest: int = 1
    live: int = 0
    """Epochs in which changes met history that was left."""
    differences: list[Difference] = field(default_factory=list[Difference])
    survived: Counter[str] = field(default_factory=Counter[str])
    jobs: list[_Job] = field(default_factory=list[_Job])

    def __post_init__(self) -> None:
        self.random = Random(self.world.seed)
        self.oracle: Any = None
        self.next_id = self.generation * 10_000

    async def prepare(self) -> None:
        """Make the table and its history."""
        statement = parse(self.world.ddl)
        assert isinstance(statement, CreateTable)
        self.upstream = table_relation(statement).model_copy(update={"id": self._number()})
        await self.store.fences.claim(TERM)
        await self.store.tables.create(self.upstream, term=TERM)
        await self._fence(DATABASE_GRAPH)
        outcome = self._dml(DATABASE_GRAPH).run([self._statement(one) for one in self.world.history], Epoch(1))
        assert not [result.error for result in outcome.results if result.error], outcome.results
        self.oracle = Oracle.over(self.store.url, self.world, self.upstream)
        self.database = self._executor()

    def close(self) -> None:
        """Disconnect from Postgres."""
        if self.oracle is not None:
            self.oracle.close()

    def value(self) -> str | None:
        """Return what the view created last holds in its first output, in its first row."""
        job = self.jobs[-1]
        rows = list(self.oracle.held(job.planned.relation, job.planned.names, self.committed))
        return rows[0][1] if rows else "no row"

    # Planning.

    def bind(self, view: View) -> BoundView:
        """Bind a view's text. Raises Refused."""
        statement = parse(f"create materialized view m as {view.text}")
        assert isinstance(statement, CreateMaterializedView)
        return bind_view(statement, {"t": self.upstream})

    def plan(self, view: View) -> Planned:
        """Bind a view's text and have Spark type it. Raises Refused, PySparkException."""
        bound = self.bind(view)
        (scan,) = bound.scans
        question = Analyze(id=RequestId(1), upstream=scan.upstream, query=scan.query, names=bound.names)
        relation = view_relation(bound, [analyze(self.spark, question).columns], "m")
        names = bound.names[: len(bound.names) - bound.hidden]
        return Planned(view, relation.model_copy(update={"id": self._number(), "name": "m"}), scan, names)

    async def add(self, planned: Planned) -> _Job:
        """Have a view created with the next barrier."""
        await self.store.tables.create(planned.relation, term=TERM)
        number, strategy = planned.relation.id, planned.view.strategy
        snapshot = strategy is Strategy.SNAPSHOT
        actors = 1 if strategy is Strategy.NO_SHUFFLE else min(2, self.world.vnodes)
        plan = JobPlan(
            id=JobId(number),
            relation=planned.relation,
            fragments=(
                TableScanPlan(
                    id=FragmentId(number),
                    actors=_actors(self.world.vnodes, actors, {}),
                    upstream=self.upstream,
                    query=planned.scan.query,
                    scan_type=_SCAN_TYPES[strategy],
                ),
            ),
            snapshot=SnapshotPlan(epoch=Epoch(self.committed)) if snapshot else None,
        )
        graph = GraphId(number) if snapshot else DATABASE_GRAPH
        if snapshot:
            await self._fence(graph)
        job = _Job(planned, plan, graph, self._executor() if snapshot else self.database, self.committed)
        self.jobs.append(job)
        return job

    # Living.

    async def live_through(self) -> None:
        """Create the views, and run the world's epochs."""
        self._database_epoch((), [job for job in self.jobs if job.graph == DATABASE_GRAPH])
        for number, changes in enumerate(self.world.before):
            self._epoch(changes)
            if number % 2:
                self.check()
        for _ in range(SETTLED_WITHIN):
            if all(job.over or (job.finished and job.graph == DATABASE_GRAPH) for job in self.jobs):
                break
            self._epoch(())
        assert all(job.over or job.finished for job in self.jobs), "a view is never finished"
        self.check()
        for changes in self.world.after:
            self._epoch(changes)
            self.check()

    def _epoch(self, changes: Sequence[Change]) -> None:
        joining: list[_Job] = []
        for job in self.jobs:
            if job.graph != DATABASE_GRAPH and not job.over:
                self._snapshot_epoch(job)
                if job.consumed is not None and not self.random.randrange(3):
                    joining.append(job)
        self.live += bool(changes) and any(not job.finished for job in self.jobs if job.graph == DATABASE_GRAPH)
        self._database_epoch(changes, joining)

    def _database_epoch(self, changes: Sequence[Change], joining: Sequence[_Job]) -> None:
        statements = tuple(self._statement(one) for one in changes)
        for job in joining:
            snapshot = None if job.consumed is None else job.plan.snapshot
            if snapshot is not None:
                snapshot = snapshot.model_copy(update={"consumed": job.consumed})
            job.plan = job.plan.model_copy(update={"snapshot": snapshot})
            job.graph, job.executor = DATABASE_GRAPH, self.database
        mutation = self._mutation(self.database, joining)
        kind = BarrierKind.INITIAL if self.database.generation is None else BarrierKind.CHECKPOINT
        self._run(self.database, DATABASE_GRAPH, self.committed, kind, mutation, statements)
        self.committed = self.newest

    def _snapshot_epoch(self, job: _Job) -> None:
        first = job.executor.generation is None
        mutation = self._mutation(job.executor, [job] if first else [])
        kind = BarrierKind.INITIAL if first else BarrierKind.CHECKPOINT
        self._run(job.executor, job.graph, job.prev, kind, mutation, ())
        job.prev = self.newest

    def _mutation(self, executor: GraphExecutor, joining: Sequence[_Job]) -> Mutation | None:
        """Return what the next barrier carries, and make the pages of its scans small. A graph begins paused: its scans
        have to be there before their pages can be small, else changes would never come beside history.
        """
        for scan in scans_of(executor):
            scan.page_rows = self.random.choice((1, 2, 5))
        if joining or executor.generation is None:
            return Add(jobs=tuple(job.plan for job in joining), paused=executor.generation is None)
        return Resume() if executor.paused else None

    def _run(
        self,
        executor: GraphExecutor,
        graph: GraphId,
        prev: int,
        kind: BarrierKind,
        mutation: Mutation | None,
        statements: tuple[Statement, ...],
        interval_ms: int = 1,
    ) -> None:
        self.newest += 1
        barrier = Barrier(
            graph=graph,
            generation=self.generation,
            prev=Epoch(prev),
            curr=Epoch(self.newest),
            kind=kind,
            mutation=mutation,
            statements=statements,
            interval_ms=interval_ms,
            replay_upto=None if graph == DATABASE_GRAPH else Epoch(self.committed),
        )
        collected = executor.run(barrier)
        assert not [one for dml in collected.of(DmlReport) for one in dml.results if one.error], collected.reports
        by_job = {job.plan.fragments[0].id: job for job in self.jobs}
        told: dict[FragmentId, list[bool]] = {}
        for report in collected.of(ActorReport):
            told.setdefault(report.fragment, []).append(report.finished)
            job = by_job[report.fragment]
            job.plan = _moved(job.plan, {one.vnode: one for one in report.positions})
        for fragment, finished in told.items():
            by_job[fragment].finished = all(finished)
        for job in self.jobs:
            if job.graph == graph and graph != DATABASE_GRAPH:
                job.consumed = collected.consumed if collected.consumed is not None else job.consumed

    async def alone(self, view: View) -> list[Difference]:
        """Have a view created over the rows that there are, with nothing beside it, and compare it. Raises what
        `plan` does, and JobFailedError.
        """
        job = await self.add(self.plan(replace(view, strategy=Strategy.ARRANGEMENT)))
        job.executor = self._executor()
        self._run(job.executor, DATABASE_GRAPH, self.committed, BarrierKind.INITIAL, Add(jobs=(job.plan,)), (), 60_000)
        job.finished, self.committed, found = True, self.newest, len(self.differences)
        self._compare(job, upto=self.committed, held_at=self.committed)
        return self.differences[found:]

    # Comparing.

    def check(self) -> None:
        """Compare every view with its text at the epoch that it has come to."""
        for job in self.jobs:
            if not job.over:
                own = job.graph != DATABASE_GRAPH
                upto = self.committed if not own else job.consumed if job.consumed is not None else None
                if upto is None:
                    assert job.plan.snapshot is not None
                    upto = job.plan.snapshot.epoch
                self._compare(job, upto=int(upto), held_at=job.prev if own else self.committed)

    def _compare(self, job: _Job, *, upto: int, held_at: int) -> None:
        view = job.planned.view
        self.oracle.at(upto)
        expected = self.oracle.answer(view.text, self.oracle.types(view.text))
        held = self.oracle.held(job.planned.relation, job.planned.names, held_at)
        self.survived[view.text] += len(expected)
        if (held - expected) or (job.finished and (expected - held)):
            self.differences += _told(view, expected, held)
            job.over = True

    # Steps.

    def _executor(self) -> GraphExecutor:
        return GraphExecutor(WorkerId("w"), self.spark, self._connect, table_scans(self.spark))

    def _connect(self, barrier: Barrier) -> Stores:
        return Stores(PostgresStore(self.store.url, barrier.graph, self.generation), self._dml(barrier.graph))

    def _dml(self, graph: GraphId) -> DmlStore:
        return DmlStore(self.store.logins.writer_url, graph, self.generation)

    async def _fence(self, graph: GraphId) -> None:
        await self.store.fences.fence(graph, self.generation, term=TERM)

    def _number(self) -> RelationId:
        self.next_id += 1
        return RelationId(self.next_id)

    def _statement(self, change: Change) -> Statement:
        number, relation = StatementId(self._number()), self.upstream
        if change.values is None:
            return Delete(id=number, relation=relation, predicate=f"id = {change.id}")
        columns = [column for column in self.world.columns if column.name in change.values]
        values = [(column.name, literal(column, change.values[column.name])) for column in columns]
        if change.id is not None:
            return Update(id=number, relation=relation, assignments=tuple(values), predicate=f"id = {change.id}")
        source = f"values ({', '.join(text for _, text in values)})"
        return InsertValues(id=number, relation=relation, columns=tuple(name for name, _ in values), source=source)


def _actors(vnodes: int, count: int, positions: dict[Any, VnodePosition]) -> tuple[ActorPlan, ...]:
    return tuple(
        ActorPlan(
            id=ActorId(number),
            vnodes=runs,
            positions=tuple(positions[vnode] for vnode in vnodes_of(runs) if vnode in positions),
        )
        for number, runs in enumerate(blocks(vnodes, count), start=1)
    )


def _moved(plan: JobPlan, positions: dict[Any, VnodePosition]) -> JobPlan:
    (scan,) = plan.fragments
    known = {one.vnode: one for actor in scan.actors for one in actor.positions} | positions
    count = sum(last - first + 1 for actor in scan.actors for first, last in actor.vnodes)
    actors = _actors(count, len(scan.actors), known)
    return plan.model_copy(update={"fragments": (scan.model_copy(update={"actors": actors}),)})


def _told(view: View, expected: Rows, held: Rows) -> list[Difference]:
    """Return one difference for each output that differs, or one for the rows."""
    wanted, found = ({row[0]: row for row in rows} for rows in (expected, held))
    told: dict[int, Difference] = {}
    for number in wanted.keys() & found.keys():
        for place, (one, other) in enumerate(zip(wanted[number][1:], found[number][1:], strict=True)):
            if one != other and place not in told:
                told[place] = Difference(view, "value", place, int(str(number)), one, other)
    rows = [
        Difference(view, what, None, int(str(number)))
        for what, numbers in (
            ("extra row", found.keys() - wanted.keys()),
            ("missing row", wanted.keys() - found.keys()),
        )
        for number in numbers
    ]
    double = [Difference(view, "row twice", None, int(str(row[0]))) for row, count in held.items() if count > 1]
    return [*told.values(), *rows[:1], *double[:1]] or [Difference(view, "rows with one id")]
