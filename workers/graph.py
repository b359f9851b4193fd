"""One graph on one worker: hold its fragments, and run one epoch of all of them.

Order inside an epoch: the mutation acts first (I4), then the statements run, if the barrier carries any. Then the
runners run: sources before the scans that read their tables, and an upstream before its downstreams
(`workers.runners.running`). A scan without changes and without history to read starts no work. Next:
`workers.runners.running`, then `workers.runners.stage_scan`.
"""

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark.sql import SparkSession

from service.protocol.barrier import Barrier, BarrierKind
from service.protocol.ids import COUNT_MAX, DATABASE_GRAPH, Epoch, Generation, GraphId, JobId, WorkerId
from service.protocol.mutation import Add, Pause, Resume, Stop
from service.protocol.plan import DmlPlan, FragmentKind, JobPlan
from service.protocol.report import Collected, FragmentReport, RelationReport
from workers.backfill.cost import CostBudget
from workers.backfill.reading import Replay
from workers.runners.dml import run_statements
from workers.runners.failure import JobFailedError, key_seconds, search_all
from workers.runners.long_keys import LongKeys
from workers.runners.own_turns import OwnTurns
from workers.runners.port import FragmentRunner, Join, Place, RunningEpoch, Stores
from workers.runners.running import run_all
from workers.spark.session import OWN_AT_ONCE
from workers.state_store.port import Upkeep

SCANS_AT_ONCE: Final = 4
"""How many scans of the database graph forward changes at a time. Each copies with as many connections as it has
actors.
"""
EPOCHS_ALONE: Final = 2
"""In how many epochs with changes a generation runs its scans one by one at first. The generation before may have ended
because a job takes too much memory, and only of one that computes alone can that be told. One that ended by a job's own
fault, such as a wrong value, changes nothing: the others follow at once.
"""
SEARCH_REST_SECONDS: Final = 60.0
"""The rows that made a caller's views fail in the database graph are searched for once in so long."""


