"""Bound uvicorn's HTTP/1.1 protocol: the number of connections, the time for which a client may be silent, the chunks,
the fields of a head, and how much of the event loop the requests of a caller take.

uvicorn itself waits without limit for the head of a request, for the rest of a body that was answered before its end,
and for a client that does not read. It accepts connections until file descriptors run out, and takes a body in as many
chunks as it has bytes.

Where there are too many connections, one is closed whose client the service waits for. Besides those that owe a head,
these are those that owe the body of a request whose sender is not known. As soon as `service.api.credentials` knows
the sender, `service.api.crowd` and `service.api.uploads` bound its requests, to fewer than there may be connections.
"""

import asyncio
import json
import logging
import re
from collections import Counter
from dataclasses import dataclass
from itertools import chain
from typing import Any, ClassVar, Final, NoReturn, cast

import h11
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from service.api.credentials import RECOGNISED
from service.api.errors import MALFORMED, MEDIA_TYPE, problem
from service.api.header_fields import FIELDS_MAX, TOO_MANY_FIELDS, bound_lines
from service.api.middleware import STREAMED

HEAD_BYTES_MAX: Final = 32 << 10
"""Maximum size of a request's head, which is kept in memory until it is complete, and parsed on the event loop."""
_TOO_LARGE_HEAD: Final = f"the head of a request has at most {HEAD_BYTES_MAX} bytes"
_TOO_MANY_PARAMETERS: Final = f"the query of a request has at most {FIELDS_MAX} parameters"
UNREAD_BYTES_MAX: Final = 256 << 20
"""Maximum of bytes that clients have not read yet, on all connections. Beyond it, the caller with the most of them
loses the connection that has been waiting longest.
"""
_END_OF_HEAD: Final = re.compile(rb"\n\r?\n")
ACCEPTED_AT_ONCE: Final = 16
"""Maximum of connections that are accepted before the event loop does other work. The others wait in the kernel, and no
longer: a connection with a simple request takes a millisecond.
"""
CHUNKS_MAX: Final = 10_000
CHUNK_BYTES_MIN: Final = 16
"""Minimum average size of a chunk, in a body of more than `CHUNKS_MAX` chunks. A chunk costs as much time as some
hundred bytes.
"""
TINY_CHUNKS: Final = (
    f"the body comes in more than {CHUNKS_MAX} chunks of less than {CHUNK_BYTES_MIN} bytes: send larger ones"
)
CHUNKS_AT_ONCE: Final = 200
"""Maximum of chunks of a connection that are taken before the event loop does other work: a few milliseconds of it."""
_REST: Final = 2.0
"""After so many chunks a connection rests for this many times as long as they took, times the number of connections
that rest. So all of them together take a third to a half of the event loop.
"""
FREE_CONNECTIONS: Final = 32
"""How many connections of a caller may send request after request. Each further one has each of them rest after an
answer, for `_REST` times as long as a request takes. Strangers count as one caller.
"""
_REQUEST_SECONDS: Final = 0.001
_STRANGE_SECONDS: Final = 0.002
"""The request of a stranger is most often a refusal, and sometimes 32 kB of nonsense."""
_LOGGER: Final = logging.getLogger("uvicorn.error.connections")
"""Anybody can send what is no HTTP, or ask for another protocol, without end. A warning of each would fill a disk."""
_LOGGER.setLevel(logging.ERROR)
_ANSWERING: Final = frozenset({h11.SEND_RESPONSE, h11.SEND_BODY})
bound_lines()


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """The maximum number of connections; how long a request's head may take; how long a client may read nothing of its
    answer.
    """

    connections_max: int
    head_seconds: float
    stalled_seconds: float


def protocol(limits: ConnectionLimits) -> type[H11Protocol]:
    """Return the protocol class for `uvicorn.Config(http=..)`."""
    shared = {"limits": limits, "awaited": {}, "resting": {}, "kept": {}, "of": Counter(), "unread": {}}
    return type("Bounded", (BoundedConnection,), shared)


