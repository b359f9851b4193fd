"""How long this process was itself unable to notice a worker's signs of life: frozen, or without its meta store.

A worker is given up once it was silent for its lease *while this process could have heard it*. Next:
`service.operations.launching`.
"""

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

GAP_SECONDS: Final = 1.0
"""A process that was away for less missed no sign of life that would not come again within the lease."""


@dataclass
class Attention:
    """Gaps in this process's attention, in seconds of its monotonic clock. Nothing is noticed before the first
    `awake`.
    """

    last: float | None = None
    gaps: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    """The newest ones, as (beginning, end)."""

    def awake(self, now: float) -> None:
        """Note that the process runs; it was away where it has not said so for long."""
        if self.last is not None:
            self.missed(self.last, now)
        self.last = now

    def missed(self, beginning: float, end: float) -> None:
        """Note a time in which a sign of life could not be seen, where it was long."""
        if end - beginning > GAP_SECONDS:
            self.gaps = [*self.gaps[-9:], (beginning, end)]

    def patience(self, lease: timedelta, *, now: float) -> timedelta:
        """Return how long a worker may have been silent: the lease, and what was missed since it began."""
        missed, since = 0.0, now - lease.total_seconds()
        for beginning, end in reversed(self.gaps):
            if end <= since:
                break
            missed += end - beginning
            since -= end - beginning
        return lease + timedelta(seconds=missed)
