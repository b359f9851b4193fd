"""Waking those who wait. A signal is a hint: whoever wakes re-reads, so a lost signal costs latency, never
correctness.
"""

from typing import Protocol


class Signals(Protocol):
    """A broadcast channel in a service process."""

    @property
    def heard(self) -> int:
        """How many notifications there were."""
        ...

    def notify(self) -> None:
        """Wake everybody who waits."""
        ...

    async def wait(self, timeout_seconds: float, *, since: int | None = None) -> None:
        """Return at the next notification, or after the timeout. Who looked before, and asked what was `heard` before
        that, does not miss one that came while it looked.
        """
        ...
