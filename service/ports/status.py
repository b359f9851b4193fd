"""Read what only status pages show. No decision reads it. Part of `service.ports.meta_store`."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from service.domain.job import Job, JobState
from service.protocol.ids import ActorId, Epoch, FragmentId, JobId, Vnode
from service.protocol.plan import VnodePosition
from service.protocol.stage import Engine


@dataclass(frozen=True, slots=True)
class Signalled:
    """The reading of a signal at the last tick."""

    signal: str
    healthy: bool
    text: str


@dataclass(frozen=True, slots=True)
class AutoLimit:
    """The state of an adaptive limit. `signal` is the load signal against a higher limit at the last tick, null if
    there was none. The present limit took effect at `effective_epoch`. All values except the phase are null before the
    first tick.
    """

    phase: str
    move: str | None
    signal: str | None
    reason: str | None
    looked_at: datetime | None
    effective_epoch: str | None
    readings: Sequence[Signalled] = field(default_factory=tuple[Signalled, ...])


@dataclass(frozen=True, slots=True)
class LimitChange:
    """A change of an adaptive limit. It took effect at `epoch`, None before."""

    id: int
    fragment: FragmentId
    at: datetime
    epoch: Epoch | None
    before: int
    after: int
    signal: str | None
    reason: str


@dataclass(frozen=True, slots=True)
class EngineWork:
    """The work of one engine for a job: the jobs of Spark or the runs of the store, and the rows that they read."""

    jobs: int
    rows: int


class Status(Protocol):
    """Queries of the status pages."""

    async def jobs(self, states: Collection[JobState] | None, *, after: int, limit: int) -> Sequence[Job]:
        """Return the oldest jobs in these states (None: all) with ids above `after`."""
        ...

    async def adaptive_limits(self, jobs: Collection[JobId]) -> Mapping[FragmentId, AutoLimit]:
        """Return the state of the adaptive limits of these jobs' scans."""
        ...

    async def limit_changes(self, job: JobId, *, limit: int, before: int | None = None) -> Sequence[LimitChange]:
        """Return the changes with ids below `before` of the limits of a job's scans, newest first."""
        ...

    async def backfill_order(self, job: JobId) -> Sequence[tuple[str, str]]:
        """Return the backfill order of a job as edges (before, after) of relation names."""
        ...

    async def positions(self, fragment: FragmentId) -> Mapping[Vnode, VnodePosition]:
        """Return the positions of a scan, even a finished one. A vnode without a position has not started."""
        ...

    async def unfinished_actors(self, jobs: Collection[JobId]) -> Mapping[JobId, Sequence[ActorId]]:
        """Return the unfinished actors of each job. Every given job is in the result."""
        ...

    async def engine_work(self, jobs: Collection[JobId]) -> Mapping[JobId, Mapping[Engine, EngineWork]]:
        """Return what each engine has done for each job. Every given job is in the result, with both engines."""
        ...

    async def lookups(self, jobs: Collection[JobId]) -> Mapping[FragmentId, Sequence[str]]:
        """Return the relations that the stages of these jobs look up, once for each occurrence, in their order.

        Hidden relations are not among them. A stage that looks nothing up is absent.
        """
        ...
