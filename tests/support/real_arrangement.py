"""The arrangement executor on a real Spark and a real Postgres, driven by a seed and checked against plain data.

The plain data are those of `tests.support.arrangement`: the upstream's rows per epoch, and the order of the model. A
kill drops the executor, with its epoch written in part or whole, and starts a new generation from the positions that
were committed, after fencing and rolling back as a leader does.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from pyspark.sql import SparkSession

from service.domain.parallelism import blocks
from service.protocol import mutation as mutations
from service.protocol.barrier import Barrier, BarrierKind
from service.protocol.columns import Column, ColumnType
from service.protocol.dml import Delete, InsertValues, Statement, Update
from service.protocol.ids import (
    DATABASE_GRAPH,
    ActorId,
    Epoch,
    FragmentId,
    Generation,
    JobId,
    RelationId,
    StatementId,
    Term,
    WorkerId,
)
from service.protocol.mutation import Add, Mutation, Pause, Resume, Throttle
from service.protocol.plan import (
    ActorPlan,
    JobPlan,
    PositionState,
    ScanType,
    TableScanPlan,
    VnodePosition,
)
from service.protocol.relation import Relation, RelationKind, state_table
from service.protocol.report import ActorReport, Collected, DmlReport
from service.protocol.stage import EngineChoice
from service.protocol.vnodes import vnodes_of
from tests.support.arrangement import view
from tests.support.key_shapes import SHAPES, Dml, KeyShape, random_dml
from tests.support.model import Key, Row, Value, VersionedTable, identity, order_python, text_of
from tests.support.projections import projection
from tests.support.state_store import Store
from tests.support.table_scans import scans_of, table_scans
from workers.backfill.order import key_of
from workers.graph import GraphExecutor
from workers.runners.port import Stores
from workers.state_store.dml import DmlStore
from workers.state_store.postgres import PostgresStore

TERM = Term(1)
SCAN = FragmentId(2)
VNODES = 6
EPOCHS = 25
SETTLED_WITHIN = 400
PUSHED_ABOVE = 2
Rows = dict[int, tuple[Key, Row]]
"""Alive rows by their `id`."""


@dataclass
class RealWorld:
    """The leader's side: what is committed, what waits, and the worker that runs it."""

    store: Store
    spark: SparkSession
    shape: KeyShape
    actors: int
    pushed: bool = False
    """Whether the store computes the view."""
    scan_type: ScanType = ScanType.ARRANGEMENT_BACKFILL
    rows: Rows = field(default_factory=dict[int, tuple[Key, Row]])
    committed_rows: Rows = field(default_factory=dict[int, tuple[Key, Row]])
    stored: dict[int, VnodePosition] = field(default_factory=dict[int, VnodePosition])
    pending: list[Mutation] = field(default_factory=list[Mutation])
    waiting: list[Dml] = field(default_factory=list[Dml])
    paused: bool = False
    limit: int | None = None
    committed: int = 1
    newest: int = 1
    generation: int = 0
    next_row: int = 0
    next_statement: int = 0
    finished: bool = False
    read: int = 0
    """Rows of history that committed epochs have read."""
    rescaled: int = 0
    """Committed epochs in which the actors changed while history was left."""

    def __post_init__(self) -> None:
        self.upstream = self.shape.relation.model_copy(update={"vnode_count": VNODES})
        self.target = target_of(self.upstream)
        self.model = VersionedTable(key_of(self.upstream), VNODES)

    # What drives the world.

    async def prepare(self, preloaded: Sequence[Dml]) -> None:
        """Make both tables, give the upstream its history, and start the first generation of the view."""
        await self.store.fences.claim(TERM)
        for relation in (self.upstream, self.target):
            await self.store.tables.create(relation, term=TERM)
        await self.store.fences.fence(DATABASE_GRAPH, Generation(self.generation), term=TERM)
        dml = DmlStore(self.store.logins.writer_url, DATABASE_GRAPH, Generation(self.generation))
        dml.run([self._statement(one) for one in preloaded], Epoch(self.committed))
        self.committed_rows = dict(self.rows)
        await self.recover()

    async def recover(self) -> None:
        """Start the next generation from what is committed (I3)."""
        self.generation += 1
        await self.store.fences.fence(DATABASE_GRAPH, Generation(self.generation), term=TERM)
        relations = [self.upstream.id, self.target.id]
        await self.store.tables.roll_back(relations, DATABASE_GRAPH, Epoch(self.committed), term=TERM)
        self.rows = dict(self.committed_rows)
        self.executor = GraphExecutor(
            WorkerId(f"w-{self.generation}"), self.spark, self._connect, table_scans(self.spark)
        )
        await self.check()
        # The initial barrier carries neither statements nor another mutation.
        await self._commit(self._run(BarrierKind.INITIAL, Add(jobs=(self._plan(),), paused=self.paused), ()), None)

    async def epoch(self, random: Random, kill: str | None) -> None:
        """Run one epoch with all that waits, and commit it, unless the worker is killed in it."""
        mutation = self.pending[0] if self.pending else None
        before, waiting = dict(self.rows), self.waiting
        statements = tuple(self._statement(one) for one in waiting)
        for scan in scans_of(self.executor):
            scan.page_rows = random.choice((1, 2, 5))
        interval = random.choice((1, 1, 1, 300))
        if kill == "after_dml":
            assert self.executor.stores is not None
            assert self.executor.stores.dml is not None
            self.newest += 1
            self.executor.stores.dml.run(statements, Epoch(self.newest))
        else:
            collected = self._run(BarrierKind.CHECKPOINT, mutation, statements, interval_ms=interval)
            if kill is None:
                self.pending, self.waiting = self.pending[1:], []
                await self._commit(collected, mutation)
                return
        self.rows = before
        await self.recover()

    async def settle(self, random: Random) -> None:
        """Faults stop: the view becomes whole (liveness)."""
        self.pending += [Resume(), Throttle(fragments={SCAN: None})]
        for _ in range(SETTLED_WITHIN):
            if self.finished and not self.pending and not self.waiting:
                break
            await self.epoch(random, None)
        assert self.finished, "not finished"
        expected = {number: out for number, (_, row) in self.rows.items() if (out := self._view(row)) is not None}
        assert {number: (number, w) for number, w in await self._alive(self.target, "id, w")} == expected

    # Steps.

    def _connect(self, barrier: Barrier) -> Stores:
        generation = barrier.generation
        return Stores(
            PostgresStore(self.store.url, DATABASE_GRAPH, generation),
            DmlStore(self.store.logins.writer_url, DATABASE_GRAPH, generation),
        )

    def _plan(self) -> JobPlan:
        actors = tuple(
            ActorPlan(
                id=ActorId(number),
                vnodes=runs,
                positions=tuple(self.stored[vnode] for vnode in vnodes_of(runs) if vnode in self.stored),
            )
            for number, runs in enumerate(blocks(VNODES, self.actors), start=1)
        )
        keys = tuple(f"{{{part.name}}}" for part in self.upstream.key)
        computed, where = ("{v}", f"{{v}} > {PUSHED_ABOVE}") if self.pushed else ("{v} * 10", "{v} % 3 <> 0")
        engine = EngineChoice.STORE if self.pushed else EngineChoice.SPARK
        query = projection(self.upstream, self.target, ("{id}", computed, *keys), where, engine=engine)
        scan = TableScanPlan(
            id=SCAN,
            actors=actors,
            upstream=self.upstream,
            query=query,
            scan_type=self.scan_type,
            rate_limit=self.limit,
        )
        return JobPlan(id=JobId(2), relation=self.target, fragments=(scan,))

    def _run(
        self, kind: BarrierKind, mutation: Mutation | None, statements: tuple[Statement, ...], *, interval_ms: int = 1
    ) -> Collected:
        self.newest += 1
        barrier = Barrier(
            graph=DATABASE_GRAPH,
            generation=Generation(self.generation),
            prev=Epoch(self.committed),
            curr=Epoch(self.newest),
            kind=kind,
            mutation=mutation,
            statements=statements,
            interval_ms=interval_ms,
        )
        collected = self.executor.run(barrier)
        assert [one.error for dml in collected.of(DmlReport) for one in dml.results] == [None] * len(statements)
        return collected

    async def _commit(self, collected: Collected, mutation: Mutation | None) -> None:
        match mutation:
            case Pause() | Resume():
                self.paused = isinstance(mutation, Pause)
            case Throttle(fragments=limits):
                self.limit = limits[SCAN]
            case mutations.Update(fragments=fragments):
                self.actors, self.rescaled = len(fragments[SCAN]), self.rescaled + (not self.finished)
            case _:
                pass
        read = sum(report.snapshot_rows for report in collected.of(ActorReport))
        assert not (self.paused and read), "I4: history was read while paused"
        assert not (self.limit == 0 and read), "I4: history was read at limit 0"
        for report in collected.of(ActorReport):
            self.stored.update({position.vnode: position for position in report.positions})
        self.read += read
        assert sum(position.rows for position in self.stored.values()) == self.read, "I6: rows are not what was read"
        self.finished = self.finished or all(report.finished for report in collected.of(ActorReport))
        self.committed, self.committed_rows = collected.epoch, dict(self.rows)
        await self.check()

    def _statement(self, dml: Dml) -> Statement:
        """Apply a statement to the plain rows, and return it as the product takes it."""
        alive = sorted(self.rows)
        chosen = alive[dml.pick % len(alive)] if alive else None
        self.next_statement += 1
        number, relation = StatementId(self.next_statement), self.upstream
        if dml.verb == "update" and chosen is not None:
            self.rows[chosen] = (self.rows[chosen][0], (chosen, dml.value))
            assigned: tuple[tuple[str, str], ...] = (("v", str(dml.value)),)
            return Update(id=number, relation=relation, assignments=assigned, predicate=f"id = {chosen}")
        if dml.verb == "move" and chosen is not None:
            _, row = self.rows.pop(chosen)
            self._put(dml.key, row)
            assigned = tuple((part.name, value) for part, value in zip(relation.key, self._texts(dml.key), strict=True))
            return Update(id=number, relation=relation, assignments=assigned, predicate=f"id = {chosen}")
        if dml.verb == "delete" and chosen is not None:
            del self.rows[chosen]
            return Delete(id=number, relation=relation, predicate=f"id = {chosen}")
        if dml.verb == "delete_all":
            self.rows.clear()
            return Delete(id=number, relation=relation)
        # An insert, also where there is nothing to change.
        self.next_row += 1
        key = dml.key
        self._put(key, (self.next_row, dml.value))
        values = ", ".join((*self._texts(key), f"{self.next_row}", f"{dml.value}"))
        columns = (*(part.name for part in relation.key), "id", "v")
        return InsertValues(id=number, relation=relation, columns=columns, source=f"values ({values})")

    def _put(self, key: Key, row: Row) -> None:
        """A row at an existing key overwrites."""
        self.rows = {number: held for number, held in self.rows.items() if identity(held[0]) != identity(key)}
        self.rows[row[0]] = (key, row)

    def _texts(self, key: Key) -> list[str]:
        return [_literal(value, part.type) for value, part in zip(key, key_of(self.upstream), strict=True)]

    # What is always true.

    async def check(self) -> None:
        """I1 at the committed epoch: the upstream is what the statements say, the view its query over the prefix."""
        held = {int(number): int(v) for number, v in await self._alive(self.upstream, "id, v")}
        assert held == {number: row[1] for number, (_, row) in self.rows.items()}, "the upstream itself is wrong"
        expected = sorted(
            out for key, row in self.rows.values() if (out := self._view(row)) is not None and self._backfilled(key)
        )
        assert sorted(await self._alive(self.target, "id, w")) == expected, "I1: the view is not Q of the prefix"
        reading = sum(position.key is not None for position in self.stored.values())
        assert reading <= self.actors or self.scan_type is not ScanType.BACKFILL, "an actor with several positions"

    async def _alive(self, relation: Relation, columns: str) -> list[tuple[int, int]]:
        at = f"_from <= {self.committed} and _to > {self.committed}"
        rows = await self.store.rows(f"select {columns} from {state_table(relation.id)} where {at}")
        return [(int(str(first)), int(str(second))) for first, second in rows]

    def _view(self, row: Row) -> Row | None:
        if self.pushed:
            return row if row[1] > PUSHED_ABOVE else None
        return view(row)

    def _backfilled(self, key: Key) -> bool:
        position = self.stored.get(self.model.vnode(key))
        if position is None:
            return False
        if position.state is PositionState.COMPLETED:
            return True
        assert position.key is not None
        return order_python(self.model.key, key, self.model.values(position.key)) <= 0


