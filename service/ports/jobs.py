"""Jobs and their fragments in the meta store. Next: `service.ports.meta_store`."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Protocol

from service.domain.barrier import Line
from service.domain.job import Job, JobEvent, JobState
from service.domain.progress import ScanProgress
from service.ports.records import Json, NewJob, Receded
from service.protocol.ids import FragmentId, GraphId, JobId, RelationId, Vnode
from service.protocol.plan import FragmentKind, JobPlan, VnodePosition
from service.protocol.report import ActorReport, Collected


class Jobs(Protocol):
    """Jobs, with the fragments and actors that carry them out."""

    async def add(self, new: NewJob, *, now: datetime) -> Job:
        """Store relation, job (INITIAL), fragments and actors. Raises Conflict when the name is taken."""
        ...

    async def get(self, job: JobId) -> Job | None: ...

    async def where(
        self,
        states: Collection[JobState] | None = None,
        *,
        graph: GraphId | None = None,
        ids: Collection[JobId] | None = None,
        kept: bool = False,
    ) -> Sequence[Job]:
        """Return jobs in these states (None: all, finished ones included), in this graph (None: in any) and with these
        ids (None: with any), oldest first: the order of the queue. With `kept` only those whose relation is in the
        catalog.
        """
        ...

    async def page(self, states: Collection[JobState] | None, *, after: int, limit: int) -> Sequence[Job]:
        """Return the oldest jobs in these states (None: all) whose id is above `after`."""
        ...

    async def backfilling(self) -> Sequence[Job]:
        """Return created jobs whose history is still read, those of tables that follow a source, oldest first."""
        ...

    async def queue(self) -> Sequence[JobId]:
        """Return the jobs that are queued, oldest first."""
        ...

    async def line(self) -> Line:
        """Return what decides, before anything else, whether a job may start."""
        ...

    async def move(self, job: JobId, event: JobEvent, *, now: datetime, error: str | None = None) -> Job:
        """Apply `service.domain.job.after` to the row, locked. Raises IllegalTransition, NotFound."""
        ...

    async def outputs(self, jobs: Collection[JobId]) -> Mapping[JobId, Sequence[RelationId]]:
        """Return the stored relations that each job writes, hidden ones included."""
        ...

    async def plans(self, jobs: Collection[JobId]) -> Sequence[JobPlan]:
        """Return plans with the stored rate limits and positions, in order of job id (upstream before downstream)."""
        ...

    async def blame(self, job: JobId | None, *, graph: GraphId) -> int:
        """Count a failure against `job` and reset every other job's count; return the job's consecutive failures (0 for
        None). Also counts a recovery on every creating job of the graph.
        """
        ...

    async def blamed(self, graph: GraphId) -> bool:
        """Whether a job of the graph is to blame for its last recovery."""
        ...


class Fragments(Protocol):
    """Positions and progress of fragments."""

    async def job_of(self, fragments: Collection[FragmentId]) -> Mapping[FragmentId, tuple[JobId, FragmentKind]]:
        """Return the job and kind of each fragment that exists."""
        ...

    async def positions(self, fragment: FragmentId) -> Mapping[Vnode, VnodePosition]:
        """Return the positions of a scan, also of a finished one. A vnode without one has not started."""
        ...

    async def release(self, fragments: Collection[FragmentId]) -> None:
        """These wait no longer for their place in the backfill order; those that are gone are ignored."""
        ...

    async def held(self, graph: GraphId) -> Sequence[JobId]:
        """Return the creating jobs of which some scan waits for its place in the backfill order."""
        ...

    async def receded(self, reports: Sequence[ActorReport]) -> Receded | None:
        """Return the first of these reports whose rows are fewer than those that its actor has committed (I6)."""
        ...

    async def record(self, answers: Iterable[Collected], *, now: datetime) -> None:
        """Store positions, key counts and progress (with `service.domain.progress.advanced`) of these answers, oldest
        first.
        """
        ...

    async def scans(self, jobs: Collection[JobId]) -> Mapping[JobId, Sequence[ScanProgress]]: ...

    async def order(self, job: JobId) -> Sequence[tuple[str, str]]:
        """Return the backfill order of a job by the relations' names, each edge as (before, after)."""
        ...

    async def store_texts(self, texts: Mapping[JobId, Json]) -> None:
        """Store what `rw_ddl_progress` shows: per job `text`, `phase`, `waiting_for`, and anything else structured."""
        ...
