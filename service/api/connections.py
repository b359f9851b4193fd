"""uvicorn's HTTP/1.1 protocol with bounds on connections, on the time of a request's head, and on its chunks.

uvicorn itself waits for a head without end, accepts connections as long as there are file descriptors, and takes a body
in as many chunks as it has bytes.
"""

import asyncio
from dataclasses import dataclass
from typing import Any, ClassVar, Final, cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

HEAD_BYTES_MAX: Final = 64 << 10
"""The largest head of a request, which is held in memory until it is whole."""
BACKLOG: Final = 256
"""How many connections are accepted before anything else gets its turn: each takes a fraction of a millisecond."""
CHUNKS_MAX: Final = 10_000
CHUNK_BYTES_MIN: Final = 16
"""Of a body with more chunks than that, how many bytes a chunk has at least on average. Each costs as much time as
some hundred bytes.
"""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """How many connections there may be, and how long the head of a request may take."""

    connections_max: int
    head_seconds: float


def protocol(limits: ConnectionLimits) -> type[H11Protocol]:
    """Return the protocol class for `uvicorn.Config(http=..)`."""
    return type("Bounded", (BoundedConnection,), {"limits": limits, "awaiting": {}})


class _CountingParser(h11.Connection):
    """Raises h11.RemoteProtocolError where a body comes in too many chunks that are too small."""

    chunks = 0
    body_bytes = 0

    def next_event(self) -> Any:
        event = super().next_event()
        if isinstance(event, h11.Request):
            self.chunks, self.body_bytes = 0, 0
        elif isinstance(event, h11.Data):
            self.chunks += event.chunk_start
            self.body_bytes += len(event.data)
            if self.chunks > CHUNKS_MAX and self.body_bytes < self.chunks * CHUNK_BYTES_MIN:
                raise h11.RemoteProtocolError("the chunks of the body are too small")
        return event


class BoundedConnection(H11Protocol):
    """One connection. See `protocol`."""

    limits: ClassVar[ConnectionLimits]
    awaiting: ClassVar["dict[BoundedConnection, asyncio.TimerHandle]"]
    """What ends each connection from which a request's head is awaited, the one that has waited longest first."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.conn = _CountingParser(h11.SERVER, self.config.h11_max_incomplete_event_size or HEAD_BYTES_MAX)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Make room for the newest connection: the one that has waited longest for a head is closed."""
        super().connection_made(transport)
        self._await_head()
        if len(self.connections) > self.limits.connections_max:
            oldest = next(iter(self.awaiting))
            oldest.transport.abort()
            oldest._head_arrived()  # noqa: SLF001 - its end comes later, and it is not to be chosen twice

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._head_arrived()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Wait for the rest of a head that has begun to arrive."""
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._head_arrived()
        elif self not in self.awaiting:
            self._await_head()

    def send_400_response(self, msg: str) -> None:
        """Refuse what cannot be read, unless an answer has begun."""
        if self.conn.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
            if (cycle := cast("RequestResponseCycle | None", self.cycle)) is not None:
                cycle.disconnected = True
            super().send_400_response(msg)
        else:
            self.transport.abort()

    def _await_head(self) -> None:
        self.awaiting[self] = self.loop.call_later(self.limits.head_seconds, self.transport.abort)

    def _head_arrived(self) -> None:
        if (timer := self.awaiting.pop(self, None)) is not None:
            timer.cancel()
