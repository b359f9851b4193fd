"""Connections to a listening server: how many there may be, and how long a head may take (S10)."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import cast

import h11
import pytest
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from service.api import connections
from service.api.connections import (
    CHUNK_BYTES_MIN,
    CHUNKS_MAX,
    HEAD_BYTES_MAX,
    ConnectionLimits,
    protocol,
)
from service.api.credentials import WORKER, recognise
from service.api.header_fields import FIELDS_MAX
from service.domain.roles import Role
from service.ports.audit import Asker

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Open = Callable[[], Awaitable[Streams]]
HEAD = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"


def _limits(connections_max: int, head_seconds: float, stalled_seconds: float = 60) -> ConnectionLimits:
    return ConnectionLimits(connections_max, head_seconds, stalled_seconds)


async def _app(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer at once; the route of bulk loads reads its body first."""
    if scope["path"].endswith("/rows"):
        while (await receive()).get("more_body", False):
            pass
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body"})


@asynccontextmanager
async def _serving(limits: ConnectionLimits, app: ASGIApp = _app) -> AsyncGenerator[Open]:
    """Yield what opens a connection."""
    config = uvicorn.Config(
        app,
        http=protocol(limits),
        lifespan="off",
        log_config=None,
        port=0,
        timeout_keep_alive=60,
        h11_max_incomplete_event_size=HEAD_BYTES_MAX,
    )
    listening = config.bind_socket()
    listening.listen()
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve(sockets=[listening]))
    opened: list[Streams] = []

    async def opening() -> Streams:
        opened.append(await asyncio.open_connection(*listening.getsockname()))
        return opened[-1]

    try:
        yield opening
    finally:
        for _, writer in opened:
            writer.close()
        server.should_exit = True
        await task


async def _answered(streams: Streams, sent: bytes = HEAD) -> bool:
    """Send a head; whether it is answered."""
    streams[1].write(sent)
    try:
        return b"204" in await streams[0].readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        return False


async def _ended(streams: Streams) -> None:
    """Wait until the server has closed a connection."""
    with suppress(ConnectionError):
        await streams[0].read()