def target_of(upstream: Relation) -> Relation:
    """The view's relation: `id`, `w`, and the upstream's key, hidden."""
    shown = (Column(name="id", type=ColumnType.parse("int")), Column(name="w", type=ColumnType.parse("int")))
    hidden = tuple(upstream.column(part.name).model_copy(update={"hidden": True}) for part in upstream.key)
    return Relation(
        id=RelationId(2),
        name="m",
        kind=RelationKind.MATERIALIZED_VIEW,
        columns=(*shown, *hidden),
        key=upstream.key,
        vnode_count=upstream.vnode_count,
    )


def _rescaled(actors: int) -> mutations.Update:
    plans = (ActorPlan(id=ActorId(n), vnodes=runs) for n, runs in enumerate(blocks(VNODES, actors), start=1))
    return mutations.Update(fragments={SCAN: tuple(plans)})


def _literal(value: Value, kind: ColumnType) -> str:
    text = text_of(value)
    return "null" if text is None else f"cast('{text}' as {kind})"


async def random_schedule(store: Store, spark: SparkSession, seed: int, scan_type: ScanType) -> RealWorld:
    """Live through one schedule in an empty store. Raises AssertionError where an invariant does not hold."""
    random = Random(seed)
    shape, actors, pushed = random.choice(SHAPES), random.choice((1, 2)), random.random() < 0.5
    world = RealWorld(store, spark, shape, actors=actors, pushed=pushed, scan_type=scan_type)
    # Without a limit so small a table is read in the first epoch: then nothing is left to happen.
    world.limit = 0
    await world.prepare([random_dml(random, world.shape) for _ in range(random.choice((10, 40)))])
    rescales = () if scan_type is ScanType.BACKFILL else tuple(_rescaled(actors) for actors in (1, 2, 3))
    world.pending = [Throttle(fragments={SCAN: 1_000}), Resume(), *rescales[2 - world.actors : 3 - world.actors]]
    for _ in range(len(world.pending)):
        await world.epoch(random, None)
    offered: Sequence[Mutation] = (
        Pause(),
        Resume(),
        Resume(),
        *(Throttle(fragments={SCAN: limit}) for limit in (None, 0, 3, 50)),
        *rescales,
    )
    for _ in range(EPOCHS):
        if not random.randrange(5):
            world.pending.append(random.choice(offered))
        world.waiting += [random_dml(random, world.shape) for _ in range(random.choice((0, 1, 1, 4)))]
        kill = random.choice(("after_dml", "before_commit")) if not random.randrange(6) else None
        await world.epoch(random, kill)
    await world.settle(random)
    return world
