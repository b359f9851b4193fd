"""A scan whose history is read gives few changes to one task, and many to all its actors (I13)."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest
from typing_extensions import override

from service.protocol.barrier import Barrier, BarrierKind
from service.protocol.ids import DATABASE_GRAPH, ActorId, Epoch, FragmentId, Generation, JobId, Vnode
from service.protocol.plan import PositionState, VnodePosition
from service.protocol.stage import EngineChoice
from service.protocol.table_format import POSTGRES
from tests.support.idle_spark import idle_spark
from tests.support.projections import bound_projection
from tests.support.state_store import relation
from workers.backfill.budget import Budget
from workers.backfill.positions import Positions
from workers.backfill.scan import ActorState, ScanState
from workers.engines.port import ActorOutcome, StageTask
from workers.engines.stage_engines import StageEngines
from workers.engines.stages import StageEngine
from workers.runners.port import FEW, RunningEpoch, Stores
from workers.runners.stage_scan import StageScan

NOTHING = cast("Any", None)


class Able:
    """A store of which nothing is asked but what it can do."""

    capabilities = POSTGRES


TABLE, VIEW = relation(1, "t"), relation(2, "v")
RUNS = [((0, 3), (8, 11)), ((4, 7), (12, 15))]


@dataclass(kw_only=True)
class Watched(StageScan):
    """A scan that computes nothing, and keeps what it was asked to."""

    tasks: list[StageTask] = field(default_factory=list[StageTask])

    @override
    def _engines(self, epoch: RunningEpoch) -> StageEngines:
        engines = super()._engines(epoch)
        engines._in_store = cast("StageEngine", Counting(self.tasks))  # pyright: ignore[reportPrivateUsage]
        return engines


@dataclass
class Counting:
    tasks: list[StageTask]

    def run(self, task: StageTask) -> list[ActorOutcome]:
        self.tasks.append(task)
        return [ActorOutcome(index, (), 0, 1, 5, 5, 0, 0.0, False) for index in range(len(task.actors))]


def watched(*, read: bool = True) -> Watched:
    actors = [
        ActorState(
            ActorId(number),
            Positions(
                runs,
                {
                    Vnode(vnode): VnodePosition(vnode=Vnode(vnode), state=PositionState.COMPLETED, rows=0)
                    for first, last in runs
                    for vnode in range(first, last + 1)
                    if read
                },
                block_vnodes=32,
            ),
            Budget(None, 0.0),
        )
        for number, runs in enumerate(RUNS)
    ]
    return Watched(
        JobId(7),
        VIEW,
        ScanState(FragmentId(1), actors),
        spark=idle_spark(),
        bound=bound_projection(TABLE, VIEW, engine=EngineChoice.STORE),
        own=frozenset(),
    )


def forwarded(scan: Watched, changes: int) -> StageTask:
    """Run an epoch in which so many rows of the upstream were written; return what was asked of the engine."""
    barrier = Barrier(
        graph=DATABASE_GRAPH, generation=Generation(1), prev=Epoch(1), curr=Epoch(2), kind=BarrierKind.CHECKPOINT
    )
    turn = cast("Any", Turn)
    epoch = RunningEpoch(barrier, Stores(cast("Any", Able()), NOTHING), False, 0.0, lambda: 0.0, turn)
    epoch.wrote(TABLE.id, inserted=changes, ended=0)
    reports = scan.run(epoch)
    assert sum(cast("Any", report).upstream_rows for report in reports) == 5 * len(scan.tasks[-1].actors)
    return scan.tasks[-1]


class Turn:
    def __enter__(self) -> None: ...
    def __exit__(self, *_: object) -> None: ...


def test_i13_an_epoch_asks_each_actor_a_few_times_whether_it_is_completed(monkeypatch: pytest.MonkeyPatch) -> None:
    """With 800 actors and 32,768 vnodes an INSERT of one row took 10 s: each report looked at all vnodes."""
    asked = 0

    def completed(self: Positions) -> bool:
        nonlocal asked
        asked += 1
        return bool(self.runs)

    scan = watched()
    monkeypatch.setattr(Positions, "completed", property(completed))
    many = scan.state.actors * 50
    scan.state.actors = many
    scan.reports({}, finishing=True, forwarded=lambda _: 1)
    assert 0 < asked <= 2 * len(many)


def test_few_changes_are_one_task_for_the_vnodes_of_all_actors() -> None:
    (actor,) = forwarded(watched(), FEW).actors
    assert actor.runs == ((0, 3), (4, 7), (8, 11), (12, 15))
    assert sorted(position.vnode for position in actor.positions) == list(range(16))
    assert actor.permits == 0


def test_many_changes_are_shared_out_among_the_actors_also_after_few() -> None:
    scan = watched()
    assert [len(forwarded(scan, changes).actors) for changes in (1, FEW + 1, 1)] == [1, 2, 1]


def test_i13_a_scan_of_a_caller_whose_views_took_all_memory_together_runs_beside_no_other() -> None:
    turn, barrier = cast("Any", Turn), cast("Any", SimpleNamespace())
    stores = Stores(cast("Any", Able()), NOTHING)
    epoch, scan = RunningEpoch(barrier, stores, False, 0.0, lambda: 0.0, turn), watched()
    stores.costs.callers[scan.job] = "one"
    assert scan.is_brief(epoch)
    stores.costs.apart = ("one",)
    assert not scan.is_brief(epoch)
    stores.costs.callers[scan.job] = "another"
    assert scan.is_brief(epoch)


def test_a_scan_that_may_read_history_keeps_its_actors() -> None:
    assert len(forwarded(watched(read=False), 1).actors) == 2
