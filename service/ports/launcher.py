"""Starting and ending worker processes."""

from collections.abc import Collection
from typing import Protocol

from service.protocol.ids import WorkerId


class Launcher(Protocol):
    """Keeps one worker of the database graph running."""

    async def supervise(self, given_up: Collection[WorkerId]) -> Collection[WorkerId]:
        """Look once: end processes whose worker was given up, start what is missing. Returns workers whose process is
        gone.
        """
        ...

    async def stop(self) -> None:
        """End every process that was started, and wait for it."""
        ...
