"""When a source that is away is tried again. Pure."""

from dataclasses import dataclass
from typing import Final

RETRY_SECONDS: Final = (0.5, 15.0)
"""After the first failure, and at most: a try can hold a barrier up for as long as a connection may take."""

HELD_SECONDS: Final = 1.0
"""A try that held the barrier up for so long costs others something;"""
HELD_TIMES: Final = 10.0
"""they have so many times as long without it,"""
HELD_SECONDS_MAX: Final = 300.0
"""and no longer than this."""
SLOW_SECONDS: Final = 0.2
"""A source that answers, but for whose answers a barrier was held so long, is slow;"""
SLOW_TIMES: Final = 4.0
"""it is left alone for so many times as long: what it costs is a fifth of the barriers' time at most."""


@dataclass
class Backoff:
    """When to try again. Every failure doubles the wait, so that barriers keep their pace while a source is away. One
    that only answers slowly is left alone in proportion.
    """

    failures: int = 0
    until: float = 0.0
    reason: str | None = None

    def failed(self, reason: str, now: float, *, held: float = 0.0) -> None:
        """Wait longer than the last time, and many times as long as the try has held the barrier up."""
        first, longest = RETRY_SECONDS
        held = min(held * HELD_TIMES, HELD_SECONDS_MAX) if held >= HELD_SECONDS else 0.0
        self.until = now + max(min(first * 2 ** min(self.failures, 10), longest), held)
        self.failures, self.reason = self.failures + 1, reason

    def answered(self) -> None:
        """Forget the failures."""
        self.failures, self.until, self.reason = 0, 0.0, None

    def waited(self, held: float, now: float) -> None:
        """Leave a source alone whose answers, or missing answers, have just held a barrier up."""
        if held >= SLOW_SECONDS:
            self.until = max(self.until, now + min(held * SLOW_TIMES, HELD_SECONDS_MAX))
            self.reason = (
                f"the external database answers slowly, the last time within {held:.1f} s: it is asked less often"
            )
