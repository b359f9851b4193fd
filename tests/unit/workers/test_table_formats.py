"""Scans and statements on a table format with fewer capabilities than Postgres."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from typing_extensions import override

from service.protocol.barrier import Barrier, BarrierKind
from service.protocol.dml import Delete, StatementResult
from service.protocol.ids import DATABASE_GRAPH, ActorId, Epoch, FragmentId, Generation, JobId, StatementId
from service.protocol.plan import ActorPlan, JobPlan, ScanType, TableScanPlan
from service.protocol.relation import Relation
from service.protocol.report import DmlReport
from service.protocol.stage import Engine
from service.protocol.table_format import POSTGRES, Capabilities
from tests.support.idle_spark import idle_spark
from tests.support.key_shapes import SHAPES
from tests.support.projections import projection
from tests.support.real_arrangement import target_of
from workers.backfill.positions import BLOCK_VNODES, ONE_VNODE
from workers.engines.port import ActorOutcome, StageTask, TaskEngine
from workers.engines.stage_engines import StageEngines
from workers.engines.stages import StageEngine
from workers.runners.dml import run_statements
from workers.runners.port import RunningEpoch, Stores
from workers.runners.stage_scan import StageScan
from workers.state_store.port import VersionedStore

UPSTREAM = SHAPES[0].relation
TARGET = target_of(UPSTREAM)


@dataclass(frozen=True)
class Limited:
    """A store of which a planner asks what it can do, and whether it has many rows."""

    capabilities: Capabilities

    def has_rows(self, relation: Relation, count: int, *, at: Epoch) -> bool:
        assert (relation, at) == (UPSTREAM, Epoch(2))
        return count <= 0


@dataclass
class Nothing:
    """An engine that reads nothing."""

    def run(self, task: StageTask) -> list[ActorOutcome]:
        return [ActorOutcome(actor, (), 0, 1, 0, 0, 0, 0.0, used_slice=False) for actor in range(len(task.actors))]


@dataclass
class Told(StageEngines):
    """Engines that say that they are made."""

    made: list[tuple[Engine, int]] = field(default_factory=list[tuple[Engine, int]])

    @override
    def in_store(self, actors: int) -> StageEngine:
        self.made.append((Engine.STORE, self.block_vnodes))
        return cast("StageEngine", Nothing())

    @override
    def projecting(self) -> TaskEngine:
        self.made.append((Engine.SPARK, self.scan_task.page_vnodes))
        return Nothing()


@dataclass(kw_only=True)
class Watched(StageScan):
    """A scan that computes nothing, and keeps what would compute."""

    made: list[tuple[Engine, int]] = field(default_factory=list[tuple[Engine, int]])

    @override
    def _engines(self, epoch: RunningEpoch) -> StageEngines:
        return Told(self.spark, epoch.stores.versioned, self.bound, self.state.block_vnodes, made=self.made)


def epoch_of(capabilities: Capabilities, statements: Sequence[Delete] = ()) -> RunningEpoch:
    barrier = Barrier(
        graph=DATABASE_GRAPH,
        generation=Generation(1),
        prev=Epoch(1),
        curr=Epoch(2),
        kind=BarrierKind.CHECKPOINT,
        statements=tuple(statements),
    )
    stores = Stores(cast("VersionedStore", Limited(capabilities)), None)
    return RunningEpoch(barrier, stores, False, 0.0, lambda: 0.0, nullcontext)


@pytest.mark.parametrize(
    ("capabilities", "engine", "block_vnodes"),
    [
        (POSTGRES, Engine.STORE, BLOCK_VNODES),
        (Capabilities(store_engine=True), Engine.STORE, BLOCK_VNODES),
        (Capabilities(index_bounds=True), Engine.SPARK, BLOCK_VNODES),
        (Capabilities(), Engine.SPARK, ONE_VNODE),
    ],
)
def test_a_scan_asks_a_format_for_no_more_than_it_can_do(
    capabilities: Capabilities, engine: Engine, block_vnodes: int
) -> None:
    query = projection(UPSTREAM, TARGET, ("{id}", "{v}", "{k0}"))
    actors = (ActorPlan(id=ActorId(1), vnodes=((0, UPSTREAM.vnode_count - 1),)),)
    fragment = TableScanPlan(
        id=FragmentId(1), actors=actors, upstream=UPSTREAM, query=query, scan_type=ScanType.ARRANGEMENT_BACKFILL
    )
    job = JobPlan(id=JobId(1), relation=TARGET, fragments=(fragment,))
    scan = Watched.join(idle_spark(), {}.__getitem__, {}, job, fragment, 0.0)
    scan.run(epoch_of(capabilities))
    assert isinstance(scan, Watched)
    assert scan.made == [(engine, block_vnodes)]


def test_a_format_without_dml_refuses_every_statement() -> None:
    statements = [Delete(id=StatementId(number), relation=UPSTREAM) for number in (3, 4)]
    epoch = epoch_of(Capabilities(), statements)
    (outcome,) = run_statements(epoch)
    assert isinstance(outcome, DmlReport)
    said = "the table format runs no statements"
    assert outcome.results == tuple(
        StatementResult(id=statement.id, affected=0, error=said, sqlstate="0A000") for statement in statements
    )
    assert (epoch.changed, dict(epoch.key_count_deltas)) == (set(), {})


@pytest.mark.parametrize(("capabilities", "merged"), [(POSTGRES, False), (Capabilities(), True)])
def test_a_format_without_an_engine_has_no_groups_to_merge(capabilities: Capabilities, *, merged: bool) -> None:
    store = epoch_of(capabilities).stores.versioned
    assert StageEngines(cast("Any", None), store, cast("Any", None)).merged is merged
