"""Pages under Arrangement are paid out of the same buckets as changes: everybody waits for both (I13)."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from typing_extensions import override

from service.protocol.barrier import Barrier, BarrierKind
from service.protocol.ids import DATABASE_GRAPH, ActorId, Epoch, FragmentId, Generation, JobId
from service.protocol.stage import EngineChoice
from tests.support.projections import ALIAS, bound_projection
from tests.support.state_store import relation
from workers.backfill.budget import Budget
from workers.backfill.pace import OperatorPace
from workers.backfill.positions import Positions
from workers.backfill.scan import ActorState, ScanState
from workers.engines.operators import OperatorEngine, OperatorOutcome, OperatorTask
from workers.engines.port import ActorOutcome
from workers.runners.failure import JobFailedError
from workers.runners.operators import Operator, PrefixScan
from workers.runners.port import RunningEpoch, Stores
from workers.state_store.port import NOTHING, TooSlowError

TABLE, VIEW = relation(1, "t"), relation(2, "v")
LIMIT_SECONDS = 30


@dataclass
class Clock:
    """It goes on while an operator computes, or waits for its turn."""

    now: float = 1000.0
    waits: float = 0.0
    turns: int = 0

    @contextmanager
    def turn(self) -> Generator[None]:
        self.turns += 1
        self.now += self.waits
        yield


@dataclass
class Slow:
    """An engine whose pages always take so long. As in the store, changes end when they have taken what they may."""

    clock: Clock
    seconds: float

    def run(self, task: OperatorTask) -> OperatorOutcome:
        allowed = self.seconds if task.allowed_seconds is None else task.allowed_seconds
        self.clock.now += min(self.seconds, allowed)
        if allowed < self.seconds:
            raise TooSlowError(LIMIT_SECONDS * 1000)
        read = ActorOutcome(0, (), 100, 100, 0, 0, 0, 0.0, False)
        return OperatorOutcome({alias: [read] for alias in task.scans}, NOTHING)


@dataclass(kw_only=True)
class SlowOperator(Operator):
    """An operator that reads the history of one table without end."""

    slow: Slow

    @override
    def _engine(self, epoch: RunningEpoch) -> OperatorEngine:
        return cast("OperatorEngine", self.slow)


@dataclass
class Graph:
    """A graph that runs an operator for each job, all with slow pages, and a moment without work after each epoch."""

    seconds: float
    jobs: int = 1
    limit: int = LIMIT_SECONDS
    waits: float = 0.0
    epochs: int = 0
    failed: dict[int, str] = field(default_factory=dict[int, str])

    def __post_init__(self) -> None:
        self.clock = Clock(waits=self.waits)
        store = cast("Any", None)
        self.stores = Stores(store, store, stage_timeout_ms=self.limit * 1000)
        self.operators = [self._operator(job) for job in range(self.jobs)]

    def _operator(self, job: int) -> SlowOperator:
        actor = ActorState(ActorId(1), Positions(((0, 15),), {}, block_vnodes=16), Budget(None, 0.0))
        state = ScanState(FragmentId(1), [actor])
        return SlowOperator(
            job=JobId(job),
            fragment=FragmentId(2),
            bound=bound_projection(TABLE, VIEW, engine=EngineChoice.STORE),
            own=frozenset(),
            pace=OperatorPace(),
            anew=False,
            scans={state.id: PrefixScan(JobId(job), VIEW, state, alias=ALIAS)},
            slow=Slow(self.clock, self.seconds),
        )

    def run(self, epochs: int) -> None:
        """Run so many epochs, or until a job fails."""
        for _ in range(epochs):
            self.epochs += 1
            self._epoch()
            if self.failed:
                return

    def _epoch(self) -> None:
        prev = Epoch(self.epochs)
        barrier = Barrier(
            graph=DATABASE_GRAPH,
            generation=Generation(1),
            prev=prev,
            curr=Epoch(prev + 1),
            kind=BarrierKind.CHECKPOINT,
        )
        began, clock = self.clock.now, self.clock
        epoch = RunningEpoch(barrier, self.stores, False, began, lambda: clock.now, clock.turn, readers=self.jobs)
        epoch.wrote(TABLE.id, inserted=1, ended=0)
        for operator in self.operators:
            try:
                operator.run(epoch)
            except JobFailedError as error:
                self.failed[operator.job] = error.reason if error.deterministic and error.too_slow else ""
        self.stores.costs.settle(self.clock.now - began, self.clock.now)
        self.clock.now += 0.1


@pytest.mark.parametrize(("seconds", "epochs"), [(31, 1), (20, 2), (8, 7)])
def test_i13_a_job_whose_pages_take_too_long_fails_with_the_reason(seconds: float, epochs: int) -> None:
    graph = Graph(seconds)
    graph.run(1000)
    assert graph.epochs == epochs
    said = "its history and changes took longer than stage_timeout_ms (30000) allows"
    assert said in graph.failed[0]
    assert "streaming_use_snapshot_backfill = true" in graph.failed[0]


def test_i13_jobs_whose_pages_take_too_long_together_fail() -> None:
    graph = Graph(1.9, jobs=10)
    graph.run(1000)
    assert graph.epochs == 3
    assert sorted(graph.failed) == list(range(10))
    assert "its history and changes and those of other views together took longer" in graph.failed[0]


def test_i13_an_operator_behind_the_one_that_reads_says_the_same() -> None:
    graph = Graph(31)
    (behind,) = graph.operators
    behind.scans.clear()
    behind.pace.begin(Epoch(2))
    behind.pace.measured(seconds=0.1, slice_seconds=0.1, reading=True)
    assert behind.finished
    graph.run(1)
    assert "its history and changes took longer" in graph.failed[0]


@pytest.mark.parametrize(
    "graph",
    [Graph(1.9), Graph(0.15, jobs=10), Graph(8, limit=0), Graph(1, waits=20)],
    ids=["within the interval", "many that are small", "no limit", "a wait for the turn is nobody's fault"],
)
def test_i13_pages_that_take_no_longer_go_on(graph: Graph) -> None:
    graph.run(100)
    assert (graph.epochs, graph.failed, graph.clock.turns) == (100, {}, 100 * graph.jobs)
