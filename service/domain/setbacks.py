"""Count the recent failures of each worker per graph, so that the next start prefers another worker (I13).

Otherwise a worker that fails every barrier could be chosen for ever, while other workers of the graph are idle. The
count is only a preference: the only worker of a graph is tried again after the back-off.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from service.protocol.ids import GraphId, WorkerId
from service.protocol.report import Failed

WINDOW: Final = timedelta(minutes=10)


@dataclass(slots=True)
class Setbacks:
    """The number of failures and the time of the last one, by graph and worker. A new leader starts without any."""

    seen: dict[tuple[GraphId, WorkerId], tuple[int, datetime]] = field(
        default_factory=dict[tuple[GraphId, WorkerId], tuple[int, datetime]]
    )

    def failed(self, graph: GraphId, worker: WorkerId, *, now: datetime) -> None:
        """Count a failure. A worker's count is dropped after `WINDOW` without a failure."""
        self.seen = {known: last for known, last in self.seen.items() if abs(now - last[1]) < WINDOW}
        count, _ = self.seen.get((graph, worker), (0, now))
        self.seen[graph, worker] = count + 1, now

    def of(self, graph: GraphId, *, now: datetime) -> Mapping[WorkerId, int]:
        """Return the number of recent failures by worker of a graph. Workers without one are left out."""
        recent = {known: count for known, (count, at) in self.seen.items() if abs(now - at) < WINDOW}
        return {worker: count for (its_graph, worker), count in recent.items() if its_graph == graph}


def is_the_workers(failure: Failed | None, *, hung: bool) -> bool:
    """Return whether an abandoned barrier counts against its worker.

    A barrier without an answer counts if the worker hung. A deterministic failure of a job does not count, because it
    would fail on every worker.
    """
    return hung if failure is None else failure.job is None or not failure.deterministic
