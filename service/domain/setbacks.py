"""Remember which workers failed a graph lately, so that its next start is tried with another one (I13).

A worker that fails every barrier would otherwise be chosen for ever, while others that serve the graph do nothing. It
is only a preference: a worker that is alone is tried again after the back-off.
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
    """How often each worker failed a graph, and when last, as the leader saw it. A new leader starts empty."""

    seen: dict[tuple[GraphId, WorkerId], tuple[int, datetime]] = field(
        default_factory=dict[tuple[GraphId, WorkerId], tuple[int, datetime]]
    )

    def failed(self, graph: GraphId, worker: WorkerId, *, now: datetime) -> None:
        """Count a failure. The count ends when a worker has not failed for `WINDOW`."""
        self.seen = {known: last for known, last in self.seen.items() if abs(now - last[1]) < WINDOW}
        count, _ = self.seen.get((graph, worker), (0, now))
        self.seen[graph, worker] = count + 1, now

    def of(self, graph: GraphId, *, now: datetime) -> Mapping[WorkerId, int]:
        """Return the counts of a graph's workers."""
        recent = {known: count for known, (count, at) in self.seen.items() if abs(now - at) < WINDOW}
        return {worker: count for (its_graph, worker), count in recent.items() if its_graph == graph}


def is_the_workers(failure: Failed | None, *, hung: bool) -> bool:
    """Whether an abandoned barrier counts against its worker. A row that cannot be computed fails on every worker."""
    return hung if failure is None else failure.job is None or not failure.deterministic
