"""Remember which workers failed a graph lately, and which jobs need more memory than a worker has (I13).

The next start of a graph prefers another worker. Otherwise a worker that fails every barrier could be chosen for ever,
while other workers of the graph are idle. The only worker of a graph is tried again after the back-off.

A worker that runs out of memory ends the epochs of all its graphs. The leader suspects the job that the worker computed
at that moment. So it does after an error of Postgres that the job's values or the moment may have caused. A job that is
suspected `LOSSES_MAX` times within `WINDOW` is failed. A worker that was killed makes no job suspect (I3).

A worker computes at most one job of the database graph and one job of a partial graph at a time. If both are suspected,
the job of the partial graph fails first, because it is still being created. Of several jobs of the database graph that
forward a few changes beside each other it suspects none. For an hour all jobs of their callers are computed one by one:
one that takes too much is told then, and the sum of several is not reached again.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from service.protocol.ids import DATABASE_GRAPH, GraphId, JobId, WorkerId
from service.protocol.report import Failed

LOSSES_MAX: Final = 3
WINDOW: Final = timedelta(minutes=10)
APART: Final = timedelta(hours=1)
"""How long the jobs of a caller are computed one by one after several together took all memory."""


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


@dataclass(slots=True)
class Suspects:
    """When workers ran out of memory while they computed a job, as the leader saw it. A new leader starts empty."""

    losses: dict[tuple[GraphId, JobId], list[datetime]] = field(
        default_factory=dict[tuple[GraphId, JobId], list[datetime]]
    )

    failed: dict[str, datetime] = field(default_factory=dict[str, datetime])
    """When a job of a caller last had to be failed."""
    crowds: dict[str, datetime] = field(default_factory=dict[str, datetime])
    """When jobs of a caller, beside others, last took all memory."""

    def suspect(self, graph: GraphId, job: JobId, *, caller: str, now: datetime) -> bool:
        """Record a loss, and return whether the job has to be failed.

        For some time after one, the next job of the same caller fails at its first loss: views of one caller, each
        exhausted by another row, would hold up everybody one after the other.
        """
        self.failed = {one: at for one, at in self.failed.items() if now - at < WINDOW}
        recent = {known: [at for at in seen if now - at < WINDOW] for known, seen in self.losses.items()}
        self.losses = {known: seen for known, seen in recent.items() if seen}
        mine = self.losses.setdefault((graph, job), [])
        mine.append(now)
        beside = any(other != DATABASE_GRAPH and len(seen) > 1 for (other, _), seen in self.losses.items())
        bearable = 1 if caller in self.failed else LOSSES_MAX
        if len(mine) < bearable or (graph == DATABASE_GRAPH and beside):
            return False
        del self.losses[graph, job]
        self.failed[caller] = now
        return True

    def crowded(self, callers: Iterable[str], *, now: datetime) -> None:
        """Record that jobs of these callers took all memory together."""
        self.crowds.update(dict.fromkeys(callers, now))

    def apart(self, *, now: datetime) -> Sequence[str]:
        """Return the callers whose jobs are computed one by one."""
        self.crowds = {caller: at for caller, at in self.crowds.items() if now - at < APART}
        return sorted(self.crowds)
