"""The protocol by which a graph runs its fragments, and what an epoch gives each of them.

A runner runs one fragment, or several that share something: the statements of an epoch share a transaction, the tables
of a source its log. To add a kind of fragment is to write a runner and to name it in `workers.runners.kinds`. Next:
`workers.graph`.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Protocol

from service.protocol.barrier import Barrier
from service.protocol.cdc import SourceReport
from service.protocol.ids import JobId, RelationId
from service.protocol.mutation import Mutation
from service.protocol.plan import FragmentPlan, JobPlan
from service.protocol.report import ActorReport
from workers.backfill.pace import share_of
from workers.backfill.reading import Reading
from workers.state_store.dml import DmlOutcome, DmlStore
from workers.state_store.postgres import PostgresStore

FragmentReport = ActorReport | SourceReport | DmlOutcome


@dataclass
class Stores:
    """How the worker reaches the state store in one generation."""

    versioned: PostgresStore
    dml: DmlStore


class Phase(IntEnum):
    """Tables are written before they are read."""

    DML = 0
    SOURCE = 1
    SCAN = 2


Place = tuple[Phase, int, int]
"""Where a runner comes in an epoch: phase, relation (one is created after everything it reads), fragment."""


@dataclass
class RunningEpoch:
    """One epoch while it runs: the barrier, what the runners share, and what those before have written."""

    barrier: Barrier
    stores: Stores
    paused: bool
    began: float
    clock: Callable[[], float]
    spark_turn: Callable[[], AbstractContextManager[None]]
    """Held while a Spark job runs."""
    interval_seconds: float
    readers: int = 0
    """How many scans that have not run yet may read history: they share what is left of the interval."""
    readings: Mapping[JobId, Reading] = field(default_factory=dict[JobId, Reading])
    """What the scans of jobs that do not interleave read."""
    changed: set[RelationId] = field(default_factory=set[RelationId])
    key_count_deltas: dict[RelationId, int] = field(default_factory=lambda: defaultdict(int))
    inserted: dict[RelationId, int] = field(default_factory=lambda: defaultdict(int))
    timings_ms: dict[str, float] = field(default_factory=dict[str, float])

    def wrote(self, relation: RelationId, *, inserted: int, ended: int) -> None:
        """Take note of the versions that were written to a relation."""
        if inserted or ended:
            self.changed.add(relation)
            self.key_count_deltas[relation] += inserted - ended
            self.inserted[relation] += inserted

    def share_seconds(self) -> float:
        """Return what is left of the interval for one of the readers."""
        elapsed = self.barrier.overhead_ms / 1000 + self.clock() - self.began
        return share_of(self.interval_seconds, elapsed_seconds=elapsed, jobs=self.readers)


class FragmentRunner(Protocol):
    """Runs a fragment, or several that share something, in every epoch of a generation."""

    @property
    def place(self) -> Place:
        """Where it comes in an epoch; one place is one runner."""
        ...

    @property
    def settled(self) -> bool:
        """Whether no history is left to read and no limit holds it: then a change log may be replayed."""
        ...

    def mutate(self, mutation: Mutation, now: float) -> None:
        """Let a mutation act on its fragments, before all else of the epoch (I4)."""
        ...

    def readers(self, *, paused: bool) -> int:
        """Return how many of its scans may read history in an epoch of a graph that is paused or not."""
        ...

    def run(self, epoch: RunningEpoch) -> Sequence[FragmentReport]:
        """Run an epoch; what it wrote is durable when it returns. Raises JobFailedError where one job is to blame."""
        ...

    def stop(self, jobs: Sequence[JobId]) -> bool:
        """Forget the fragments of jobs; return whether none is left."""
        ...

    def end(self) -> None:
        """Let go of what it holds: it runs no epoch any more. May be called from another thread than the one that
        runs.
        """
        ...


Join = Callable[[Mapping[Place, FragmentRunner], JobPlan, FragmentPlan, float], FragmentRunner]
"""Returns the runner of a fragment that is added: a new one, or one of those that run, which takes it as well."""
