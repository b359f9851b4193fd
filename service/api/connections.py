"""uvicorn's HTTP/1.1 protocol with bounds on connections, on the time in which nobody is answered, and on chunks.

uvicorn itself waits without end for a head, for the rest of a body that was answered before its end, and for a client
that does not read. It accepts connections as long as there are file descriptors, and takes a body in as many chunks as
it has bytes.
"""

import asyncio
from dataclasses import dataclass
from itertools import chain
from typing import Any, ClassVar, Final, cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from service.api.middleware import STREAMED

HEAD_BYTES_MAX: Final = 64 << 10
"""The largest head of a request, which is held in memory until it is whole."""
BACKLOG: Final = 256
"""How many connections are accepted before anything else gets its turn: each takes a fraction of a millisecond."""
CHUNKS_MAX: Final = 10_000
CHUNK_BYTES_MIN: Final = 16
"""Of a body with more chunks than that, how many bytes a chunk has at least on average. Each costs as much time as
some hundred bytes.
"""
TINY_CHUNKS: Final = (
    f"the body comes in more than {CHUNKS_MAX} chunks of less than {CHUNK_BYTES_MIN} bytes: send larger ones"
)
_ANSWERING: Final = frozenset({h11.SEND_RESPONSE, h11.SEND_BODY})


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """How many connections there may be, how long the head of a request may take, and how long a client may read
    nothing of what it is sent.
    """

    connections_max: int
    head_seconds: float
    stalled_seconds: float


def protocol(limits: ConnectionLimits) -> type[H11Protocol]:
    """Return the protocol class for `uvicorn.Config(http=..)`."""
    return type("Bounded", (BoundedConnection,), {"limits": limits, "awaited": {}, "kept": {}})


class _CountingParser(h11.Connection):
    """Raises h11.RemoteProtocolError where a body comes in too many chunks that are too small. The rows of a load that
    is being read may come so: a client that writes line by line sends each as a chunk.
    """

    chunks = 0
    body_bytes = 0
    loading = False
    refusal: str | None = None

    def next_event(self) -> Any:
        event = super().next_event()
        if isinstance(event, h11.Request):
            self.chunks, self.body_bytes = 0, 0
            self.loading = STREAMED.match(event.target.partition(b"?")[0].decode("ascii")) is not None
        elif isinstance(event, h11.Data):
            self.chunks += event.chunk_start
            self.body_bytes += len(event.data)
            tiny = self.chunks > CHUNKS_MAX and self.body_bytes < self.chunks * CHUNK_BYTES_MIN
            if tiny and not (self.loading and self.our_state in _ANSWERING):
                self.refusal = TINY_CHUNKS
                raise h11.RemoteProtocolError(TINY_CHUNKS)
        return event


class BoundedConnection(H11Protocol):
    """One connection. See `protocol`."""

    limits: ClassVar[ConnectionLimits]
    awaited: ClassVar["dict[BoundedConnection, asyncio.TimerHandle]"]
    """What ends each connection whose client is to send a head or the rest of a body, or to read; the oldest first."""
    kept: ClassVar["dict[BoundedConnection, None]"]
    """Those that were answered and are silent since, the one that is silent for longest first. uvicorn ends them."""
    stalled: asyncio.TimerHandle | None = None
    """What ends this connection if its client reads nothing."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.conn = _CountingParser(h11.SERVER, self.config.h11_max_incomplete_event_size or HEAD_BYTES_MAX)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Make room for the newest connection: the one that is awaited for longest is closed, or that is silent."""
        super().connection_made(transport)
        self._bound()
        if len(self.connections) > self.limits.connections_max:
            others = (one for one in chain(self.awaited, self.kept) if one is not self)
            oldest = next(others, self)
            oldest.transport.abort()
            oldest._forget()  # noqa: SLF001 - its end comes later, and it is not to be chosen twice

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting for it."""
        self._forget()
        self._reads()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read on, and wait for the rest of a head or of a body that is not wanted any more."""
        super().data_received(data)
        self._bound()

    def on_response_complete(self) -> None:
        """Wait for the next head, for the rest of a body, or for the client to read what it was answered."""
        super().on_response_complete()
        self._bound()

    def pause_writing(self) -> None:
        """Wait for the client to read."""
        super().pause_writing()
        self.stalled = self.stalled or self.loop.call_later(self.limits.stalled_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """Go on: the client has read."""
        super().resume_writing()
        self._reads()

    def send_400_response(self, msg: str) -> None:
        """Refuse what cannot be read, unless an answer has begun."""
        if self.conn.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
            if (cycle := self._cycle) is not None:
                cycle.disconnected = True
            super().send_400_response(self.conn.refusal or msg)
        else:
            self.transport.abort()

    @property
    def _cycle(self) -> RequestResponseCycle | None:
        """Return the last request; None before the first, which uvicorn's own type does not say."""
        return cast("RequestResponseCycle | None", self.cycle)

    def _bound(self) -> None:
        """End the connection in time unless an answer is being made."""
        unread = self.transport.get_write_buffer_size() > 0
        silent = self.conn.our_state is h11.IDLE and self._cycle is not None and not self.conn.trailing_data[0]
        if self.conn.our_state in _ANSWERING:
            self._forget()
        elif silent and not unread:
            self._forget()
            self.kept[self] = None
        elif self not in self.awaited:
            self._forget()
            seconds = self.limits.stalled_seconds if unread else self.limits.head_seconds
            self.awaited[self] = self.loop.call_later(seconds, self.transport.abort)

    def _forget(self) -> None:
        self.kept.pop(self, None)
        if (timer := self.awaited.pop(self, None)) is not None:
            timer.cancel()

    def _reads(self) -> None:
        if self.stalled is not None:
            self.stalled.cancel()
        self.stalled = None
