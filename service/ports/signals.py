"""Waking those who wait. A signal is a hint: whoever wakes re-reads, so a lost signal costs latency, never
correctness.
"""

from typing import Protocol


class Signals(Protocol):
    """One broadcast channel per service process."""

    def notify(self) -> None:
        """Wake everybody who waits."""
        ...

    async def wait(self, timeout_seconds: float) -> None:
        """Return at the next notification, or after the timeout."""
        ...
