"""The protocol by which a graph runs its fragments, and the state that an epoch gives to each of them.

A runner runs one fragment, or several that share something: the statements of an epoch share a transaction, and the
tables of a source share its log. To add a kind of fragment, write a runner and list it in `workers.runners.kinds`.
Next: `workers.runners.running`, which calls them.
"""

from collections import Counter
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from enum import IntEnum
from threading import Lock
from typing import Final, Protocol

from service.protocol.barrier import Barrier
from service.protocol.ids import DATABASE_GRAPH, FragmentId, JobId, RelationId
from service.protocol.mutation import Mutation
from service.protocol.plan import FragmentPlan, JobPlan
from service.protocol.report import WORK_MAX, FragmentReport, Work
from workers.backfill.cost import CostBudget, SharedCosts
from workers.backfill.pace import epoch_seconds, share_of
from workers.backfill.reading import Reading
from workers.state_store.port import DmlWriter, SqlStore, TooSlowError, VersionedStore

FEW: Final = 1000
"""A fragment runs beside others if it reads at most so many changes: starting a task costs more than their rows do."""


@dataclass
class Stores:
    """The worker's access to the state store in one generation."""

    versioned: VersionedStore
    dml: DmlWriter | None
    """None for a format that runs no statements."""
    sql: SqlStore | None = None
    """None for a format that stores no table that is filled from a source."""
    stage_timeout_ms: int = 0
    """How long the changes of a scan may take, and those of all scans; 0 is no limit. Pages of operators count."""
    costs: SharedCosts = field(init=False)
    _lock: Lock = field(default_factory=Lock)

    def __post_init__(self) -> None:
        self.costs = SharedCosts(self.budget())

    def budget(self) -> CostBudget:
        """Return the bucket with which a scan begins."""
        return CostBudget(self.stage_timeout_ms / 1000)

    def allowed(
        self, job: JobId, own: CostBudget, now: float, *, least: float = 0.0, anew: bool = False
    ) -> float | None:
        """Return how many seconds the changes of a job may take in this epoch. See `SharedCosts.allowed`."""
        with self._lock:
            return self.costs.allowed(job, own, now, least=least, anew=anew)

    def took(self, job: JobId, seconds: float) -> None:
        """Record what the changes of a job took in this epoch. Scans that run beside each other call it."""
        with self._lock:
            self.costs.took(job, round(seconds * 1000))

    def page_allowed(self, job: JobId, now: float) -> float | None:
        """Return how many seconds a page of history may take: its slice ends no page that was begun. None: any."""
        with self._lock:
            return self.costs.page_allowed(job, now)

    def page_took(self, job: JobId, seconds: float, now: float) -> None:
        """Record what a page of history took."""
        with self._lock:
            self.costs.page_took(job, seconds, now)

    def may_read(self, scan: FragmentId, now: float) -> bool:
        """Whether a scan reads a page of its history in this epoch. See `PageTurns`."""
        with self._lock:
            return not self.stage_timeout_ms or self.costs.pages.may_read(scan, changes=self.costs.taken(now))

    @contextmanager
    def noting_slow(self, job: JobId, clock: Callable[[], float], *, history: bool = False) -> Generator[None]:
        """Record it if the changes of a job, which the block computes, take too long. With `history`, its pages do."""
        try:
            yield
        except TooSlowError as error:
            with self._lock:
                self.costs.exceeded(job, clock())
            if history:
                raise error.with_history() from error
            raise

    def check_cost(self, job: JobId) -> None:
        """Raise TooSlowError if a job's changes take the most of what all take together, and that is too much."""
        if job in self.costs.over:
            raise TooSlowError(self.stage_timeout_ms, together=True)

    @property
    def by_sql(self) -> SqlStore:
        """The store of tables that are filled from a source."""
        assert self.sql is not None, "the table format stores no table that is filled from a source"
        return self.sql


class Phase(IntEnum):
    """The order of runners in an epoch: tables are written before they are read. Statements run before all runners."""

    SOURCE = 0
    SCAN = 1


Place = tuple[Phase, int, int]
"""A runner's place in an epoch's order: phase, relation, fragment. A relation has a higher id than those it reads."""


