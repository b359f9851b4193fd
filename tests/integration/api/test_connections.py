"""Connections to a listening server: how many there may be, and how long a head may take (S10)."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import uvicorn
from starlette.types import Receive, Scope, Send

from service.api.connections import CHUNK_BYTES_MIN, CHUNKS_MAX, HEAD_BYTES_MAX, ConnectionLimits, protocol

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Open = Callable[[], Awaitable[Streams]]
HEAD = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"


async def _app(scope: Scope, receive: Receive, send: Send) -> None:
    del scope, receive
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body"})


@asynccontextmanager
async def _serving(limits: ConnectionLimits) -> AsyncGenerator[Open]:
    """Yield what opens a connection."""
    config = uvicorn.Config(
        _app,
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


async def test_s10_a_connection_whose_head_never_ends_is_closed() -> None:
    async with _serving(ConnectionLimits(connections_max=100, head_seconds=0.3)) as opening, asyncio.timeout(60):
        silent, unfinished, again = await opening(), await opening(), await opening()
        unfinished[1].write(HEAD[:20])
        assert await _answered(again)
        again[1].write(HEAD[:20])
        for streams in (silent, unfinished, again):
            await _ended(streams)


async def test_s10_the_newest_connection_takes_the_place_of_the_one_that_waited_longest() -> None:
    async with _serving(ConnectionLimits(connections_max=3, head_seconds=60)) as opening, asyncio.timeout(60):
        used = await opening()
        assert await _answered(used)
        others = [await opening() for _ in range(5)]
        for streams in others[:3]:
            await _ended(streams)
        assert await _answered(others[-1])


async def test_s10_a_head_has_its_size() -> None:
    async with _serving(ConnectionLimits(connections_max=10, head_seconds=60)) as opening, asyncio.timeout(60):
        streams = await opening()
        assert not await _answered(streams, b"GET / HTTP/1.1\r\nX: " + b"x" * (HEAD_BYTES_MAX + 1000))


CHUNKED = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"


async def test_a_body_in_too_many_tiny_chunks_is_given_up() -> None:
    """900,000 chunks of a byte took seconds of the one thread that answers everybody, without a token."""
    async with _serving(ConnectionLimits(connections_max=10, head_seconds=60)) as opening, asyncio.timeout(60):
        streams = await opening()
        # Refused, or answered without its body; ended before the body does.
        await _answered(streams, CHUNKED + b"1\r\nx\r\n" * (2 * CHUNKS_MAX))
        await _ended(streams)


async def test_a_body_may_have_many_chunks() -> None:
    async with _serving(ConnectionLimits(connections_max=10, head_seconds=60)) as opening, asyncio.timeout(60):
        streams = await opening()
        large = b"%x\r\n%s\r\n" % (CHUNK_BYTES_MIN, b"x" * CHUNK_BYTES_MIN)
        for body in (large * (2 * CHUNKS_MAX), b"1\r\nx\r\n" * (CHUNKS_MAX - 1), b"1\r\nx\r\n"):
            assert await _answered(streams, CHUNKED + body + b"0\r\n\r\n")
        assert await _answered(streams)
