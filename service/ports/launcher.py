"""Start and end worker processes."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

from service.protocol.ids import GraphId, WorkerId


@dataclass(frozen=True, slots=True)
class Ended:
    """A worker without running processes, or one that could not be started.

    `graph` is None for a worker of a service that was killed. `failures` counts the consecutive workers of the graph
    that ended early, including this one, and `wait` is the delay before the next start. Both are 0 if the service
    requested the end (`asked`).
    """

    worker: WorkerId
    graph: GraphId | None
    reason: str
    asked: bool = False
    failures: int = 0
    wait: timedelta = timedelta(0)


class Launcher(Protocol):
    """Keeps a worker running for each graph that needs one."""

    async def supervise(
        self, given_up: Collection[WorkerId], *, kept: Collection[GraphId], missing: Collection[GraphId]
    ) -> Sequence[Ended]:
        """Run one tick and return the workers that have ended, each once.

        Kill the evicted workers (`given_up`). End the workers of graphs that are not `kept` gracefully. Start a worker
        for each graph in `missing`, unless this launcher already runs one or its last start failed recently.
        Repeatable: the next tick continues unfinished work.
        """
        ...

    async def stop(self) -> None:
        """End every started process and wait for it."""
        ...
