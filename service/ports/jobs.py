"""Store jobs and their fragments in the meta store. Next: `service.ports.meta_store`."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Protocol

from service.domain.fair_queue import Queued, Share
from service.domain.graph import Line
from service.domain.job import Job, JobEvent, JobState
from service.domain.progress import ScanProgress
from service.domain.slow_views import SlowView
from service.ports.records import Json, NewJob, Receded
from service.protocol.ids import FragmentId, GraphId, JobId, RelationId
from service.protocol.plan import FragmentKind, JobPlan
from service.protocol.report import ActorReport, Collected


class Jobs(Protocol):
    """Jobs, with their fragments and actors."""

    async def add(self, new: NewJob, *, now: datetime, by: str = "") -> Job:
        """Store relation, job (INITIAL), fragments and actors. `by` is the job's tenant, empty for an unknown one.

        Raises Conflict if the name is taken.
        """
        ...

    async def get(self, job: JobId) -> Job | None: ...

    async def hold(self, job: JobId) -> Job | None:
        """Lock the job's row until the transaction ends, and return the job."""
        ...

    async def hold_all(self, jobs: Collection[JobId]) -> None:
        """Lock the rows of these jobs and of their fragments, each in order of id.

        A transaction that changes several jobs calls this before it locks anything else.
        """
        ...

    async def where(
        self,
        states: Collection[JobState] | None = None,
        *,
        graph: GraphId | None = None,
        ids: Collection[JobId] | None = None,
        kept: bool = False,
    ) -> Sequence[Job]:
        """Return the jobs that match all given filters, oldest first, which is the order of the queue.

        None means any state (including terminal ones), any graph or any id. With `kept` the job's relation must be in
        the catalog.
        """
        ...

    async def backfilling(self) -> Sequence[Job]:
        """Return the created jobs with unfinished history, oldest first. They belong to followed tables."""
        ...

    async def move(self, job: JobId, event: JobEvent, *, now: datetime, error: str | None = None) -> Job:
        """Lock the row and apply `service.domain.job.after`. Raises IllegalTransition, NotFound."""
        ...

    async def grown(self, rows: int, state: JobState) -> Mapping[JobId, int]:
        """Return the jobs of views in a state that have stored more than `rows` rows, with their numbers."""
        ...

    async def stay(self, job: JobId, reason: str) -> None:
        """Record why the job stays in a graph of its own. The caller holds the job."""
        ...

    async def take_traced(self) -> Sequence[tuple[Job, str]]:
        """Return the jobs with a `traceparent` whose creation has ended, with it, and forget it. A few at a time."""
        ...


class JobQueue(Protocol):
    """The jobs that have not started."""

    async def line(self) -> Line:
        """Return the queue summary: whether jobs wait for a start, and how many permits are in use."""
        ...

    async def waiting(self) -> Sequence[Queued]:
        """Return the queued jobs, oldest first."""
        ...

    async def shares(self, tenants: Collection[str]) -> Mapping[str, Share]:
        """Return the share of each of these tenants in the permits."""
        ...

    async def unfinished_of(self, tenant: str) -> Sequence[Job]:
        """Return the jobs of a tenant that wait for a permit or hold one, oldest first.

        Other transactions that call this for the same tenant wait until this one ends.
        """
        ...

    async def plan_bytes(self) -> Mapping[str, int]:
        """Return how many bytes the plans of each tenant's jobs have (`NewJob.plan_bytes`), of those that are there."""
        ...

    async def too_slow(self, jobs: Collection[JobId], *, now: datetime) -> None:
        """Record for the tenant of each of these jobs that its view took longer than `stage_timeout_ms` allows."""
        ...

    async def slow_view(self, tenant: str) -> SlowView | None:
        """Return the last view of a tenant that did so."""
        ...

    async def prepare(self, job: JobId, text: str | None) -> None:
        """Record what the service does before the job can start, if it does anything. The start forgets it."""
        ...


class Plans(Protocol):
    """The plans of jobs, and the relations that they write."""

    async def of(self, jobs: Collection[JobId]) -> Sequence[JobPlan]:
        """Return plans with the stored limits and positions, in order of job id, hence upstreams first."""
        ...

    async def outlines(self, jobs: Collection[JobId]) -> Sequence[JobPlan]:
        """Return plans without positions, which nobody may run: those of a view may be 262,144, and take a second."""
        ...

    async def staged(self) -> Sequence[JobId]:
        """Return the jobs that compute stages and have not failed, in order of id."""
        ...

    async def outputs(self, jobs: Collection[JobId]) -> Mapping[JobId, Sequence[RelationId]]:
        """Return the stored relations that each job writes, including hidden ones."""
        ...


class Failures(Protocol):
    """The failures of graphs that jobs caused."""

    async def blame(self, job: JobId | None, *, graph: GraphId) -> int:
        """Count a failure of `job` and return its consecutive failures, 0 for None.

        Also reset the count of every other job of the graph, and count a recovery for its creating jobs.
        """
        ...

    async def blamed(self, graph: GraphId) -> bool:
        """Whether a job of the graph caused its last recovery."""
        ...


class Fragments(Protocol):
    """Positions and progress of fragments."""

    async def job_of(self, fragments: Collection[FragmentId]) -> Mapping[FragmentId, tuple[JobId, FragmentKind]]:
        """Return the job and kind of each fragment that exists."""
        ...

    async def release(self, fragments: Collection[FragmentId]) -> None:
        """Record that the backfill order no longer delays these fragments. Fragments that are gone are ignored."""
        ...

    async def held(self, graph: GraphId) -> Sequence[JobId]:
        """Return the creating jobs with a scan that the backfill order delays."""
        ...

    async def receded(self, reports: Sequence[ActorReport]) -> Receded | None:
        """Return the first report with fewer rows than its actor has committed (I6)."""
        ...

    async def record(self, answers: Iterable[Collected], *, now: datetime) -> None:
        """Store positions, key counts and progress of these answers, oldest first. Progress is computed by
        `service.domain.progress.advanced`.
        """
        ...

    async def scans(self, jobs: Collection[JobId]) -> Mapping[JobId, Sequence[ScanProgress]]: ...

    async def store_texts(self, texts: Mapping[JobId, Json]) -> None:
        """Store the values of `rw_ddl_progress` by job: `text`, `phase`, `waiting_for` and other structured values."""
        ...
