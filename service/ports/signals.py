"""Waking those who wait. A signal is a hint: whoever wakes re-reads, so a lost signal costs latency, never
correctness.
"""

from typing import Protocol

from service.domain.barrier import Chore
from service.protocol.ids import GraphId

Topic = GraphId | Chore | None
"""A graph's: something is at hand in it. A chore's: it is due. None: something changed that others may wait for."""


class Signals(Protocol):
    """A broadcast channel in a service process."""

    def heard(self, topic: Topic = None) -> int:
        """Return how many notifications there were of a topic."""
        ...

    def notify(self, *topics: Topic) -> None:
        """Wake who waits for one of these topics; without any, everybody."""
        ...

    async def wait(self, timeout_seconds: float, *, topic: Topic = None, since: int | None = None) -> None:
        """Return at the next notification, or after the timeout. Who looked before, and asked what was `heard` before
        that, does not miss one that came while it looked.
        """
        ...
