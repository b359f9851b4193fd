"""Store the registered workers and their graphs. Part of `service.ports.meta_store`."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final, Protocol

from service.domain.graph import OwnWorker
from service.domain.launching import OwnJob
from service.ports.records import WorkerRecord
from service.protocol.api import Registration
from service.protocol.ids import GraphId, WorkerId

FORGOTTEN_AFTER: Final = timedelta(days=1)
"""How long a worker's record is kept after its last heartbeat."""
REQUEST_TRIES_MAX: Final = 3
"""The maximum number of workers that get one request, because the request may be what kills them."""


class Workers(Protocol):
    """The registered workers.

    A worker of the database graph also serves every partial graph without its own worker. A worker of a partial graph
    serves only that graph.
    """

    async def register(self, registration: Registration, *, now: datetime) -> None:
        """Raises Stale if the worker was evicted, its launch has ended, or its graph is gone."""
        ...

    async def seen(self, worker: WorkerId, *, now: datetime) -> None:
        """Record a heartbeat. Raises Stale if the worker is unknown or was evicted, or if its graph is gone."""
        ...

    async def leave(self, worker: WorkerId) -> bool:
        """Record that a worker is about to end, and return whether that is new. Its graphs then move to another one."""
        ...

    async def give_up(self, worker: WorkerId) -> None:
        """Evict a worker that is dead or hangs. Its answers are refused from now on."""
        ...

    async def all(self, *, now: datetime, lease: timedelta) -> Sequence[WorkerRecord]:
        """Return every worker that may be alive, and the newest of the others, newest first."""
        ...

    async def forget(self, *, now: datetime) -> int:
        """Delete workers without a heartbeat for `FORGOTTEN_AFTER`, and return their number. A worker that returns
        registers again.
        """
        ...

    async def wanted(self) -> Mapping[GraphId, OwnJob]:
        """Return the graphs that need their own worker, in order: those of creating serverless jobs that have not
        merged.
        """
        ...

    async def start_failed(self, graph: GraphId, failed: OwnWorker) -> None:
        """Store the state of starting a graph's own worker. Do nothing if the graph is gone."""
        ...
