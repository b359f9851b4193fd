"""An operator: a stage that follows its inputs from its job's first epoch on, while scans of them read history.

One runner serves an operator and the scans of its inputs, because they share a transaction: a row reaches the stage in
the epoch in which its scan passes it. Next: `workers.engines.operators`.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from pyspark.sql import SparkSession

from service.protocol.ids import Epoch, FragmentId, JobId, RelationId
from service.protocol.mutation import Mutation
from service.protocol.plan import FragmentPlan, JobPlan, OperatorPlan, Prefix, TableScanPlan
from service.protocol.relation import Relation
from service.protocol.report import FragmentReport
from workers.backfill.actors import FragmentTask
from workers.backfill.cost import CostBudget
from workers.backfill.pace import OPERATOR_ROWS_FIRST, OperatorPace, operator_rows_after
from workers.backfill.positions import BLOCK_VNODES
from workers.backfill.scan import ScanState
from workers.backfill.stages import BoundStage, Window
from workers.engines.copiers import Copiers
from workers.engines.operators import OperatorEngine, OperatorOutcome, OperatorTask
from workers.engines.port import ActorOutcome
from workers.runners.failure import JobFailedError
from workers.runners.history import HistoryScan
from workers.runners.port import FEW, FragmentRunner, Phase, Place, RunningEpoch
from workers.state_store.port import TooSlowError, has_store_engine

_NONE: Final[Sequence[ActorOutcome]] = ()


@dataclass(kw_only=True)
class PrefixScan(HistoryScan):
    """The scan of one input: it says how much of it the operator sees."""

    alias: str
    page_rows: int = OPERATOR_ROWS_FIRST
    read: int = 0
    """How many rows it read in the last epoch, of the `wanted` ones."""
    wanted: int = 0

    def resize(self, fits: float) -> int:
        """Return the next page size, given how well the last pages of the job fitted."""
        self.page_rows = operator_rows_after(self.page_rows, rows=self.read, wanted=self.wanted, fits=fits)
        self.read = self.wanted = 0
        return self.page_rows

    def replan(self) -> None:
        """Do nothing: the engine does not depend on the actors."""


@dataclass(kw_only=True)
class Operator:
    """One operator with the scans of its inputs while it runs: a `FragmentRunner`."""

    job: JobId
    fragment: FragmentId
    bound: BoundStage
    own: frozenset[RelationId]
    """The relations that the job itself writes."""
    pace: OperatorPace
    """Shared by all operators of the job."""
    anew: bool
    """Whether no epoch of the job may have committed, so that the target may lack what is always there."""
    scans: dict[FragmentId, PrefixScan] = field(default_factory=dict[FragmentId, PrefixScan])
    engine: OperatorEngine | None = None
    """Made on first use, so that an idle view costs nothing."""
    cost: CostBudget | None = None
    """The budget of its pages and changes: others wait for both. Made on first use."""
    ended: bool = False

    @classmethod
    def join(
        cls,
        _spark: SparkSession,
        runners: Mapping[Place, FragmentRunner],
        job: JobPlan,
        fragment: FragmentPlan,
        now: float,
    ) -> "Operator":
        """Return the runner of an operator or of a scan of its inputs. Whichever comes first makes it."""
        if isinstance(fragment, OperatorPlan):
            return cls._of(runners, job, fragment)
        assert isinstance(fragment, TableScanPlan)
        assert isinstance(fragment.query, Prefix)
        operator = cls._of(runners, job, job.operators[fragment.query.operator])
        scan = PrefixScan(job.id, operator.bound.target, ScanState.of(fragment, now=now), alias=fragment.query.alias)
        operator.scans[fragment.id] = scan
        return operator

    @classmethod
    def _of(cls, runners: Mapping[Place, FragmentRunner], job: JobPlan, plan: OperatorPlan) -> "Operator":
        siblings = [one for one in runners.values() if isinstance(one, Operator) and one.job == job.id]
        for one in siblings:
            if one.fragment == plan.id:
                return one
        target = job.written_by(plan)
        return cls(
            job=job.id,
            fragment=plan.id,
            bound=BoundStage(plan.query, target, {one.id: one for one in plan.inputs}),
            own=frozenset(one.id for one in job.hidden),
            pace=siblings[0].pace if siblings else OperatorPace(),
            anew=not any(scan.finished or any(one.positions for one in scan.actors) for scan in job.table_scans),
        )

    @property
    def target(self) -> Relation:
        """The relation that it writes."""
        return self.bound.target

    @property
    def place(self) -> Place:
        """The place of its target, which has a higher id than everything it reads."""
        return Phase.SCAN, self.target.id, self.fragment

    @property
    def reads(self) -> Collection[RelationId]:
        """All inputs."""
        return tuple(self.bound.relations)

    @property
    def finished(self) -> bool:
        """Whether the history of all inputs is read."""
        return all(scan.state.finished for scan in self.scans.values())

    @property
    def settled(self) -> bool:
        """Whether all history is read and no limit of 0 applies."""
        return self.finished and not any(scan.state.held for scan in self.scans.values())

    def mutate(self, mutation: Mutation, now: float) -> None:
        """Apply a mutation to the scans that it names."""
        for scan in self.scans.values():
            scan.mutate(mutation, now)

    def readers(self, *, paused: bool) -> int:
        """Return how many of the scans may read history."""
        return sum(scan.readers(paused=paused) for scan in self.scans.values())

    def is_brief(self, epoch: RunningEpoch) -> bool:
        """Whether all history is read, and little of what it reads has changed in this epoch."""
        return self.finished and sum(epoch.written[one] for one in self.reads) <= FEW

    def stop(self, jobs: Sequence[JobId]) -> bool:
        """Return whether its job is among `jobs`."""
        return self.job in jobs

    def end(self) -> None:
        """Make a running engine fail soon, and run nothing any more."""
        self.ended = True
        if self.engine is not None:
            self.engine.give_up()

    def run(self, epoch: RunningEpoch) -> Sequence[FragmentReport]:
        """Run one epoch: the history that may be read now, and the changes of what was read before."""
        self.cost = self.cost or epoch.stores.budget()
        began, task = epoch.clock(), self._task(epoch)
        finished = {fragment: scan.state.finished for fragment, scan in self.scans.items()}
        reads = [actor.permits != 0 for scan in task.scans.values() for actor in scan.actors]
        outcome = None
        if task.changed or any(reads) or task.anew:
            share = epoch.share_seconds() * self.readers(paused=epoch.paused)
            outcome = self._compute(epoch, task)
            self.anew = False
            seconds = epoch.clock() - began
            self.pace.measured(seconds=seconds, slice_seconds=share, reading=not all(finished.values()))
            epoch.timings_ms[f"job_{self.fragment}"] = seconds * 1000
            if any(reads):
                epoch.stores.page_took(self.job, seconds, epoch.clock())
                epoch.timings_ms[f"reading_{self.fragment}"] = seconds * 1000
            written = outcome.replayed.written
            epoch.wrote(self.target.id, inserted=written.inserted, ended=written.closed)
        return [report for one in self.scans for report in self._reports(one, outcome, finishing=finished[one])]

    def _task(self, epoch: RunningEpoch) -> OperatorTask:
        curr, fits = epoch.barrier.curr, self.pace.begin(epoch.barrier.curr)
        # The job's own relations change at the epoch itself, those of others since the last one.
        own, window = Window(Epoch(curr - 1), curr), Window(epoch.barrier.prev, curr)
        stage = self.bound.stage
        always = stage.is_whole or (stage.aggregate is not None and stage.aggregate.always)
        return OperatorTask(
            curr=curr,
            windows={one: own if one in self.own else window for one in self.reads},
            changed=frozenset(epoch.changed.intersection(self.reads)),
            scans={
                scan.alias: FragmentTask(
                    curr=curr, actors=scan.actor_tasks(scan.page_permits(epoch)), page_rows=scan.resize(fits)
                )
                for scan in self.scans.values()
                if not scan.state.finished
            },
            anew=self.anew and always,
            allowed_seconds=None if self.cost is None else epoch.stores.allowed(self.job, self.cost, epoch.clock()),
        )

    def _compute(self, epoch: RunningEpoch, task: OperatorTask) -> OperatorOutcome:
        computing = False
        try:
            epoch.stores.check_cost(self.job)
            with epoch.spark_turn():
                # The clock of the cost starts here: the wait for the turn is not the job's.
                began = epoch.clock()
                engine = self._engine(epoch)
                # Checked here, because a call of `end` from now on finds the engine.
                self._check_present()
                computing = True
                try:
                    with epoch.stores.noting_slow(self.job, epoch.clock):
                        return engine.run(task)
                finally:
                    self._charge(epoch, epoch.clock() - began)
        except Exception as error:
            told = _told(error, history=self.pace.reading or not self.finished)
            upstream = self.bound.upstream
            raise JobFailedError(self.job, told, target=self.target, upstream=upstream, computing=computing) from error

    def _charge(self, epoch: RunningEpoch, seconds: float) -> None:
        assert self.cost is not None
        self.cost = self.cost.charged(seconds, epoch.clock())
        epoch.stores.took(self.job, seconds)

    def _check_present(self) -> None:
        if self.ended:
            raise InterruptedError("the generation is over")

    def _engine(self, epoch: RunningEpoch) -> OperatorEngine:
        store = epoch.stores.versioned
        assert has_store_engine(store), "the table format computes no stages"
        if self.engine is None:
            block = next((scan.state.block_vnodes for scan in self.scans.values()), BLOCK_VNODES)
            self.engine = OperatorEngine(store, self.bound, Copiers(f"operator-{self.fragment}", 1), block)
        return self.engine

    def _reports(
        self, fragment: FragmentId, outcome: OperatorOutcome | None, *, finishing: bool
    ) -> Sequence[FragmentReport]:
        scan = self.scans[fragment]
        outcomes = _NONE if outcome is None else outcome.scans.get(scan.alias, _NONE)
        scan.advance(outcomes)
        scan.read = sum(one.snapshot_rows for one in outcomes)
        scan.wanted = scan.page_rows * len(outcomes)
        # The changes are computed once for all scans, so the first actor of the first one reports them.
        first = next(iter(self.scans)) == fragment
        changes = 0 if outcome is None or not first else outcome.replayed.read
        by_actor = {one.actor: one for one in outcomes}
        return scan.reports(by_actor, finishing=finishing, forwarded=lambda actor: 0 if actor else changes)


def _told(error: Exception, *, history: bool) -> Exception:
    """Return an error as users are told of it, if the job's `history` was being read."""
    return error.with_history() if history and isinstance(error, TooSlowError) else error
