"""Which job takes more than a worker has: workers end while they compute it (I13).

A worker that ends takes down what every graph on it computes. The job that was computed then is suspected; one that is
suspected `LOSSES_MAX` times within `WINDOW` is failed, so that no recovery is repeated for ever. A worker computes at
most one job of the database graph and one of a graph of its own at a time. Where both are suspected, the one of its own
graph is failed first: it is still being created.
"""

from collections import defaultdict
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from service.protocol.ids import DATABASE_GRAPH, GraphId, JobId

LOSSES_MAX: Final = 3
WINDOW: Final = timedelta(minutes=10)


@dataclass(slots=True)
class Suspects:
    """When a worker ended while it computed a job, as the leader saw it. A new leader begins anew."""

    losses: dict[tuple[GraphId, JobId], list[datetime]] = field(default_factory=lambda: defaultdict(list))

    def suspect(self, graph: GraphId, job: JobId, *, now: datetime) -> bool:
        """Take note of a loss; return whether the job is to be failed."""
        for known in list(self.losses):
            self.losses[known] = [at for at in self.losses[known] if now - at < WINDOW]
            if not self.losses[known]:
                del self.losses[known]
        self.losses[graph, job].append(now)
        beside = any(other != DATABASE_GRAPH and len(seen) > 1 for (other, _), seen in self.losses.items())
        if len(self.losses[graph, job]) < LOSSES_MAX or (graph == DATABASE_GRAPH and beside):
            return False
        del self.losses[graph, job]
        return True
