"""Store the partial graphs of Snapshot jobs. Part of `service.ports.meta_store`.

A Snapshot job pins the committed epoch of the database graph when it starts. It reads its upstreams at that epoch,
replays their change log, and then *merges*: it becomes a job of the database graph. Its partial graph stays until the
job is created or gone, because the job's table must not be rolled back behind the graph's committed epoch.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from service.domain.graph import FailedIndex
from service.protocol.ids import Epoch, GraphId, JobId


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of a creating Snapshot job. `consumed` is None while its snapshot at `epoch` is read. `indexed` is true
    once its table has the storage-order index.
    """

    job: JobId
    graph: GraphId
    epoch: Epoch
    consumed: Epoch | None = None
    indexed: bool = False
    merged: bool = False
    stays: bool = False
    """The job never merges. It keeps this state after it was created."""


class PartialGraphs(Protocol):
    """The graphs of Snapshot jobs. The other graph is the database graph."""

    async def pin_totals(self, job: JobId) -> None:
        """Keep the present numbers of keys as the totals of the job's scans, because later epochs change them.

        This comes before `begin`, as the order of locks has it.
        """
        ...

    async def begin(self, job: JobId, *, indexed: bool) -> Snapshot:
        """Create the partial graph of a starting job, pinned at the committed epoch of the database graph.

        It is paused if the database graph is paused, or will be by a waiting command.
        """
        ...

    async def all(self) -> Sequence[GraphId]:
        """Return all partial graphs."""
        ...

    async def unmerged(self) -> Sequence[GraphId]:
        """Return the partial graphs whose jobs have not merged. They cannot merge until the transaction ends."""
        ...

    async def of_jobs(self, jobs: Collection[JobId]) -> Mapping[JobId, GraphId]:
        """Return the graph of each job. The jobs stay in their graphs until the transaction ends."""
        ...

    async def merge(self, graph: GraphId) -> None:
        """Move the job and its waiting commands into the database graph."""
        ...

    async def leave(self) -> None:
        """Give each created job of the database graph that stays in a graph of its own that graph (see `Jobs.stay`).

        No epoch is in flight, so the job has consumed its inputs up to the committed epoch.
        """
        ...

    async def retire(self, graph: GraphId) -> None:
        """Delete the graph and its barriers, and finish its waiting commands, because their job is gone."""
        ...


class Snapshots(Protocol):
    """The partial graphs of Snapshot jobs. Retiring a graph deletes it and the snapshot state of its job."""

    async def of_graph(self, graph: GraphId) -> Snapshot | None: ...

    async def of_jobs(self, jobs: Collection[JobId]) -> Mapping[JobId, Snapshot]: ...

    async def index_built(self, graph: GraphId) -> None: ...

    async def index_failed(self, graph: GraphId, failed: FailedIndex) -> None:
        """Record why the index of the job's table could not be built, and the time of the next attempt."""
        ...

    async def replayed(self, graph: GraphId, consumed: Epoch) -> None:
        """Record up to which epoch the graph's commit has replayed the change log."""
        ...

    async def readable(self, job: JobId) -> Epoch:
        """Return the last epoch of which everything that the job reads is committed, in whatever graph."""
        ...

    async def pinned(self) -> Epoch | None:
        """Return the oldest epoch that a job of a partial graph still reads."""
        ...

    async def settled(self) -> Mapping[JobId, Epoch]:
        """Return the merged jobs that are not yet created, each with the last committed epoch of its partial graph.

        A recovery of the database graph must not roll back the rows up to that epoch.
        """
        ...
