"""Store the actors of scans and the requested parallelism of jobs. Part of `service.ports.meta_store`."""

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from service.domain.job import Job
from service.domain.parallelism import Parallelism
from service.protocol.ids import ActorId, FragmentId, GraphId, JobId
from service.protocol.plan import ActorPlan
from service.protocol.vnodes import Runs


class Actors(Protocol):
    """The actors of scans, and the parallelism that their jobs request."""

    async def layouts(self, jobs: Collection[JobId]) -> Mapping[JobId, Mapping[FragmentId, Sequence[Runs]]]:
        """Return the vnodes of each actor of each scan. Every given job is in the result."""
        ...

    async def reserve(self, number: int) -> Sequence[ActorId]:
        """Return new actor ids. They are never given out again."""
        ...

    async def replace(self, fragments: Mapping[FragmentId, Sequence[ActorPlan]]) -> None:
        """Replace the actors of scans. The row count of a new actor is the sum over its vnodes' positions (I11).

        A fragment that is gone is ignored.
        """
        ...


class Rescaling(Protocol):
    """The parallelism that jobs request, and the jobs that are due for it."""

    async def set_parallelism(self, job: JobId, parallelism: Parallelism | None, backfill: Parallelism | None) -> None:
        """Store the requested parallelism and mark the job as due."""
        ...

    async def due(self, graph: GraphId) -> Sequence[Job]:
        """Lock and return the running jobs whose scans may have another number of actors than requested."""
        ...

    async def settled(self, jobs: Collection[JobId]) -> None:
        """Unmark jobs as due, because their scans have the requested number of actors."""
        ...

    async def all_due(self, graph: GraphId) -> None:
        """Mark all jobs of the graph as due, because the worker's slots may have changed."""
        ...

    async def tied(self, jobs: Collection[JobId]) -> Mapping[JobId, Sequence[Job]]:
        """Return for each job the created or creating NoShuffle jobs whose actors are tied to its actors.

        They are the job itself, if it is a NoShuffle job, and the NoShuffle jobs that read its relation. Every given
        job is in the result.
        """
        ...
