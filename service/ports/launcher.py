"""Starting and ending worker processes."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

from service.protocol.ids import GraphId, WorkerId


@dataclass(frozen=True, slots=True)
class Ended:
    """A worker of which nothing runs any more, or that could not be started.

    `graph` is None where it was left behind by a service that was killed. `failures` counts the workers of the graph in
    a row that ended young, with this one, and the next one may start after `wait`; both are 0 for one that had to end
    (`asked`).
    """

    worker: WorkerId
    graph: GraphId | None
    reason: str
    asked: bool = False
    failures: int = 0
    wait: timedelta = timedelta(0)


class Launcher(Protocol):
    """Keeps a worker running for each graph that is to have one."""

    async def supervise(
        self, given_up: Collection[WorkerId], *, kept: Collection[GraphId], missing: Collection[GraphId]
    ) -> Sequence[Ended]:
        """Look once. End at once the workers that were given up, and gently those of graphs that are not `kept`; start
        one for each graph that is `missing` one, unless it has one here or failed a moment ago. Returns each worker
        that has ended, once. Repeatable: what is not done yet is asked for again.
        """
        ...

    async def stop(self) -> None:
        """End every process that was started, and wait for it."""
        ...
