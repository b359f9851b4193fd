"""Decide how long an epoch waits for an answer of a source that may be slow. Pure.

Barriers wait with the epoch. The epoch therefore goes on without a late answer, and a later epoch reads it (I13). An
epoch waits only briefly for a slow source.

The exact time of an answer is unknown: it took longer than an epoch has seen it missing. The source stays slow only if
that is longer than an epoch may wait. Otherwise one late answer would keep the source slow for ever: the brief wait
misses each answer that would have come within the long one.
"""

from dataclasses import dataclass
from typing import Final

FIRST_SECONDS: Final = 1.0
"""How long an epoch waits for the answer to its request."""
AGAIN_SECONDS: Final = 0.1
"""How long it waits for a slow source. It is brief, because all barriers wait for every slow source."""
QUIET_SECONDS: Final = 2.0
"""How long it waits for more of an answer that has begun."""
BYTES_PER_SECOND: Final = 1 << 20
"""How much must have come for each further second that it waits."""
GONE_SECONDS: Final = 300.0
"""After this time without any new part of an answer that has begun, the request is sent again."""
WITHIN_SECONDS: Final = 60.0
"""The longest wait for a second answer, and for more of an answer of which no more can be kept."""


def rest(spent: float, size_bytes: int) -> float:
    """Return how many seconds an epoch still waits for more of an answer.

    It has waited `spent` seconds after the answer began, and `size_bytes` have come.
    """
    return min(QUIET_SECONDS + size_bytes / BYTES_PER_SECOND - spent, QUIET_SECONDS)


@dataclass
class Patience:
    """The time that a source takes to answer one kind of request, as far as epochs have seen it."""

    slow: bool = False
    asked_at: float = 0.0
    missing: float | None = None
    """How long the last answer had been missing when an epoch went on without it. None if none did."""
    stalled: bool = False
    """Whether an epoch has gone on without the rest of an answer.

    The next answers are then collected first, with brief waits, and read when they are complete. This lasts until the
    source is no longer slow.
    """
    retries: int = 0
    """How many second requests of an epoch were not answered in time."""

    def asked(self, now: float) -> None:
        """Record when a request was sent."""
        self.asked_at, self.missing = now, None

    def allows(self, *, second: bool = False) -> float:
        """Return how many seconds an epoch waits for the answer.

        Without the answer to its second request the whole epoch is undone, and the next epoch sends the same request.
        Each such try waits twice as long as the one before.
        """
        if second:
            return min(FIRST_SECONDS * 2**self.retries, WITHIN_SECONDS)
        if self.missing is not None:
            return 0.0
        return AGAIN_SECONDS if self.slow else FIRST_SECONDS

    def missed(self, now: float, *, second: bool = False) -> None:
        """Record that an epoch goes on without the answer."""
        self.missing = now - self.asked_at
        self.retries += second

    def came(self) -> None:
        """Record that the answer was read."""
        self.slow = self.missing is not None and self.missing >= FIRST_SECONDS
        self.missing = None
        if not self.slow:
            self.retries, self.stalled = 0, False
