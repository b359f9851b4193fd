"""Decide when the next worker may start: at once after a healthy run, with a growing delay while workers die early."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

BACKOFF_FIRST: Final = timedelta(milliseconds=500)
BACKOFF_MAX: Final = timedelta(seconds=30)
HEALTHY_AFTER: Final = timedelta(seconds=60)
"""Much longer than the start of a Spark session: a worker that lived this long did not fail at its start."""


@dataclass(frozen=True, slots=True)
class Restarts:
    """`died_young` counts workers in a row that ended before `HEALTHY_AFTER`. `not_before` is an instant in seconds
    on the clock of the caller.
    """

    died_young: int = 0
    not_before: float = 0.0

    def after(self, lived: timedelta, *, now: float) -> "Restarts":
        """Return the restarts after a worker has ended."""
        if lived >= HEALTHY_AFTER:
            return Restarts(not_before=now)
        # From 2^6 on the maximum applies in any case; the cap keeps the power small.
        wait = min(BACKOFF_FIRST * 2 ** min(self.died_young, 6), BACKOFF_MAX)
        return Restarts(self.died_young + 1, now + wait.total_seconds())

    def allow(self, now: float) -> bool:
        """Whether a worker may start."""
        return now >= self.not_before
