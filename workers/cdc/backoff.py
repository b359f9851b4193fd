"""When a source that is away is tried again. Pure."""

from dataclasses import dataclass
from typing import Final

RETRY_SECONDS: Final = (0.5, 15.0)
"""After the first failure, and at most: a try can hold a barrier up for as long as a connection may take."""


@dataclass
class Backoff:
    """When to try again. Every failure doubles the wait, so that barriers keep their pace while a source is away."""

    failures: int = 0
    until: float = 0.0
    reason: str | None = None

    def failed(self, reason: str, now: float) -> None:
        """Wait longer than the last time."""
        first, longest = RETRY_SECONDS
        self.until = now + min(first * 2 ** min(self.failures, 10), longest)
        self.failures, self.reason = self.failures + 1, reason

    def answered(self) -> None:
        """Forget the failures."""
        self.failures, self.until, self.reason = 0, 0.0, None
