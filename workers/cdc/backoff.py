"""Decide when a source is tried again that did not answer or answered slowly. Pure."""

from dataclasses import dataclass
from typing import Final

RETRY_SECONDS: Final = (0.5, 15.0)
"""The wait after the first failure, and the longest wait. A try blocks a barrier for up to the connect timeout."""

HELD_SECONDS: Final = 1.0
"""A failed try that blocked the barrier for at least this long delays the next try in proportion."""
HELD_TIMES: Final = 10.0
"""The wait after such a try, as a multiple of the time that it blocked the barrier."""
HELD_SECONDS_MAX: Final = 300.0
"""The longest wait in proportion to a blocked barrier."""
SLOW_SECONDS: Final = 0.2
"""A source whose answers block a barrier for at least this long is slow."""
SLOW_TIMES: Final = 4.0
"""The wait after slow answers, as a multiple of their time. So a slow source takes at most a fifth of barrier time."""


@dataclass
class Backoff:
    """The time of the next try. Every failure doubles the wait, so that barriers keep their pace without the source.

    A source that only answers slowly has a wait in proportion to its answers.
    """

    failures: int = 0
    until: float = 0.0
    reason: str | None = None

    def failed(self, reason: str, now: float, *, held: float = 0.0) -> None:
        """Double the wait, and wait at least `HELD_TIMES` as long as the try blocked the barrier (`held`, seconds)."""
        first, longest = RETRY_SECONDS
        held = min(held * HELD_TIMES, HELD_SECONDS_MAX) if held >= HELD_SECONDS else 0.0
        self.until = now + max(min(first * 2 ** min(self.failures, 10), longest), held)
        self.failures, self.reason = self.failures + 1, reason

    def answered(self) -> None:
        """Forget the failures."""
        self.failures, self.until, self.reason = 0, 0.0, None

    def waited(self, held: float, now: float) -> None:
        """Delay the next try of a source whose answers blocked a barrier for `held` seconds."""
        if held >= SLOW_SECONDS:
            self.until = max(self.until, now + min(held * SLOW_TIMES, HELD_SECONDS_MAX))
            self.reason = (
                f"the external database answers slowly, the last time within {held:.1f} s: it is asked less often"
            )
