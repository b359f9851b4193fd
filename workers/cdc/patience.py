"""How long an epoch waits for an answer of a source that may take long. Pure.

Barriers wait with the epoch, so that it goes on without an answer that takes longer, and a later epoch takes it (I13).
Where answers take long the next ones are waited for only briefly. When one came nobody knows exactly: it took longer
than an epoch has seen it missing. Only where that is longer than an epoch may wait, the source stays slow; otherwise
one answer that was late once would keep it slow for ever, because the brief wait misses every answer that would have
come within the long one.
"""

from dataclasses import dataclass
from typing import Final

FIRST_SECONDS: Final = 1.0
"""How long an epoch waits for what it has asked for."""
AGAIN_SECONDS: Final = 0.1
"""How long where answers take longer than that: all barriers wait for every source that is slow."""
WITHIN_SECONDS: Final = 60.0
"""How long it waits for the rest of an answer that has begun."""


@dataclass
class Patience:
    """What is known of the time that a source takes for one kind of question."""

    slow: bool = False
    asked_at: float = 0.0
    missing: float | None = None
    """How long what was asked last had not come, when an epoch went on without it."""
    retries: int = 0
    """How many second questions of an epoch were not answered in time."""

    def asked(self, now: float) -> None:
        """Begin to wait for an answer."""
        self.asked_at, self.missing = now, None

    def allows(self, *, second: bool = False) -> float:
        """Return how long an epoch waits. All of it is undone without the answer to its second question, and asks the
        same again: each try waits twice as long as the one before.
        """
        if second:
            return min(FIRST_SECONDS * 2**self.retries, WITHIN_SECONDS)
        if self.missing is not None:
            return 0.0
        return AGAIN_SECONDS if self.slow else FIRST_SECONDS

    def missed(self, now: float, *, second: bool = False) -> None:
        """An epoch goes on without the answer."""
        self.missing = now - self.asked_at
        self.retries += second

    def came(self) -> None:
        """The answer was read."""
        self.slow = self.missing is not None and self.missing >= FIRST_SECONDS
        self.missing = None
        if not self.slow:
            self.retries = 0
