"""The frame of a stage's scan around its engines: its place, their turns, paces and budgets, and its reports.

Next: `workers.runners.stage_scan`.
"""

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark.sql import SparkSession

from service.protocol.ids import DATABASE_GRAPH, Epoch, RelationId
from service.protocol.relation import Relation
from service.protocol.report import FragmentReport
from service.protocol.stage import Engine
from service.protocol.stage_spark import spark_from
from workers.backfill.cost import CostBudget
from workers.backfill.pace import COPYING, Pace
from workers.backfill.stages import BoundStage
from workers.engines.port import ActorOutcome, StageTask, TaskEngine
from workers.runners.failure import JobFailedError
from workers.runners.history import HistoryScan
from workers.runners.port import Phase, Place, RunningEpoch
from workers.spark.bounded import bounded_jobs, jobs_begun

FEW: Final = 1000
"""A scan of so few changes runs beside others: starting a task costs more than their rows do."""

SPARK_SLICE_SECONDS: Final = 1.5
"""In a graph of its own a job of Spark reads for so long at least, however short the interval is: its start and its end
take about as long.
"""
SPARK_SECONDS_MIN: Final = 10.0
"""Changes may take so long in Spark in any case: the first jobs of a JVM are slow, whatever they compute."""


@dataclass(kw_only=True)
class UpstreamScan(HistoryScan):
    """One scan fragment while it runs."""

    bound: BoundStage
    spark: SparkSession
    consumed: Epoch | None = None
    """The epoch that a snapshot job had consumed when it joined the database graph. Its first epoch there reads the
    rest.
    """
    paces: dict[Engine, Pace] = field(default_factory=lambda: {Engine.SPARK: Pace(), Engine.STORE: COPYING})
    """One pace per engine, because a job in the store starts and ends faster than one in Spark."""
    counted: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The engine of the last task and its jobs, as a report has them."""
    spark_reads: bool | None = None
    """Whether there is enough history for Spark. Found out once in a generation."""
    cost: CostBudget | None = None
    """The budget of its changes. Made on first use."""
    ended: bool = False

    @property
    def place(self) -> Place:
        """The place of its target, which has a higher id than everything it reads."""
        return Phase.SCAN, self.target.id, self.state.id

    @property
    def reads(self) -> Collection[RelationId]:
        """All inputs."""
        return tuple(self.bound.relations)

    @property
    def history_over(self) -> bool:
        """Whether nothing is left to be done for the history."""
        raise NotImplementedError

    @property
    def settled(self) -> bool:
        """Whether the history is over and no limit of 0 applies."""
        return self.history_over and not self.state.held

    def is_brief(self, epoch: RunningEpoch) -> bool:
        """Whether its history is over, and little of what it reads has changed in this epoch."""
        few = self._written(epoch) <= FEW
        return self.history_over and not self._asks(epoch) and few

    def _asks(self, epoch: RunningEpoch) -> bool:
        """Whether the store has to be asked what changed, because the span is not the one of the epoch's barrier."""
        return self.job in epoch.readings or self.consumed is not None

    def _by_rows(self, epoch: RunningEpoch, relation: Relation, at: Epoch) -> Engine:
        """Choose the engine by the rows of the history that is read, or of the changes of this epoch."""
        cluster = not str(self.spark.sparkContext.master).startswith("local")
        if self.history_over:
            # Spark would first read what it looks up. Changes of the log, which have come in other epochs, are not
            # counted.
            known = self.bound.stage.is_alone and not self._asks(epoch)
            rows = spark_from(epoch.barrier.scans.spark_changes_rows, cluster=cluster)
            return Engine.SPARK if known and self._written(epoch) >= rows else Engine.STORE
        if self.spark_reads is None:
            rows = spark_from(epoch.barrier.scans.spark_history_rows, cluster=cluster)
            self.spark_reads = epoch.stores.versioned.has_rows(relation, rows, at=at)
        return Engine.SPARK if self.spark_reads else Engine.STORE

    def _written(self, epoch: RunningEpoch) -> int:
        """Return how many versions of what it reads this epoch has made and ended."""
        return sum(epoch.written[one] for one in self.reads)

    def _choose(self, epoch: RunningEpoch, task: StageTask) -> tuple[Engine, TaskEngine]:
        """Return the engine that computes an epoch, made on first use, so that an idle view costs nothing."""
        raise NotImplementedError

    def _failed(self, error: Exception, epoch: RunningEpoch, task: StageTask, *, computing: bool) -> JobFailedError:
        """Return the error that blames the job."""
        raise NotImplementedError

    def _compute(self, epoch: RunningEpoch, task: StageTask) -> Sequence[ActorOutcome]:
        computing = False
        try:
            with self._turn(epoch):
                # The clock starts here, so that a long wait for the turn shortens the slice.
                began = epoch.clock()
                name, engine = self._choose(epoch, task)
                allowed = self._allowed(epoch, name)
                seconds = self.paces[name].slice_seconds(epoch.share_seconds())
                if name is Engine.SPARK and epoch.barrier.graph != DATABASE_GRAPH:
                    seconds = max(seconds, SPARK_SLICE_SECONDS)
                task = task.model_copy(update={"slice_seconds": seconds, "allowed_seconds": allowed})
                # Checked here, because a call of `end` from now on finds the engine.
                self._check_present()
                computing = True
                limit = epoch.stores.stage_timeout_ms
                before = jobs_begun(self.spark) if name is Engine.SPARK else 0
                with bounded_jobs(self.spark, limit, allowed if name is Engine.SPARK else None):
                    outcomes = engine.run(task)
                # A job of another graph that ran meanwhile is counted for both.
                jobs = jobs_begun(self.spark) - before if name is Engine.SPARK else 1
                self.counted = {"engine": name, "jobs": jobs}
        except Exception as error:
            raise self._failed(error, epoch, task, computing=computing) from error
        job_seconds = epoch.clock() - began
        if self.cost is not None:
            self.cost = self.cost.charged(job_seconds, epoch.clock())
        self.paces[name] = self.measure(
            outcomes, self.paces[name], slice_seconds=task.slice_seconds, job_seconds=job_seconds
        )
        return outcomes

    def _allowed(self, epoch: RunningEpoch, engine: Engine) -> float | None:
        """Return how long the changes of this epoch may take. History is bound by its slice."""
        if not self.history_over:
            return None
        self.cost = self.cost or CostBudget(epoch.stores.stage_timeout_ms / 1000)
        allowed = self.cost.allowed(epoch.clock())
        return allowed if allowed is None or engine is Engine.STORE else max(allowed, SPARK_SECONDS_MIN)

    def _turn(self, epoch: RunningEpoch) -> AbstractContextManager[None]:
        """Return the context in which an engine runs.

        A created job in a graph of its own may compute for long, and others have their turns meanwhile.
        """
        return nullcontext() if epoch.barrier.follows else epoch.spark_turn()

    def _check_present(self) -> None:
        if self.ended:
            raise InterruptedError("the generation is over")

    def _advance(self, epoch: RunningEpoch, task: StageTask) -> Sequence[ActorOutcome]:
        """Compute a task, and record what was read and written."""
        outcomes = self._compute(epoch, task)
        self.advance(outcomes)
        inserted, closed = sum(one.inserted for one in outcomes), sum(one.closed for one in outcomes)
        epoch.wrote(self.target.id, inserted=inserted, ended=closed)
        return outcomes

    def _report(
        self, epoch: RunningEpoch, outcomes: Sequence[ActorOutcome], *, finishing: bool, held_up: bool = False
    ) -> Sequence[FragmentReport]:
        epoch.timings_ms |= {f"{name}_{self.state.id}": took for name, took in self.timings_ms.items()}
        by_actor = {outcome.actor: outcome for outcome in outcomes}
        reports = self.reports(
            by_actor,
            finishing=finishing,
            held_up=held_up,
            forwarded=lambda actor: by_actor[actor].upstream_rows if actor in by_actor else 0,
        )
        counted, self.counted = self.counted, {}
        if not counted:
            return reports
        first, *others = reports
        return (
            first.model_copy(update=counted),
            *(one.model_copy(update={"engine": counted["engine"]}) for one in others),
        )
