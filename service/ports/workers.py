"""Workers and whom they serve; part of `service.ports.meta_store`."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final, Protocol

from service.domain.barrier import OwnWorker
from service.ports.records import WorkerRecord
from service.protocol.api import Registration
from service.protocol.ids import GraphId, WorkerId

FORGOTTEN_AFTER: Final = timedelta(days=1)
"""How long a worker is kept after its last sign of life."""


class Workers(Protocol):
    """Workers that registered. One that registered for the database graph serves every graph that has no worker of its
    own; one that registered for another graph serves that one alone.
    """

    async def register(self, registration: Registration, *, now: datetime) -> None:
        """Raises Stale when the worker was given up, or its graph is gone."""
        ...

    async def seen(self, worker: WorkerId, *, now: datetime) -> None:
        """Record a sign of life. Raises Stale when the worker is unknown or was given up, or its graph is gone."""
        ...

    async def give_up(self, worker: WorkerId) -> None:
        """The worker is dead or hung: nothing it says counts any more."""
        ...

    async def all(self, *, now: datetime, lease: timedelta) -> Sequence[WorkerRecord]:
        """Return every worker that may be alive and the newest of the others, newest first."""
        ...

    async def forget(self, *, now: datetime) -> int:
        """Delete workers that were last seen `FORGOTTEN_AFTER` ago; return how many. One that comes back registers
        again.
        """
        ...

    async def wanted(self) -> Sequence[GraphId]:
        """Return the graphs that shall have a worker of their own: those of serverless jobs that are being created and
        have not merged.
        """
        ...

    async def start_failed(self, graph: GraphId, failed: OwnWorker) -> None:
        """Record how starting the own worker of a graph goes; nothing where the graph is gone."""
        ...