@dataclass
class RunningEpoch:
    """One epoch while it runs: the barrier, the shared state of its runners, and what the earlier ones have written."""

    barrier: Barrier
    stores: Stores
    paused: bool
    began: float
    clock: Callable[[], float]
    spark_turn: Callable[[], AbstractContextManager[None]]
    """Enter it while a Spark job runs."""
    readers: int = 0
    """How many scans that have not run yet may read history. They share the rest of the interval."""
    readings: Mapping[JobId, Reading] = field(default_factory=dict[JobId, Reading])
    """The read windows of snapshot jobs in a partial graph."""
    changed: set[RelationId] = field(default_factory=set[RelationId])
    key_count_deltas: Counter[RelationId] = field(default_factory=Counter[RelationId])
    inserted: Counter[RelationId] = field(default_factory=Counter[RelationId])
    written: Counter[RelationId] = field(default_factory=Counter[RelationId])
    """How many versions were made and ended of each relation."""
    timings_ms: dict[str, float] = field(default_factory=dict[str, float])
    work: list[Work] | None = None
    """The parts of the epoch's work that have ended. None if nobody asks."""
    own_turn: Callable[[JobId], AbstractContextManager[object]] = nullcontext
    """Enter it while a created job in a graph of its own computes."""
    own_spark: Callable[[JobId], AbstractContextManager[object]] = nullcontext
    """Enter it as well while Spark computes it."""
    _lock: Lock = field(default_factory=Lock)

    def wrote(self, relation: RelationId, *, inserted: int, ended: int) -> None:
        """Record the versions that were written to a relation."""
        if not (inserted or ended):
            return
        # Scans that run beside each other write to different relations, or are branches of one view.
        with self._lock:
            self.changed.add(relation)
            self.key_count_deltas[relation] += inserted - ended
            self.inserted[relation] += inserted
            self.written[relation] += inserted + ended

    @contextmanager
    def working(self, name: str) -> Generator[None]:
        """Record how long a part of the epoch's work takes, if anybody asks."""
        if self.work is None:
            yield
            return
        since = self.clock()
        try:
            yield
        finally:
            began, ms = (since - self.began) * 1000, (self.clock() - since) * 1000
            self.work.append(Work(name=name, began_ms=began, ms=ms))

    def longest_work(self) -> tuple[Work, ...]:
        """Return the longest parts of the epoch's work, at most `WORK_MAX`. Parts below 1 ms explain nothing."""
        told = sorted((one for one in self.work or () if one.ms >= 1), key=lambda one: -one.ms)
        return tuple(told[:WORK_MAX])

    def share_seconds(self) -> float:
        """Return each reader's share of the rest of the interval."""
        elapsed = self.barrier.overhead_ms / 1000 + self.clock() - self.began
        interval = epoch_seconds(self.barrier.interval_ms / 1000, alone=self.barrier.graph != DATABASE_GRAPH)
        return share_of(interval, elapsed_seconds=elapsed, jobs=self.readers)


class FragmentRunner(Protocol):
    """Runs a fragment, or several that share something, in every epoch of a generation."""

    @property
    def place(self) -> Place:
        """The runner's place in the order of an epoch; unique."""
        ...

    @property
    def reads(self) -> Collection[RelationId]:
        """The relations of the graph that it reads."""
        ...

    @property
    def settled(self) -> bool:
        """Whether all history is read and no limit of 0 applies, so that a change log may be replayed."""
        ...

    def mutate(self, mutation: Mutation, now: float) -> None:
        """Apply a mutation to the fragments, before everything else in the epoch (I4)."""
        ...

    def readers(self, *, paused: bool) -> int:
        """Return how many of the scans may read history in an epoch whose graph is `paused` or not."""
        ...

    def is_brief(self, epoch: RunningEpoch) -> bool:
        """Whether it does so little in an epoch that it may run beside others.

        Asked after what it reads was written.
        """
        ...

    def run(self, epoch: RunningEpoch) -> Sequence[FragmentReport]:
        """Run an epoch; its writes are durable when this returns. Raises JobFailedError when one job caused the
        failure.
        """
        ...

    def stop(self, jobs: Sequence[JobId]) -> bool:
        """Remove the fragments of `jobs`; return whether none is left."""
        ...

    def end(self) -> None:
        """Release all resources: the runner runs no further epoch. May be called from another thread than `run`."""
        ...


Join = Callable[[Mapping[Place, FragmentRunner], JobPlan, FragmentPlan, float], FragmentRunner]
"""Returns the runner of an added fragment: a new one, or a running one that takes the fragment as well."""
