"""Run a stage's engines: their turns at Spark, their slices by the pace of each, and the budget of its changes."""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark.sql import SparkSession

from service.protocol.ids import DATABASE_GRAPH, JobId
from service.protocol.stage import Engine
from workers.backfill.cost import CostBudget
from workers.backfill.pace import COPYING, Pace
from workers.engines.port import ActorOutcome, StageTask, TaskEngine
from workers.runners.history import HistoryScan
from workers.runners.port import RunningEpoch
from workers.spark.bounded import bounded_jobs, jobs_begun

SPARK_SLICE_SECONDS: Final = 1.5
"""In a graph of its own a job of Spark reads for so long at least, however short the interval is: its start and its end
take about as long.
"""
SPARK_SECONDS_MIN: Final = 10.0
"""The changes of a caller's views may take so long in Spark in any case, and so may those of each view that Spark has
not computed before: the first jobs of a JVM are slow, whatever they compute.
"""


@dataclass
class EngineTurns:
    """The runs of a stage's engines in one generation."""

    spark: SparkSession
    paces: dict[Engine, Pace] = field(default_factory=lambda: {Engine.SPARK: Pace(), Engine.STORE: COPYING})
    """One pace per engine, because a job in the store starts and ends faster than one in Spark."""
    counted: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The engine of the last task and its jobs, as a report has them."""
    cost: CostBudget | None = None
    """The budget of the changes. Made on first use."""
    ended: bool = False
    computing: bool = False
    """Whether the last run failed while an engine computed."""

    def run(
        self,
        epoch: RunningEpoch,
        task: StageTask,
        choose: Callable[[], tuple[Engine, TaskEngine]],
        scan: HistoryScan,
        *,
        history_over: bool,
    ) -> Sequence[ActorOutcome]:
        """Run one epoch by the engine that is chosen in its turn. Raises the errors of the store and of Spark."""
        self.computing = False
        with self._chosen(epoch, scan.job, choose) as (name, engine):
            # The clock starts here, so that a long wait for the turn shortens the slice.
            began = epoch.clock()
            # Changes beside history are changes: its author may have it read as slowly as he likes.
            changes = history_over or bool(task.changed)
            allowed = self._limit(epoch, name, scan, changes=changes, page=not history_over)
            seconds = self.paces[name].slice_seconds(epoch.share_seconds())
            if name is Engine.SPARK and epoch.barrier.graph != DATABASE_GRAPH:
                seconds = max(seconds, SPARK_SLICE_SECONDS)
            task = task.model_copy(update={"slice_seconds": seconds, "allowed_seconds": allowed})
            # Checked here, because a call of `end` from now on finds the engine.
            self.check_present()
            self.computing = True
            limit = epoch.stores.stage_timeout_ms
            before = jobs_begun(self.spark) if name is Engine.SPARK else 0
            with (
                self._charged(epoch, scan.job, since=began, changes=changes, page=not history_over),
                epoch.stores.noting_slow(scan.job, epoch.clock, history=not history_over),
                bounded_jobs(self.spark, limit, allowed, lambda: not self.ended)
                if name is Engine.SPARK
                else nullcontext(),
            ):
                outcomes = engine.run(task)
            # A job of another graph that ran meanwhile is counted for both.
            jobs = jobs_begun(self.spark) - before if name is Engine.SPARK else 1
            self.counted = {"engine": name, "jobs": jobs}
        job_seconds = epoch.clock() - began
        self.paces[name] = scan.measure(outcomes, self.paces[name], slice_seconds=seconds, job_seconds=job_seconds)
        return outcomes

    def _limit(
        self, epoch: RunningEpoch, engine: Engine, scan: HistoryScan, *, changes: bool, page: bool
    ) -> float | None:
        """Return how long changes, a page of history, or both, may take. None: for as long as they like."""
        limits = (
            self._allowed(epoch, engine, scan) if changes else None,
            epoch.stores.page_allowed(scan.job, epoch.clock()) if page else None,
        )
        return min((one for one in limits if one is not None), default=None)

    @contextmanager
    def _charged(self, epoch: RunningEpoch, job: JobId, *, since: float, changes: bool, page: bool) -> Generator[None]:
        """Record what a block takes, also of one that fails: four views, each of which failed in the end, took 18 s
        each of one epoch.
        """
        try:
            yield
        finally:
            now = epoch.clock()
            if changes and self.cost is not None:
                self.cost = self.cost.charged(now - since, now)
                epoch.stores.took(job, now - since)
            if page:
                epoch.stores.page_took(job, now - since, now)

    def turn(self, epoch: RunningEpoch, job: JobId) -> AbstractContextManager[object]:
        """Return the context in which an engine runs.

        A created job in a graph of its own may compute for long, and others have their turns meanwhile.
        """
        return epoch.own_turn(job) if epoch.barrier.follows else epoch.spark_turn()

    @contextmanager
    def _chosen(
        self, epoch: RunningEpoch, job: JobId, choose: Callable[[], tuple[Engine, TaskEngine]]
    ) -> Generator[tuple[Engine, TaskEngine]]:
        """Yield the engine of an epoch in its turn. A view that waits for one in Spark has no other turn meanwhile."""
        if epoch.barrier.follows:
            name, engine = choose()
            with epoch.own_spark(job) if name is Engine.SPARK else nullcontext(), self.turn(epoch, job):
                yield name, engine
        else:
            with self.turn(epoch, job):
                yield choose()

    def check_present(self) -> None:
        """Raise InterruptedError if the generation is over."""
        if self.ended:
            raise InterruptedError("the generation is over")

    def _allowed(self, epoch: RunningEpoch, engine: Engine, scan: HistoryScan) -> float | None:
        """Return how long the changes of this epoch may take."""
        epoch.stores.check_cost(scan.job)
        self.cost = self.cost or epoch.stores.budget()
        least = 0.0 if engine is Engine.STORE else SPARK_SECONDS_MIN
        anew = engine is Engine.SPARK and self.counted.get("engine") is not Engine.SPARK
        return epoch.stores.allowed(scan.job, self.cost, epoch.clock(), least=least, anew=anew)