@pytest.mark.parametrize(
    "head", [HEAD.replace(b"\r\n\r\n", b"\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n"), b"no HTTP\r\n\r\n"]
)
async def test_s10_a_stranger_makes_no_lines_in_the_log(head: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """400 requests for another protocol made 3,600 lines."""
    async with _serving(_limits(100, 60)) as opening, asyncio.timeout(60):
        streams = await opening()
        streams[1].write(head)
        assert (await streams[0].readline()).startswith(b"HTTP/1.1 ")
    assert not [one for one in caplog.records if one.levelname == "WARNING"]


async def test_s10_a_connection_whose_head_never_ends_is_closed() -> None:
    async with _serving(_limits(100, 0.3)) as opening, asyncio.timeout(60):
        silent, unfinished, again = await opening(), await opening(), await opening()
        unfinished[1].write(HEAD[:20])
        assert await _answered(again)
        again[1].write(HEAD[:20])
        for streams in (silent, unfinished, again):
            await _ended(streams)


async def test_s10_the_newest_connection_takes_the_place_of_the_one_that_waited_longest() -> None:
    async with _serving(_limits(3, 60)) as opening, asyncio.timeout(60):
        used = await opening()
        assert await _answered(used)
        others = [await opening() for _ in range(5)]
        for streams in others[:3]:
            await _ended(streams)
        assert await _answered(others[-1])


async def test_s10_a_head_has_its_size() -> None:
    async with _serving(_limits(10, 60)) as opening, asyncio.timeout(60):
        streams = await opening()
        assert not await _answered(streams, b"GET / HTTP/1.1\r\nX: " + b"x" * (HEAD_BYTES_MAX + 1000))
        # One that comes at once and whole is refused as well.
        whole = HEAD[:-2] + b"X: %s\r\n\r\n"
        assert await _answered(await opening(), whole % (b"x" * (HEAD_BYTES_MAX - 100)))
        assert not await _answered(await opening(), whole % (b"x" * HEAD_BYTES_MAX))


async def test_i13_a_head_has_so_many_fields_at_most() -> None:
    """Heads of 15,000 empty fields, on 150 connections without a token, let nobody be answered for 12 s."""
    async with _serving(_limits(10, 60)) as opening, asyncio.timeout(60):
        request, streams = HEAD[:-2] + b"a:\r\n" * (FIELDS_MAX - 1), await opening()
        assert await _answered(streams, request + b"\r\n")
        assert await _answered(streams, CHUNKED + b"20\r\n" + b"\n" * 32 + b"\r\n0\r\n\r\n" + HEAD)
        assert await _answered(streams, b"")
        streams[1].write(request + b"a:\r\n\r\n")
        said = await streams[0].read()
        assert b"application/problem+json" in said
        assert json.loads(said.partition(b"\r\n\r\n")[2])["detail"] == "a request has at most 100 header fields"


async def test_i13_a_query_has_so_many_parameters_at_most() -> None:
    """240 requests with 30,000 parameters, without a token, let nobody be answered for 15 s."""
    async with _serving(_limits(10, 60)) as opening, asyncio.timeout(60):
        streams, target = await opening(), b"/?" + b"a&" * (FIELDS_MAX - 1)
        assert await _answered(streams, HEAD.replace(b"/ ", target + b" ", 1))
        streams[1].write(HEAD.replace(b"/ ", target + b"a& ", 1))
        assert b"the query of a request has at most 100 parameters" in await streams[0].read()


@pytest.mark.parametrize("stranger", [True, False])
async def test_i13_many_connections_of_a_caller_leave_the_event_loop_to_others(
    stranger: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1,500 connections that asked for /livez again and again let the leader lose its lease, without a token."""
    monkeypatch.setattr(connections, "FREE_CONNECTIONS", 2)
    monkeypatch.setattr(connections, "_STRANGE_SECONDS" if stranger else "_REQUEST_SECONDS", 1000)
    asked = Counter[str]()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        asked[scope["path"]] += 1
        if scope["path"] != "/many" or not stranger:
            recognise(scope, Asker(scope["path"], Role.VIEWER))
        await _app(scope, receive, send)

    async with _serving(_limits(10, 60), app) as opening, asyncio.timeout(60):
        many, few = (HEAD.replace(b" / ", b" %s " % path) for path in (b"/many", b"/few"))
        others = [await opening() for _ in range(2)]
        for streams in others * 10:
            assert await _answered(streams, few)
        of_many = [await opening() for _ in range(4)]
        for streams in of_many:
            streams[1].write(many * 5)
        for streams in of_many:
            assert await _answered(streams, b"")
        for streams in others * 10:
            assert await _answered(streams, few)
        # The first two may have been answered before there were more.
        assert 4 <= asked["/many"] <= 12
        assert asked["/few"] == 40


CHUNKED = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"


async def test_a_body_in_too_many_tiny_chunks_is_given_up() -> None:
    """900,000 chunks of a byte took seconds of the one thread that answers everybody, without a token."""
    async with _serving(_limits(10, 60)) as opening, asyncio.timeout(60):
        streams = await opening()
        # Refused, or answered without its body; ended before the body does.
        await _answered(streams, CHUNKED + b"1\r\nx\r\n" * (2 * CHUNKS_MAX))
        await _ended(streams)


MANY_BLANKS = b" " * (1 << 20)


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (b"0\r\na:" + MANY_BLANKS + b"\x0c\r\n", "illegal header line"),
        (b"0\r\n" + b"a:\r\n" * (FIELDS_MAX + 1), "at most 100 header fields"),
        (b"1;" + MANY_BLANKS + b"\n", "illegal chunk header"),
    ],
)
def test_i13_lines_of_strangers_take_no_time(sent: bytes, why: str) -> None:
    """Blanks before a sign that is not allowed took time quadratic in their number: 2.6 s for 32 kB."""
    parser = h11.Connection(h11.SERVER, max_incomplete_event_size=2 * len(MANY_BLANKS))
    parser.receive_data(CHUNKED + b"1;x=y \r\nx\r\n" + sent + b"\r\n")
    parser.next_event()
    assert isinstance(parser.next_event(), h11.Data)
    with pytest.raises(h11.RemoteProtocolError, match=why):
        parser.next_event()


@pytest.mark.parametrize("value", [b"", b"1", b"a \t b", b"caf\xe9", b"a,  b"])
@pytest.mark.parametrize("blanks", [b"", b" \t "])
def test_fields_have_their_values_without_blanks_around(value: bytes, blanks: bytes) -> None:
    parser = h11.Connection(h11.SERVER)
    parser.receive_data(HEAD[:-2] + b"field:" + blanks + value + blanks + b"\r\n folded\r\n\r\n")
    request = parser.next_event()
    assert isinstance(request, h11.Request)
    assert dict(request.headers)[b"field"] == (value + blanks + b" folded").strip()


async def test_a_body_may_have_many_chunks() -> None:
    async with _serving(_limits(10, 60)) as opening, asyncio.timeout(60):
        streams = await opening()
        large = b"%x\r\n%s\r\n" % (CHUNK_BYTES_MIN, b"x" * CHUNK_BYTES_MIN)
        for body in (large * (2 * CHUNKS_MAX), b"1\r\nx\r\n" * (CHUNKS_MAX - 1), b"1\r\nx\r\n"):
            assert await _answered(streams, CHUNKED + body + b"0\r\n\r\n")
        assert await _answered(streams)


async def test_a_line_of_a_load_may_be_a_chunk() -> None:
    """A client that writes a CSV line by line sends each as a chunk."""
    async with _serving(_limits(10, 60)) as opening, asyncio.timeout(60):
        head = CHUNKED.replace(b" / ", b" /v1/relations/t/rows ")
        lines = b"6\r\n12,34\n\r\n" * (2 * CHUNKS_MAX)
        assert await _answered(await opening(), head + lines + b"0\r\n\r\n")


async def test_i13_loads_in_tiny_chunks_leave_the_event_loop_to_others() -> None:
    """Forty loads in chunks of a byte let nobody be answered for 47 s, and the leader lost its lease."""
    taken, loads = [0], 4

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        more = scope["path"].endswith("/rows")
        while more:
            message = await receive()
            taken[0] += len(message.get("body", b""))
            more = message.get("more_body", False)
        await _app({**scope, "path": "/"}, receive, send)

    async with _serving(_limits(10, 60), app) as opening, asyncio.timeout(60):
        other = await opening()
        assert await _answered(other)
        head, bytes_of_a_load = CHUNKED.replace(b" / ", b" /v1/relations/t/rows "), 4_000
        loading = [await opening() for _ in range(loads)]
        for streams in loading:
            streams[1].write(head + b"1\r\nx\r\n" * bytes_of_a_load)
        while not taken[0]:
            assert await _answered(other)
        for _ in range(5):
            assert await _answered(other)
        assert taken[0] < loads * bytes_of_a_load / 2
        for streams in loading:
            assert await _answered(streams, b"0\r\n\r\n")
        assert taken[0] == loads * bytes_of_a_load


async def test_a_refusal_of_tiny_chunks_says_so() -> None:
    async with _serving(_limits(10, 60)) as opening, asyncio.timeout(60):
        reader, writer = await opening()
        writer.write(CHUNKED + b"1\r\nx\r\n" * (2 * CHUNKS_MAX))
        with suppress(ConnectionError):
            said = await reader.read()
            assert b" 204 " in said or b"send larger ones" in said


@pytest.mark.parametrize("method", [b"GET", b"POST"])
async def test_a_body_that_is_answered_before_its_end_keeps_no_connection(method: bytes) -> None:
    """One byte of it took the connection out of all that is bounded: 2,000 such shut everybody out, without a token."""
    async with _serving(_limits(3, 0.3)) as opening, asyncio.timeout(60):
        held = [await opening() for _ in range(3)]
        for streams in held:
            assert await _answered(streams, method + b" / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n")
            streams[1].write(b"x")
        for streams in held:
            await _ended(streams)


async def test_an_unwanted_body_makes_room_for_the_newest_connection() -> None:
    async with _serving(_limits(3, 60)) as opening, asyncio.timeout(60):
        for _ in range(3):
            streams = await opening()
            assert await _answered(streams, b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\nx")
        assert await _answered(await opening())


async def test_silent_connections_make_room_where_none_is_awaited() -> None:
    async with _serving(_limits(3, 60)) as opening, asyncio.timeout(60):
        used = [await opening() for _ in range(3)]
        for streams in used:
            assert await _answered(streams)
        assert await _answered(await opening())
        await _ended(used[0])
        assert await _answered(used[1])


async def test_a_client_that_reads_nothing_is_given_up() -> None:
    over = asyncio.Event()

    async def large(scope: Scope, receive: Receive, send: Send) -> None:
        """Answer more than sockets hold."""
        del scope, receive
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(1_000):
            await send({"type": "http.response.body", "body": bytes(100_000), "more_body": True})
        over.set()

    async with _serving(_limits(3, 60, stalled_seconds=0.3), large) as opening, asyncio.timeout(60):
        _, writer = await opening()
        cast("asyncio.ReadTransport", writer.transport).pause_reading()
        writer.write(HEAD)
        await over.wait()


async def test_i13_answers_that_nobody_reads_take_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """900 clients that read nothing of 8 MB each let the service grow until they were given up."""
    monkeypatch.setattr(connections, "UNREAD_BYTES_MAX", 40_000_000)

    async def large(scope: Scope, receive: Receive, send: Send) -> None:
        """Answer more than sockets hold at once."""
        recognise(scope, Asker(scope["path"], Role.VIEWER))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": bytes(20_000_000)})

    async with _serving(_limits(10, 60), large) as opening, asyncio.timeout(60):
        held = [await opening() for _ in range(4)]
        for streams, path in zip(held, (b"/other", b"/many", b"/many", b"/many"), strict=True):
            cast("asyncio.ReadTransport", streams[1].transport).pause_reading()
            streams[1].write(HEAD.replace(b" / ", b" %s " % path))
            await asyncio.sleep(0.2)  # noqa: TID251 - one after the other
        whole: list[bool] = []
        for reader, writer in held:
            cast("asyncio.ReadTransport", writer.transport).resume_reading()
            try:
                await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(20_000_000)
                whole.append(True)
            except (asyncio.IncompleteReadError, ConnectionError):
                whole.append(False)
    assert whole == [True, False, False, True]


SLOW = b"POST /v1/relations/t/rows HTTP/1.1\r\nHost: a\r\nContent-Length: 15000\r\n\r\ntoken="


async def test_a_body_of_somebody_unknown_makes_room_for_the_newest_connection() -> None:
    """2,000 login forms that never ended shut out everybody for a minute, and the worker too, without a token."""
    async with _serving(_limits(3, 60)) as opening, asyncio.timeout(60):
        used = await opening()
        assert await _answered(used)
        held = [await opening() for _ in range(2)]
        for streams in held:
            streams[1].write(SLOW)
            await asyncio.sleep(0.1)  # noqa: TID251 - one after the other
        held.append(await opening())
        held[-1][1].write(SLOW)
        await _ended(held[0])
        assert await _answered(await opening())
        await _ended(held[1])
        assert await _answered(used)


async def test_a_body_of_a_known_caller_is_awaited_and_its_idle_connection_kept_longest() -> None:
    async def knows(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] != "/":
            recognise(scope, WORKER)
        await _app(scope, receive, send)

    async with _serving(_limits(3, 0.3), knows) as opening, asyncio.timeout(60):
        held, idle, stranger = [await opening() for _ in range(3)]
        held[1].write(SLOW)
        assert await _answered(idle, HEAD.replace(b" / ", b" /v1 "))
        assert await _answered(stranger)
        assert await _answered(await opening())
        await _ended(stranger)
        assert await _answered(idle, HEAD.replace(b" / ", b" /v1 "))
        await asyncio.sleep(0.5)  # noqa: TID251 - longer than a head may take
        assert await _answered(held, b"x" * (15_000 - len(b"token=")))
