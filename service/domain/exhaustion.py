"""Which job takes more than a worker has: workers run out of memory while they compute it (I13).

A worker that runs out of memory takes down the epochs of all its graphs. The job that it computed then is suspected;
one that is suspected `LOSSES_MAX` times within `WINDOW` is failed, so that no recovery is repeated for ever. A worker
that was killed suspects nobody (I3). A worker computes at most one job of the database graph and one of a graph of its
own at a time. Where both are suspected, the one of its own graph is failed first: it is still being created.
"""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from service.protocol.ids import DATABASE_GRAPH, GraphId, JobId

LOSSES_MAX: Final = 3
WINDOW: Final = timedelta(minutes=10)


@dataclass(slots=True)
class Suspects:
    """When workers ran out of memory while they computed a job, as the leader saw it. A new leader begins anew."""

    losses: dict[tuple[GraphId, JobId], list[datetime]] = field(
        default_factory=dict[tuple[GraphId, JobId], list[datetime]]
    )

    def suspect(self, graph: GraphId, job: JobId, *, now: datetime) -> bool:
        """Take note of a loss; return whether the job is to be failed."""
        recent = {known: [at for at in seen if now - at < WINDOW] for known, seen in self.losses.items()}
        self.losses = {known: seen for known, seen in recent.items() if seen}
        mine = self.losses.setdefault((graph, job), [])
        mine.append(now)
        beside = any(other != DATABASE_GRAPH and len(seen) > 1 for (other, _), seen in self.losses.items())
        if len(mine) < LOSSES_MAX or (graph == DATABASE_GRAPH and beside):
            return False
        del self.losses[graph, job]
        return True
