"""A table scan on a real Spark over each table format: history, live changes and a recovery (I1, I3)."""

from collections.abc import AsyncGenerator, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from service.domain.parallelism import blocks
from service.protocol.barrier import Barrier, BarrierKind
from service.protocol.ids import (
    DATABASE_GRAPH,
    ActorId,
    Epoch,
    FragmentId,
    Generation,
    JobId,
    RelationId,
    WorkerId,
)
from service.protocol.mutation import Add, Mutation
from service.protocol.plan import ActorPlan, JobPlan, ScanType, TableScanPlan, VnodePosition
from service.protocol.relation import Relation, RelationKind
from service.protocol.report import ActorReport, Collected, FragmentReport
from service.protocol.stage import EngineChoice
from service.protocol.vnodes import vnodes_of
from tests.support.projections import projection
from tests.support.state_store import relation
from tests.support.table_formats import GENERATION, TERM, Format, batch, table_format
from tests.support.table_scans import scans_of, table_scans
from workers.backfill.positions import PageSize, Span
from workers.graph import GraphExecutor
from workers.runners.port import Phase, Place, RunningEpoch, Stores
from workers.state_store.port import CLOSE, LIVE

pytestmark = pytest.mark.spark

VNODES, ACTORS, ROWS, EPOCHS = 6, 2, 60, 40
LIMIT = 5
"""Rows of history that an actor reads in an epoch, each of which is a second of the worker's clock."""
UPSTREAM = relation(1, "t", {"id": "bigint", "v": "integer", "t": "text"}).model_copy(update={"vnode_count": VNODES})
VIEW = UPSTREAM.model_copy(update={"id": RelationId(2), "name": "m", "kind": RelationKind.MATERIALIZED_VIEW})
WHOLE = PageSize(1_000, exact=True)
Rows = dict[int, tuple[int, int, str]]


@dataclass
class Feed:
    """Writes to the upstream first in an epoch, as a source does: a `FragmentRunner`."""

    waiting: list[pa.RecordBatch] = field(default_factory=list[pa.RecordBatch])
    place: Place = (Phase.SOURCE, UPSTREAM.id, 0)
    reads: Collection[RelationId] = ()
    settled = True

    def is_brief(self, epoch: RunningEpoch) -> bool:
        del epoch
        return False

    def mutate(self, mutation: Mutation, now: float) -> None:
        pass

    def readers(self, *, paused: bool) -> int:
        del paused
        return 0

    def run(self, epoch: RunningEpoch) -> Sequence[FragmentReport]:
        written = epoch.stores.versioned.write(UPSTREAM, epoch.barrier.curr, iter(self.waiting))
        epoch.wrote(UPSTREAM.id, inserted=written.inserted, ended=written.closed)
        return ()

    def stop(self, jobs: Sequence[JobId]) -> bool:
        del jobs
        return False

    def end(self) -> None:
        pass