class _CountingParser(h11.Connection):
    """Raises h11.RemoteProtocolError for a body in too many, too small chunks, and stops after some chunks.

    The rows of a bulk load that is being read may be small: a client that writes line by line sends each line as a
    chunk.
    """

    left = CHUNKS_AT_ONCE
    """How many chunks may be taken now."""
    chunks = 0
    body_bytes = 0
    loading = False
    refusal: str | None = None

    def next_event(self) -> Any:
        if self.left <= 0:
            return h11.NEED_DATA
        if self.their_state is h11.IDLE:
            self._check_head()
        event = super().next_event()
        if isinstance(event, h11.Request):
            path, _, query = event.target.partition(b"?")
            if query.count(b"&") >= FIELDS_MAX:
                self._refuse(_TOO_MANY_PARAMETERS)
            self.chunks, self.body_bytes = 0, 0
            self.loading = STREAMED.match(path.decode("ascii")) is not None
        elif isinstance(event, h11.Data):
            self.left -= event.chunk_start
            self.chunks += event.chunk_start
            self.body_bytes += len(event.data)
            tiny = self.chunks > CHUNKS_MAX and self.body_bytes < self.chunks * CHUNK_BYTES_MIN
            if tiny and not (self.loading and self.our_state in _ANSWERING):
                self._refuse(TINY_CHUNKS)
        return event

    def _check_head(self) -> None:
        """Count the bytes and lines of a head before they are parsed."""
        data = self.trailing_data[0]
        found = _END_OF_HEAD.search(data)
        end = len(data) if found is None else found.start()
        if end > HEAD_BYTES_MAX:
            self._refuse(_TOO_LARGE_HEAD)
        if data.count(b"\n", 0, end) > FIELDS_MAX:
            self._refuse(TOO_MANY_FIELDS)

    def _refuse(self, reason: str) -> NoReturn:
        self.refusal = reason
        raise h11.RemoteProtocolError(reason)


class _RestingFlow(FlowControl):
    """Reads nothing while the connection rests, whatever the application reads."""

    resting = False

    def resume_reading(self) -> None:
        """See uvicorn."""
        if not self.resting:
            super().resume_reading()

    def rest(self) -> None:
        """Read nothing until `go_on`."""
        self.resting = True
        self.pause_reading()

    def go_on(self) -> None:
        """Read again."""
        self.resting = False
        self.resume_reading()


