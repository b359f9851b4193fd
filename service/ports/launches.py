"""Store the launches of workers in a cluster. Part of `service.ports.meta_store`."""

from collections.abc import Collection, Sequence
from typing import Protocol

from service.domain.launching import Launch
from service.protocol.ids import WorkerId


class Launches(Protocol):
    """The launches that have not ended, and recent others. A worker whose launch has ended cannot register."""

    async def all(self) -> Sequence[Launch]:
        """Return every launch, those of each graph oldest first."""
        ...

    async def put(self, launch: Launch) -> None:
        """Add a launch, or change how far it has come."""
        ...

    async def forget(self, workers: Collection[WorkerId]) -> None:
        """Delete launches."""
        ...
