"""Start and end workers: as processes of this service, or as pods of a cluster.

A `Launcher` belongs to one service, and its workers end with it. A `Cluster` is shared by all services. Its workers
outlive them, so only the leader supervises it (`service.operations.upkeep.cluster`).
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

from service.domain.launching import HeldUp, Launch, OwnJob, Seen
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


class Cluster(Protocol):
    """Creates, lists and deletes the workers of a cluster. It decides nothing and remembers no worker.

    A refusal or an absent answer is a `HeldUp`: the next tick tries again.
    """

    def name(self, graph: GraphId, attempt: int) -> WorkerId:
        """Return a name that no worker had before."""
        ...

    async def check(self) -> Mapping[str, HeldUp | None]:
        """Have the cluster examine the templates that changed since the last call, and create nothing.

        Return for each of them, by profile, what would keep its workers from being created.
        """
        ...

    async def look(self) -> Mapping[WorkerId, Seen] | HeldUp:
        """Return the workers of this installation. One that was created before the call and is absent has ended."""
        ...

    async def start(self, launch: Launch, own: OwnJob | None) -> HeldUp | None:
        """Create a worker: of the database graph, or of a job alone (`own`). A worker of that name that exists already
        is a success.
        """
        ...

    async def end(self, worker: WorkerId, *, kill: bool) -> HeldUp | None:
        """Delete a worker: at once (`kill`), or after the grace of its template. An absent one is a success."""
        ...


class Profiles(Protocol):
    """Reads the names of the profiles that workers can have."""

    async def __call__(self) -> Collection[str] | None:
        """Return the names, or None if the cluster does not list them now."""
        ...
