"""Find the job that needs more memory than a worker has, and stop it from being recovered for ever (I13).

A worker that runs out of memory ends the epochs of all its graphs. The leader suspects the job that the worker computed
at that moment. A job that is suspected `LOSSES_MAX` times within `WINDOW` is failed. A worker that was killed makes no
job suspect (I3).

A worker computes at most one job of the database graph and one job of a partial graph at a time. If both are suspected,
the job of the partial graph fails first, because it is still being created. Of several jobs of the database graph that
forward a few changes beside each other it suspects none; the next generation computes them one by one at first.
"""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from service.protocol.ids import DATABASE_GRAPH, GraphId, JobId

LOSSES_MAX: Final = 3
WINDOW: Final = timedelta(minutes=10)


@dataclass(slots=True)
class Suspects:
    """When workers ran out of memory while they computed a job, as the leader saw it. A new leader starts empty."""

    losses: dict[tuple[GraphId, JobId], list[datetime]] = field(
        default_factory=dict[tuple[GraphId, JobId], list[datetime]]
    )

    def suspect(self, graph: GraphId, job: JobId, *, now: datetime) -> bool:
        """Record a loss, and return whether the job has to be failed."""
        recent = {known: [at for at in seen if now - at < WINDOW] for known, seen in self.losses.items()}
        self.losses = {known: seen for known, seen in recent.items() if seen}
        mine = self.losses.setdefault((graph, job), [])
        mine.append(now)
        beside = any(other != DATABASE_GRAPH and len(seen) > 1 for (other, _), seen in self.losses.items())
        if len(mine) < LOSSES_MAX or (graph == DATABASE_GRAPH and beside):
            return False
        del self.losses[graph, job]
        return True