class BoundedConnection(H11Protocol):
    """One connection. See `protocol`."""

    limits: ClassVar[ConnectionLimits]
    awaited: ClassVar["dict[BoundedConnection, asyncio.TimerHandle]"]
    """The timers that close connections whose client has to send a head, send the rest of a body, or read; the oldest
    first. A client that sends a body is awaited here until it is known.
    """
    resting: ClassVar["dict[BoundedConnection, asyncio.TimerHandle]"]
    """The timers of connections that rest: after many chunks, or after a request of a caller with many connections."""
    of: ClassVar["Counter[str]"]
    """How many connections there are by the senders of their last requests. Those of workers count nowhere."""
    kept: ClassVar["dict[BoundedConnection, None]"]
    """The idle keep-alive connections, the longest idle first. uvicorn closes them."""
    unread: ClassVar["dict[BoundedConnection, int]"]
    """The bytes that clients have yet to read, longest waiting first."""
    stalled: asyncio.TimerHandle | None = None
    """The timer that closes this connection if its client reads nothing."""
    known: bool = False
    """The sender of the last request is known."""
    sender: str | None = ""
    """The sender of the last answered request, or of a later one; empty for somebody unknown, None for a worker."""
    owing: bool = False
    """The body of a request is awaited whose sender is not known."""
    bounded: RequestResponseCycle | None = None
    """The request that `known` is about."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.logger = _LOGGER
        self.app_state = {**self.app_state, RECOGNISED: self.recognised}
        self.conn = _CountingParser(h11.SERVER, self.config.h11_max_incomplete_event_size or HEAD_BYTES_MAX)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept a connection. If there are too many, close the one whose client the service has awaited longest. If
        there is none, close the one that has been idle longest, first of those whose last request was of somebody
        unknown, or else the new one.
        """
        super().connection_made(transport)
        self.of[""] += 1
        self.flow = self.reading = _RestingFlow(transport)
        self._bound()
        if len(self.connections) > self.limits.connections_max:
            strangers = (one for one in self.kept if not one.known)
            others = (one for one in chain(self.awaited, strangers, self.kept) if one is not self)
            oldest = next(others, self)
            oldest.transport.abort()
            oldest._forget()  # noqa: SLF001 - it is lost only later, and must not be chosen twice

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the connection's timers."""
        self._forget()
        self._reads()
        self._is_of(None)
        if (timer := self.resting.pop(self, None)) is not None:
            timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Process data, and limit the wait for the rest of a head, or of a body whose answer is complete."""
        super().data_received(data)
        self._bound()

    def handle_events(self) -> None:
        """Take what has come, and rest if that is many chunks."""
        if self in self.resting:
            return
        began, self.conn.left = self.loop.time(), CHUNKS_AT_ONCE
        super().handle_events()
        if self.conn.left <= 0 and not self.transport.is_closing():
            others = sum(one.conn.left <= 0 for one in self.resting)
            self._rest((self.loop.time() - began) * (1 + others))

    def _rest(self, seconds: float) -> None:
        """Take nothing more for `_REST` times some seconds."""
        self.reading.rest()
        self.resting[self] = self.loop.call_later(_REST * seconds, self._go_on)

    def _go_on(self) -> None:
        del self.resting[self]
        self.reading.go_on()
        self.handle_events()
        self._bound()

    def on_response_complete(self) -> None:
        """Limit the wait for the next head, for the rest of a body, or for the client to read its answer."""
        if self in self.connections:
            self._rest_after_answer()
        super().on_response_complete()
        self._bound()

    def _rest_after_answer(self) -> None:
        """Rest before the next request, if its caller has many connections."""
        if not self.known:
            self._is_of("")
        over = 0 if self.sender is None else self.of[self.sender] - FREE_CONNECTIONS
        if over > 0 and self not in self.resting and not self.transport.is_closing():
            self._rest(over * (_REQUEST_SECONDS if self.sender else _STRANGE_SECONDS))

    def recognised(self, sender: str | None) -> None:
        """Wait for the body as long as the service itself does: the sender of the request is known (None: a worker)."""
        if self in self.connections:
            self.known = True
            self._is_of(sender)
            self._bound()

    def _is_of(self, sender: str | None) -> None:
        """Count the connection for its sender, or for nobody."""
        if self.sender is not None:
            self.of[self.sender] -= 1
            if not self.of[self.sender]:
                del self.of[self.sender]
        if sender is not None:
            self.of[sender] += 1
        self.sender = sender

    def pause_writing(self) -> None:
        """Limit the wait for the client to read."""
        super().pause_writing()
        self.unread[self] = self.transport.get_write_buffer_size()
        self._bound_unread()
        self.stalled = self.stalled or self.loop.call_later(self.limits.stalled_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """Cancel this limit: the client has read."""
        super().resume_writing()
        self._reads()

    def send_400_response(self, msg: str) -> None:
        """Refuse a request that cannot be parsed. If an answer has begun, close the connection."""
        if self.conn.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
            if (cycle := self._cycle) is not None:
                cycle.disconnected = True
            self._send_problem(self.conn.refusal or msg)
        else:
            self.transport.abort()

    def _send_problem(self, detail: str) -> None:
        """Answer as the application answers what it cannot read, and close the connection."""
        body = json.dumps(problem(MALFORMED, detail)).encode()
        fields = [("content-type", MEDIA_TYPE), ("content-length", str(len(body))), ("connection", "close")]
        for event in (h11.Response(status_code=400, headers=fields), h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event))
        self.transport.close()

    @property
    def _cycle(self) -> RequestResponseCycle | None:
        """Return the last request; None before the first one, which uvicorn's own type does not tell."""
        return cast("RequestResponseCycle | None", self.cycle)

    def _bound(self) -> None:
        """Set the timer that fits the connection's state, or none while an answer is being made."""
        unread = self.transport.get_write_buffer_size() > 0
        silent = self.conn.our_state is h11.IDLE and self._cycle is not None and not self.conn.trailing_data[0]
        if self._cycle is not self.bounded:
            self.bounded, self.known = self._cycle, False
        answering = self.conn.our_state in _ANSWERING
        owing = answering and not self.known and self.conn.their_state is h11.SEND_BODY
        if answering and not owing:
            self._forget()
        elif silent and not unread:
            self._forget()
            self.kept[self] = None
        elif self not in self.awaited or owing is not self.owing:
            self._forget()
            seconds = self.limits.stalled_seconds if unread or owing else self.limits.head_seconds
            self.awaited[self] = self.loop.call_later(seconds, self.transport.abort)
        self.owing = owing

    def _forget(self) -> None:
        self.kept.pop(self, None)
        if (timer := self.awaited.pop(self, None)) is not None:
            timer.cancel()

    def _bound_unread(self) -> None:
        while sum(self.unread.values()) > UNREAD_BYTES_MAX:
            held = Counter[str | None]()
            for one, size in self.unread.items():
                held[one.sender] += size
            ((most, _),) = held.most_common(1)
            longest = next(one for one in self.unread if one.sender == most)
            del self.unread[longest]
            longest.transport.abort()

    def _reads(self) -> None:
        self.unread.pop(self, None)
        if self.stalled is not None:
            self.stalled.cancel()
        self.stalled = None
