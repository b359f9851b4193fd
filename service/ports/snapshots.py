"""Jobs that are created in a graph of their own; part of `service.ports.meta_store`.

A snapshot job pins the epoch that the database graph has committed when it starts, reads its upstreams as of that
epoch, replays their change log, and then *merges*: from then on it is a job of the database graph. Its own graph stays
until the job is created (or gone), for what it has committed is how far the job's table may be rolled back.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from service.domain.barrier import FailedIndex
from service.protocol.ids import Epoch, GraphId, JobId


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Where a creating snapshot job stands. `consumed` is None while its snapshot at `epoch` is read, `indexed` says
    that its table has the index of its storage order.
    """

    job: JobId
    graph: GraphId
    epoch: Epoch
    consumed: Epoch | None = None
    indexed: bool = False
    merged: bool = False


class Snapshots(Protocol):
    """The graphs of snapshot jobs. A graph that is retired is gone; so is then what is told here of its job."""

    async def begin(self, job: JobId, *, indexed: bool) -> Snapshot:
        """Give a job that starts a graph of its own, pinned at what the database graph has committed and paused if that
        one is, or will be by a command that waits.
        """
        ...

    async def of_graph(self, graph: GraphId) -> Snapshot | None: ...

    async def of_jobs(self, jobs: Collection[JobId]) -> Mapping[JobId, Snapshot]: ...

    async def graphs(self) -> Sequence[GraphId]:
        """Return the graphs there are besides the database graph."""
        ...

    async def unmerged(self) -> Sequence[GraphId]:
        """Return the graphs whose jobs run in them, and do until the transaction ends."""
        ...

    async def graphs_of(self, jobs: Collection[JobId]) -> Mapping[JobId, GraphId]:
        """Return the graph that each job is in; it stays there until the transaction ends."""
        ...

    async def index_built(self, graph: GraphId) -> None: ...

    async def index_failed(self, graph: GraphId, failed: FailedIndex) -> None:
        """Record why the index of the job's table could not be built, and when it is tried again."""
        ...

    async def replayed(self, graph: GraphId, consumed: Epoch) -> None:
        """Record how far the log was replayed by what the graph commits."""
        ...

    async def merge(self, graph: GraphId) -> None:
        """Move the job into the database graph, with the commands that wait for it."""
        ...

    async def pinned(self) -> Epoch | None:
        """Return the oldest epoch whose versions a creating snapshot job has yet to read."""
        ...

    async def settled(self) -> Mapping[JobId, Epoch]:
        """Return the jobs that were merged and are not yet created, each with the epoch that its own graph committed
        last: a recovery of the database graph must leave what it wrote.
        """
        ...

    async def retire(self, graph: GraphId) -> None:
        """Forget the graph and its barriers. Commands that still wait for it are done: their job is gone."""
        ...
