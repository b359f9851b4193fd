"""How long the changes of one scan may hold up everybody else (I13). Pure.

The seconds of an epoch beyond a moment come out of a bucket, and a part of all time flows back into it. So one long
epoch is borne, and several in succession are not.
"""

from dataclasses import dataclass
from typing import Final

FREE_SECONDS: Final = 2.0
"""An epoch that takes no longer is free: others wait for so long without noticing."""
REFILL: Final = 0.2
"""The part of the time that flows back."""


@dataclass(frozen=True, slots=True)
class CostBudget:
    """A bucket of `limit` seconds, of which some were spent at the instant `since`. A limit of 0 is none."""

    limit: float
    spent: float = 0.0
    since: float = 0.0

    def allowed(self, now: float) -> float | None:
        """Return how many seconds the changes of an epoch may take. None: any."""
        return min(self.limit, FREE_SECONDS + self.limit - self._spent(now)) if self.limit else None

    def charged(self, seconds: float, now: float) -> "CostBudget":
        """Return the bucket after an epoch that took so long and ends now."""
        spent = min(self._spent(now) + max(0.0, seconds - FREE_SECONDS), self.limit)
        return CostBudget(self.limit, spent, now)

    def _spent(self, now: float) -> float:
        return max(0.0, self.spent - REFILL * (now - self.since))