@dataclass
class World:
    """The committed state, and the worker."""

    examined: Format
    spark: SparkSession
    engine: EngineChoice
    rows: Rows
    committed: int = 10
    generation: int = GENERATION
    positions: dict[int, VnodePosition] = field(default_factory=dict[int, VnodePosition])
    now: float = 0.0
    interleaved: int = 0
    """Epochs that read history and forwarded changes."""

    def start(self) -> None:
        """Start a generation from what is committed."""
        self.feed = Feed()
        self.executor = GraphExecutor(
            WorkerId("w"), self.spark, self._connect, table_scans(self.spark), clock=lambda: self.now
        )
        self.commit(self.run(BarrierKind.INITIAL, Add(jobs=(self._plan(),), paused=True)))
        self.executor.paused = False
        self.executor.runners[self.feed.place] = self.feed

    def run(self, kind: BarrierKind = BarrierKind.CHECKPOINT, mutation: Mutation | None = None) -> Collected:
        self.now += 1
        barrier = Barrier(
            graph=DATABASE_GRAPH,
            generation=Generation(self.generation),
            prev=Epoch(self.committed),
            curr=Epoch(self.committed + 10),
            kind=kind,
            mutation=mutation,
        )
        return self.executor.run(barrier)

    def commit(self, collected: Collected) -> None:
        for report in collected.of(ActorReport):
            self.positions.update({position.vnode: position for position in report.positions})
        history, forwarded = (
            sum(getattr(one, rows) for one in collected.of(ActorReport)) for rows in ("snapshot_rows", "upstream_rows")
        )
        self.interleaved += bool(history and forwarded)
        self.committed = collected.epoch

    async def recover(self) -> None:
        """End the generation, as a leader does after a failed epoch."""
        self.generation += 1
        await self.examined.fences.fence(DATABASE_GRAPH, Generation(self.generation), term=TERM)
        await self.examined.tables.roll_back([UPSTREAM.id, VIEW.id], DATABASE_GRAPH, Epoch(self.committed), term=TERM)
        self.start()

    def change(self, turn: int) -> None:
        """Update a row, delete one and insert one, of those that history has reached and of those that it has not."""
        updated, deleted, inserted = (turn * 7) % ROWS, (turn * 11 + 3) % ROWS, ROWS + turn
        ended = [key for key in dict.fromkeys((updated, deleted)) if key in self.rows]
        new: Rows = {inserted: (inserted, turn % 5, "new")}
        if updated in self.rows and updated != deleted:
            new[updated] = (updated, 5 - self.rows[updated][1], f"t{turn}")
        for key in ended:
            del self.rows[key]
        self.rows |= new
        closes = [(CLOSE, key % VNODES, (key, None, None)) for key in ended]
        self.feed.waiting = [batch(UPSTREAM, [*closes, *((LIVE, key % VNODES, row) for key, row in new.items())])]

    def shown(self, table: Relation) -> Rows:
        block = [Span(vnode) for vnode in range(VNODES)]
        store = self.examined.store(Generation(self.generation))
        page = store.read_page(table, block, at=Epoch(self.committed), size=WHOLE)
        rows: list[dict[str, Any]] = [row for one in page.batches for row in one.to_pylist()]
        found: Rows = {row["id"]: (row["id"], row["v"], row["t"]) for row in rows}
        assert len(found) == len(rows), "a key twice"
        return found

    def _connect(self, barrier: Barrier) -> Stores:
        return Stores(self.examined.store(barrier.generation), None)

    def _plan(self) -> JobPlan:
        actors = (
            ActorPlan(
                id=ActorId(number),
                vnodes=runs,
                positions=tuple(self.positions[vnode] for vnode in vnodes_of(runs) if vnode in self.positions),
            )
            for number, runs in enumerate(blocks(VNODES, ACTORS), start=1)
        )
        scan = TableScanPlan(
            id=FragmentId(2),
            actors=tuple(actors),
            upstream=UPSTREAM,
            query=projection(UPSTREAM, VIEW, ("{id}", "{v} * 10", "upper({t})"), "{v} > 2", engine=self.engine),
            scan_type=ScanType.ARRANGEMENT_BACKFILL,
            rate_limit=LIMIT,
        )
        return JobPlan(id=JobId(2), relation=VIEW, fragments=(scan,))


def answered(rows: Rows) -> Rows:
    return {key: (key, v * 10, t.upper()) for key, (_, v, t) in rows.items() if v > 2}


@pytest.fixture(params=["memory", pytest.param("postgres", marks=pytest.mark.postgres)])
async def examined(request: pytest.FixtureRequest) -> AsyncGenerator[Format]:
    async with table_format(request) as examined:
        yield examined


@pytest.mark.parametrize("engine", [EngineChoice.SPARK, EngineChoice.STORE])
async def test_a_view_becomes_its_query_while_its_table_changes(
    examined: Format, spark: SparkSession, engine: EngineChoice
) -> None:
    store = await examined.prepare(UPSTREAM, VIEW)
    rows: Rows = {key: (key, key % 6, f"t{key}") for key in range(ROWS)}
    store.write(UPSTREAM, Epoch(10), iter([batch(UPSTREAM, [(LIVE, key % VNODES, row) for key, row in rows.items()])]))
    world, turn = World(examined, spark, engine, rows), 0
    world.start()
    while not all(scan.state.finished for scan in scans_of(world.executor)):
        turn += 1
        assert turn < EPOCHS, "not finished"
        before = dict(world.rows)
        world.change(turn)
        collected = world.run()
        if turn == 3:
            # The epoch is not committed: its rows go, and positions stay where they were.
            world.rows = before
            await world.recover()
            continue
        world.commit(collected)
        assert world.shown(UPSTREAM) == world.rows
    world.change(EPOCHS)
    world.commit(world.run())
    assert world.shown(VIEW) == answered(world.rows)
    assert world.interleaved > 2, "history and live changes did not meet"
    (scan,) = scans_of(world.executor)
    by_store = engine is EngineChoice.STORE and store.capabilities.store_engine
    assert scan.engines is not None
    made = scan.engines._in_store, scan.engines._projection  # pyright: ignore[reportPrivateUsage] - which were used
    assert (made[0] is not None, made[1] is not None) == (by_store, not by_store)
