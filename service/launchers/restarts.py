"""When the next worker may start: at once after a healthy run, ever later while workers die young."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

BACKOFF_FIRST: Final = timedelta(milliseconds=500)
BACKOFF_MAX: Final = timedelta(seconds=30)
HEALTHY_AFTER: Final = timedelta(seconds=60)
"""Well past a Spark session's start: a worker that lived this long did not fail at starting."""


@dataclass(frozen=True, slots=True)
class Restarts:
    """`died_young` counts workers in a row; `not_before` is a monotonic instant in seconds."""

    died_young: int = 0
    not_before: float = 0.0

    def after(self, lived: timedelta, *, now: float) -> "Restarts":
        """A worker ended: return when the next one may start."""
        if lived >= HEALTHY_AFTER:
            return Restarts(not_before=now)
        # Beyond 2^6 the ceiling holds anyway; the cap keeps the power small.
        wait = min(BACKOFF_FIRST * 2 ** min(self.died_young, 6), BACKOFF_MAX)
        return Restarts(self.died_young + 1, now + wait.total_seconds())

    def allow(self, now: float) -> bool:
        """Whether a worker may start."""
        return now >= self.not_before
