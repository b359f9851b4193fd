"""The permits of one actor: a token bucket that fills with time. It delays history only; live changes take no permits
(I5).
"""

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Budget:
    """A token bucket. `limit` is in rows per second (None: unlimited, 0: paused), `at` is on the worker's monotonic
    clock.

    The bucket holds max(1, limit x interval) and starts empty, also after a recovery, so that a limit of n is kept over
    any window within one page (I4). Who has to read a whole page may owe rows.
    """

    limit: int | None
    at: float
    tokens: float = 0.0

    @property
    def permits(self) -> int | None:
        """Rows that may be read now; None is unlimited."""
        return None if self.limit is None else max(int(self.tokens), 0)

    def refilled(self, now: float, *, interval_seconds: float) -> "Budget":
        """Return the bucket at `now`."""
        if self.limit is None:
            return replace(self, at=now)
        capacity = max(1.0, self.limit * interval_seconds)
        return replace(self, at=now, tokens=min(capacity, self.tokens + self.limit * max(now - self.at, 0.0)))

    def spent(self, rows: int) -> "Budget":
        """Return the bucket after `rows` were read, of which there may have been more than permits."""
        if self.limit is None:
            return self
        return replace(self, tokens=self.tokens - rows)

    def throttled(self, limit: int | None, *, now: float) -> "Budget":
        """Return an empty bucket with `limit`."""
        return Budget(limit, now)
