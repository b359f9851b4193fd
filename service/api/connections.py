"""uvicorn's HTTP/1.1 protocol with a bound on connections, and on the time in which a request's head has to arrive.

uvicorn itself waits for a head without end, and accepts connections as long as there are file descriptors.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_BYTES_MAX: Final = 64 << 10
"""The largest head of a request, which is held in memory until it is whole."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """How many connections there may be, and how long the head of a request may take."""

    connections_max: int
    head_seconds: float


def protocol(limits: ConnectionLimits) -> type[H11Protocol]:
    """Return the protocol class for `uvicorn.Config(http=..)`."""
    return type("Bounded", (BoundedConnection,), {"limits": limits})


class BoundedConnection(H11Protocol):
    """One connection. See `protocol`."""

    limits: ConnectionLimits
    awaited: "asyncio.TimerHandle | None" = None
    """Ends the connection; set while a request's head is awaited."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Make room for the newest connection: the one that has waited longest for a head is closed."""
        super().connection_made(transport)
        self._await_head()
        if len(self.connections) > self.limits.connections_max:
            awaiting = [(one.awaited.when(), id(one), one) for one in self._all() if one.awaited is not None]
            min(awaiting)[-1].transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._head_arrived()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Wait for the rest of a head that has begun to arrive."""
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._head_arrived()
        elif self.awaited is None:
            self._await_head()

    def _all(self) -> Iterator["BoundedConnection"]:
        return (one for one in self.connections if isinstance(one, BoundedConnection))

    def _await_head(self) -> None:
        self.awaited = self.loop.call_later(self.limits.head_seconds, self.transport.abort)

    def _head_arrived(self) -> None:
        if self.awaited is not None:
            self.awaited.cancel()
            self.awaited = None
