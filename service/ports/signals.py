"""Wake waiting tasks. A signal is only a hint: a woken task reads again, so a lost signal costs latency, never
correctness.
"""

from collections.abc import Callable
from typing import Protocol

from service.domain.barrier import Chore
from service.protocol.ids import GraphId

Topic = GraphId | Chore | None
"""The subject of a signal. A graph: its next tick has work. A chore: it is due. None: any other change."""


class Signals(Protocol):
    """A broadcast channel in a service process."""

    def heard(self, topic: Topic = None) -> int:
        """Return the number of notifications of a topic so far."""
        ...

    def notify(self, *topics: Topic) -> None:
        """Wake the tasks that wait for one of these topics, or all tasks if there is no topic."""
        ...

    async def wait(self, timeout_seconds: float, *, topic: Topic = None, since: int | None = None) -> None:
        """Return at the next notification, or after the timeout.

        `since` is the result of `heard` before the last read. A notification during that read is then not missed.
        """
        ...


class Notifications(Protocol):
    """Short texts to every service of an installation, this one too. Others may send too, and any text may be lost."""

    async def send(self, payload: str) -> None:
        """Send a text of at most 8,000 bytes. Raises Unavailable."""
        ...

    async def listen(self, receive: Callable[[str | None], None], *, silent_seconds: float) -> None:
        """Receive texts, after None at the beginning, because earlier ones were missed. Does not return.

        Raises Unavailable if the connection is lost, or brought nothing for `silent_seconds`.
        """
        ...

    async def close(self) -> None:
        """Close what `send` uses."""
        ...