@dataclass
class GraphExecutor:
    """Runs a graph's epochs. A new generation starts afresh from the plan of its initial barrier.

    `turn` is a mutex that is held while a Spark job runs. The graphs of all snapshot jobs share one, so however many
    there are, the database graph keeps as many task slots as it uses (I10).
    """

    worker: WorkerId
    spark: SparkSession
    connect: Callable[[Barrier], Stores]
    joins: Mapping[FragmentKind, Join]
    """How to make the runner of each kind of fragment. DML fragments have none: a barrier carries the statements."""
    upkeep: Upkeep | None = None
    turn: AbstractContextManager[Any] = field(default_factory=nullcontext[None])
    own_turns: OwnTurns = field(default_factory=OwnTurns)
    """The turns of created jobs in graphs of their own, which all graphs of the worker share."""
    spark_turns: OwnTurns = field(default_factory=lambda: OwnTurns(total=OWN_AT_ONCE))
    """Those of them that Spark computes."""
    pool: str = "default"
    """The Spark scheduler pool. Spark shares its task slots evenly between pools."""
    clock: Callable[[], float] = time.monotonic  # noqa: TID251 - the executor owns the worker's clock
    generation: Generation | None = None
    stores: Stores | None = None
    paused: bool = False
    runners: dict[Place, FragmentRunner] = field(default_factory=dict[Place, FragmentRunner])
    replays: dict[JobId, Replay] = field(default_factory=dict[JobId, Replay])
    """Replay progress of the snapshot jobs, which run in partial graphs."""
    long_keys: LongKeys = field(default_factory=LongKeys)
    threads: Executor | None = None
    """Where scans run beside each other; None if they always run one by one."""
    alone: int = EPOCHS_ALONE
    explained: bool = False
    """Whether the present generation ends by a job's own fault."""
    slow: dict[str, CostBudget] = field(default_factory=dict[str, CostBudget])
    """The budgets of callers whose views took too long (`SharedCosts.slow`)."""
    paged: dict[str, CostBudget] = field(default_factory=dict[str, CostBudget])
    """The budgets of callers for pages of history (`SharedCosts.paged`)."""
    searched: dict[str, float] = field(default_factory=dict[str, float])
    """When rows were last searched for, by caller."""
    over: bool = False
    """Whether this executor was interrupted: the leader no longer waits for its epochs."""

    def run(self, barrier: Barrier) -> Collected:
        """Run one epoch; when it returns, everything it wrote is durable.

        Raises JobFailedError when one job or several caused the failure.
        """
        began = self.clock()
        if barrier.kind is BarrierKind.INITIAL:
            self._begin(barrier)
        assert barrier.generation == self.generation, "a barrier of another generation"
        self._mutate(barrier)
        epoch = self._epoch(barrier, began)
        told = run_statements(epoch) if barrier.statements else ()
        costs = epoch.stores.costs
        costs.began = self.clock()
        try:
            reports = run_all(self.runners, epoch, None if self.alone or self.threads is None else self.threads.map)
            self.long_keys.check(reports)
        except JobFailedError as error:
            self.explained = error.deterministic
            costs.failed([one.job for one in (error, *error.others)], self.clock())
            if error.deterministic:
                error.exceeding = costs.exceeding(self.clock())
            self._find_rows(error, barrier)
            raise
        costs.settle(self.clock() - costs.began, self.clock())
        if epoch.changed and self.alone:
            self.alone -= 1
        consumed = self._replayed(epoch)
        if self.upkeep is not None:
            for relation, rows in epoch.inserted.items():
                self.upkeep.wrote(relation, rows)
            self.upkeep.look()
        epoch.timings_ms["epoch"] = (self.clock() - began) * 1000
        return self._collected(epoch, (*told, *reports), consumed)

    def interrupt(self) -> None:
        """End this executor: it starts no further Spark job, and its running one is cancelled, which frees `turn`.

        Called from another thread than the one that runs the epoch.
        """
        self.over = True
        for runner in list(self.runners.values()):
            runner.end()
        self.spark.sparkContext.cancelJobGroup(self._group)

    def _find_rows(self, error: JobFailedError, barrier: Barrier) -> None:
        """Look for the rows that made jobs fail. Nobody waits for `turn` meanwhile."""
        failures = [one for one in (error, *error.others) if one.deterministic]
        if barrier.graph == DATABASE_GRAPH:
            failures = self._due(failures)
        if failures and not self.over:
            self._name_jobs(barrier.curr)
            search_all(failures, self.clock, seconds=key_seconds(barrier.graph))

    def _due(self, failures: Sequence[JobFailedError]) -> Sequence[JobFailedError]:
        """Return the failures of callers for which nothing was searched lately: a row of views that fail one after the
        other would hold up everybody for the searches, which take most of the time.
        """
        assert self.stores is not None
        caller, now = self.stores.costs.caller, self.clock()
        self.searched = {one: at for one, at in self.searched.items() if now - at < SEARCH_REST_SECONDS}
        due = [one for one in failures if caller(one.job) not in self.searched]
        self.searched.update({caller(one.job): now for one in due})
        return due

    def _begin(self, barrier: Barrier) -> None:
        for runner in self.runners.values():
            runner.end()
        self.runners, self.replays, self.long_keys = {}, {}, LongKeys()
        self.generation, self.stores = barrier.generation, self.connect(barrier)
        costs = self.stores.costs
        costs.slow, costs.paged, costs.apart = self.slow, self.paged, barrier.scans.apart
        self.alone, self.explained = self.alone if self.explained else EPOCHS_ALONE, False

    def _mutate(self, barrier: Barrier) -> None:
        now = self.clock()
        match barrier.mutation:
            case Pause() | Resume():
                self.paused = isinstance(barrier.mutation, Pause)
            case Add(jobs=jobs, paused=paused):
                self.paused = paused if barrier.kind is BarrierKind.INITIAL else self.paused
                self._add(jobs, barrier.graph, now)
            case Stop(jobs=jobs):
                self._stop(jobs)
            case None:
                pass
            case mutation:
                for runner in self.runners.values():
                    runner.mutate(mutation, now)

    def _add(self, jobs: Sequence[JobPlan], graph: GraphId, now: float) -> None:
        assert self.stores is not None
        for job in jobs:
            self.stores.costs.callers[job.id] = job.caller
            self.long_keys.add(job)
            if job.snapshot is not None and graph != DATABASE_GRAPH:
                self.replays[job.id] = Replay(job.snapshot.epoch, job.snapshot.consumed)
            for fragment in job.fragments:
                if not isinstance(fragment, DmlPlan):
                    runner = self.joins[fragment.kind](self.runners, job, fragment, now)
                    self.runners[runner.place] = runner

    def _stop(self, jobs: Sequence[JobId]) -> None:
        self.long_keys.remove(jobs)
        for place, runner in list(self.runners.items()):
            if runner.stop(jobs):
                runner.end()
                del self.runners[place]

    def _epoch(self, barrier: Barrier, began: float) -> RunningEpoch:
        assert self.stores is not None
        upto = self._replay_upto(barrier)
        return RunningEpoch(
            barrier,
            self.stores,
            self.paused,
            began,
            self.clock,
            lambda: self._spark_turn(barrier.curr),
            sum(runner.readers(paused=self.paused) for runner in self.runners.values()),
            {job: replay.reading(upto) for job, replay in self.replays.items()},
            work=None if barrier.traceparent is None else [],
            own_turn=self.own_turn,
            own_spark=self.own_spark,
        )

    def _replay_upto(self, barrier: Barrier) -> Epoch | None:
        """Return up to which epoch the change log may be replayed now.

        None while the snapshot is still being read, and while a pause or a limit of 0 stops the job.
        """
        if barrier.follows:
            return barrier.replay_upto
        settled = not self.paused and all(runner.settled for runner in self.runners.values())
        return barrier.replay_upto if settled else None

    def _replayed(self, epoch: RunningEpoch) -> Epoch | None:
        """Record and return how far the replay has come. The bound is computed again, because a snapshot may have been
        completed in this epoch.
        """
        upto = self._replay_upto(epoch.barrier)
        if upto is None:
            return None
        for job, reading in epoch.readings.items():
            self.replays[job].replayed(reading, upto)
        return max((reading.upto for reading in epoch.readings.values()), default=None)

    def _collected(self, epoch: RunningEpoch, reports: tuple[FragmentReport, ...], consumed: Epoch | None) -> Collected:
        return Collected(
            worker=self.worker,
            graph=epoch.barrier.graph,
            generation=epoch.barrier.generation,
            epoch=epoch.barrier.curr,
            reports=reports,
            relations=tuple(
                # Files may say any number of rows of themselves.
                RelationReport(relation=relation, key_count_delta=max(-COUNT_MAX, min(delta, COUNT_MAX)))
                for relation, delta in epoch.key_count_deltas.items()
                if delta
            ),
            timings_ms=epoch.timings_ms,
            consumed=consumed,
            work=epoch.longest_work() if epoch.work else (),
        )

    @property
    def _group(self) -> str:
        """The Spark job group of this generation."""
        return f"{self.pool}-{self.generation}"

    @contextmanager
    def _spark_turn(self, epoch: Epoch) -> Generator[None]:
        """Hold `turn` for a Spark job of this generation. Raises InterruptedError after the generation has ended."""
        with self.turn:
            if self.over:
                raise InterruptedError(f"generation {self.generation} is over")
            self._name_jobs(epoch)
            yield

    def own_turn(self, job: JobId) -> AbstractContextManager[None]:
        """Return the context in which a created job in a graph of its own computes, as a turn of its caller."""
        assert self.stores is not None
        costs = self.stores.costs
        return self.own_turns.turn(costs.caller(job), lambda: self.over, apart=costs.is_apart(job))

    def own_spark(self, job: JobId) -> AbstractContextManager[None]:
        """Return the context in which Spark computes such a job. Tasks keep their slots, and others need some, too."""
        assert self.stores is not None
        return self.spark_turns.turn(self.stores.costs.caller(job), lambda: self.over)

    def _name_jobs(self, epoch: Epoch) -> None:
        """Let the Spark jobs of this thread run in this graph's pool and group."""
        self.spark.sparkContext.setLocalProperty("spark.scheduler.pool", self.pool)
        self.spark.sparkContext.setJobGroup(self._group, f"epoch {epoch}", interruptOnCancel=True)
