"""How long the changes of a caller's views may take in Spark when its budget is spent (I13)."""

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest

from service.protocol.barrier import Barrier, BarrierKind
from service.protocol.ids import DATABASE_GRAPH, Epoch, Generation, JobId, RelationId
from service.protocol.stage import Engine
from tests.support.idle_spark import idle_spark
from workers.backfill.cost import FREE_SECONDS, SMALL_SECONDS, CostBudget
from workers.backfill.cost import NOTHING as NONE_LEFT
from workers.backfill.pace import Pace
from workers.engines.port import ActorOutcome, StageTask
from workers.runners.engine_turns import SPARK_SECONDS_MIN, EngineTurns
from workers.runners.port import RunningEpoch, Stores
from workers.state_store.port import TooSlowError

NOTHING = cast("Any", None)
TOOK = SPARK_SECONDS_MIN - 2
now = [0.0]


class Clocked:
    """A scan of a job, whose engine takes some seconds and keeps how many it was allowed."""

    def __init__(self, job: int) -> None:
        self.job, self.allowed = JobId(job), list[float | None]()
        self.turns = EngineTurns(idle_spark())
        self.error: Exception | None = None

    def measure(self, _: object, pace: Pace, **__: object) -> Pace:
        return pace

    def run(self, task: StageTask) -> list[ActorOutcome]:
        self.allowed.append(task.allowed_seconds)
        now[0] += TOOK
        if self.error is not None:
            raise self.error
        return []


def epoch_of(*scans: Clocked, stores: Stores, history_over: bool = True, changed: bool = False) -> None:
    barrier = Barrier(
        graph=DATABASE_GRAPH, generation=Generation(1), prev=Epoch(1), curr=Epoch(2), kind=BarrierKind.CHECKPOINT
    )
    epoch = RunningEpoch(barrier, stores, False, 0.0, lambda: now[0], nullcontext)
    inputs = frozenset({RelationId(1)}) if changed else frozenset[RelationId]()
    task = StageTask(curr=Epoch(2), actors=(), page_rows=1, windows={}, changed=inputs, at={})
    for scan in scans:
        engine = cast("Any", SimpleNamespace(run=scan.run))
        scan.turns.run(
            epoch, task, lambda engine=engine: (Engine.SPARK, engine), cast("Any", scan), history_over=history_over
        )
    stores.costs.settle(0.0, now[0])


def test_i13_views_of_a_caller_that_has_spent_its_budget_share_the_least_time_of_spark() -> None:
    """Each had it for itself: twelve views took 22 s of one epoch. A view that Spark computes for the first time has it
    in any case, because it is planned and compiled then.
    """
    stores = Stores(NOTHING, NOTHING, stage_timeout_ms=30_000)
    stores.costs.slow["a"] = CostBudget(1e9, 1e9, since=1e6)
    scans = [Clocked(job) for job in (1, 2, 3)]
    stores.costs.callers.update({scan.job: "a" for scan in scans})
    for _ in range(2):
        epoch_of(*scans, stores=stores)
    assert [scan.allowed[0] for scan in scans] == [SPARK_SECONDS_MIN] * 3
    assert [scan.allowed[1] for scan in scans] == [SPARK_SECONDS_MIN, SPARK_SECONDS_MIN - TOOK, SMALL_SECONDS]


def test_i13_a_page_of_history_takes_no_longer_than_changes_may() -> None:
    """One of 2,000 rows that took 20 ms each held up everybody for a minute."""
    scan = Clocked(1)
    epoch_of(scan, stores=Stores(NOTHING, NOTHING, stage_timeout_ms=30_000), history_over=False)
    epoch_of(scan, stores=Stores(NOTHING, NOTHING), history_over=False)
    assert scan.allowed == [30, None]


def test_i13_changes_beside_history_share_what_an_epoch_may_take() -> None:
    """The branches of a view whose history was held by its limit took 30 s of an epoch each."""
    stores = Stores(NOTHING, NOTHING, stage_timeout_ms=30_000)
    branches = [Clocked(1) for _ in range(6)]
    epoch_of(*branches, stores=stores, history_over=False, changed=True)
    assert sum(min(TOOK, one.allowed[0] or 0) for one in branches) <= 30 + FREE_SECONDS + SPARK_SECONDS_MIN
    assert branches[-1].allowed[0] == NONE_LEFT


def test_i13_what_failed_is_charged_as_well() -> None:
    """Four views, each of which failed in the end, took 18 s each of one epoch."""
    stores, scan = Stores(NOTHING, NOTHING, stage_timeout_ms=30_000), Clocked(1)
    scan.error = ValueError("a wrong value")
    with pytest.raises(ValueError, match="a wrong value"):
        epoch_of(scan, stores=stores)
    assert stores.costs.allowed(JobId(2), CostBudget(30), now[0]) == 30 + FREE_SECONDS - TOOK


def test_history_that_took_too_long_says_the_way_out() -> None:
    stores = Stores(NOTHING, NOTHING, stage_timeout_ms=30_000)
    scan = Clocked(1)
    scan.error = TooSlowError(30_000)
    with pytest.raises(TooSlowError, match="with streaming_use_snapshot_backfill = true"):
        epoch_of(scan, stores=stores, history_over=False)
    assert stores.costs.slow.keys() == {""}
