"""How many actors the scans of jobs have, and shall have; part of `service.ports.meta_store`."""

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from service.domain.job import Job
from service.domain.parallelism import Parallelism
from service.protocol.ids import ActorId, FragmentId, GraphId, JobId
from service.protocol.plan import ActorPlan
from service.protocol.vnodes import Runs


class Actors(Protocol):
    """The actors of scans, and the parallelism that their jobs ask for."""

    async def hold(self, job: JobId) -> Job | None:
        """Return the job, whose row is locked until the transaction ends."""
        ...

    async def set_parallelism(self, job: JobId, parallelism: Parallelism | None, backfill: Parallelism | None) -> None:
        """Store what is asked for; the job is due."""
        ...

    async def due(self, graph: GraphId) -> Sequence[Job]:
        """Return running jobs whose scans may have another number of actors than is asked for, locked."""
        ...

    async def settled(self, jobs: Collection[JobId]) -> None:
        """The scans of these jobs have as many actors as is asked for: they are due no more."""
        ...

    async def all_due(self, graph: GraphId) -> None:
        """The worker's slots may have changed, and with them the number of actors of every job of the graph."""
        ...

    async def layouts(self, jobs: Collection[JobId]) -> Mapping[JobId, Mapping[FragmentId, Sequence[Runs]]]:
        """Return what the actors of each scan own. Every job asked for is in the answer."""
        ...

    async def tied(self, jobs: Collection[JobId]) -> Mapping[JobId, Sequence[Job]]:
        """Return the NoShuffle jobs, created or being created, whose actors are beside those of each of these jobs: the
        job itself where it is one, and those that read what it creates. Every job asked for is in the answer.
        """
        ...

    async def unfinished(self, jobs: Collection[JobId]) -> Mapping[JobId, Sequence[ActorId]]:
        """Return the actors of each job that have not finished. Every job asked for is in the answer."""
        ...

    async def reserve(self, number: int) -> Sequence[ActorId]:
        """Return ids that no actor has or will have."""
        ...

    async def replace(self, fragments: Mapping[FragmentId, Sequence[ActorPlan]]) -> None:
        """Replace the actors of scans; each new one has the rows of the positions of its vnodes (I11). A fragment that
        is gone is passed over.
        """
        ...
