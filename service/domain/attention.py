"""Measure how long this process could not notice a worker's heartbeats: it was frozen or without its meta store.

A worker is evicted after it was silent for its lease *while this process could have heard it*. Next:
`service.operations.upkeep.launching`.
"""

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

GAP_SECONDS: Final = 1.0
"""A shorter gap loses no heartbeat that a worker would not repeat within its lease."""


@dataclass
class Attention:
    """Gaps in this process's attention, in seconds of its monotonic clock.

    Nothing is recorded before the first `awake`.
    """

    last: float | None = None
    gaps: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    """The newest gaps, as (beginning, end)."""

    def awake(self, now: float) -> None:
        """Record that the process runs. A long time since the last call is a gap."""
        if self.last is not None:
            self.missed(self.last, now)
        self.last = now

    def missed(self, beginning: float, end: float) -> None:
        """Record a time in which the process could not notice a heartbeat, if it was long."""
        if end - beginning > GAP_SECONDS:
            self.gaps = [*self.gaps[-9:], (beginning, end)]

    def patience(self, lease: timedelta, *, now: float) -> timedelta:
        """Return how long a worker may be silent: the lease, plus the gaps within it."""
        missed, since = 0.0, now - lease.total_seconds()
        for beginning, end in reversed(self.gaps):
            if end <= since:
                break
            missed += end - beginning
            since -= end - beginning
        return lease + timedelta(seconds=missed)
