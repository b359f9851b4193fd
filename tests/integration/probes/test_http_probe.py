"""A GET to a real server that answers well, badly, late, elsewhere, or not at all."""

import asyncio
import base64
import logging
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress

import pytest
import structlog

from service.domain.probes import ProbeUrl, parse_probe_url
from service.ports.health import ProbeFailed
from service.probes.http import HttpxProbe
from service.telemetry.log import configure
from tests.support.service import free_port

Answer = Callable[[asyncio.StreamWriter, str], Awaitable[None]]


@asynccontextmanager
async def server(answer: Answer) -> AsyncGenerator[tuple[int, list[str]]]:
    """Serve one answer; give the port, and the heads of the requests that came."""
    heads: list[str] = []
    serving: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        serving.add(task)
        # Whoever asked may have gone before it was read what.
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            try:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                heads.append(head)
                await answer(writer, head)
                await writer.drain()
            finally:
                writer.close()
                await writer.wait_closed()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield listening.sockets[0].getsockname()[1], heads
    finally:
        # From accepting to serving it takes three turns of the loop, and what has been closed accepts nothing any more.
        for _ in range(10):
            await asyncio.sleep(0)  # noqa: TID251 - what was accepted just now is served, and takes no time
        listening.close()
        await asyncio.gather(*serving)


def says(status: str, *headers: str, body: bytes = b"") -> Answer:
    async def answer(writer: asyncio.StreamWriter, _head: str) -> None:
        lines = [f"HTTP/1.1 {status}", "Connection: close", *headers, "", ""]
        writer.write("\r\n".join(lines).encode() + body)

    return answer


def url(port: int, rest: str = "/live?token=hidden", user: str = "someone:hunter2@") -> ProbeUrl:
    return parse_probe_url(f"http://{user}127.0.0.1:{port}{rest}", pointer="p")


async def status(port: int, *, timeout_ms: int = 5_000) -> int:
    return await HttpxProbe().status(url(port), timeout_ms=timeout_ms)


@pytest.mark.parametrize("said", ["200 OK", "204 No Content", "503 Service Unavailable"])
async def test_the_status_is_told(said: str) -> None:
    async with server(says(said)) as (port, heads):
        assert await status(port) == int(said[:3])
    (head,) = heads
    assert head.startswith("GET /live?token=hidden HTTP/1.1\r\n")
    credentials = base64.b64encode(b"someone:hunter2").decode()
    assert f"authorization: basic {credentials}".lower() in head.lower()


async def test_the_authorities_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes tens of milliseconds, in which the whole service does nothing else."""
    probe = HttpxProbe()
    monkeypatch.delattr(ssl, "create_default_context")
    async with server(says("200 OK")) as (port, _):
        assert await probe.status(url(port), timeout_ms=5_000) == 200


async def test_a_redirect_is_an_answer_and_is_not_followed() -> None:
    async with server(says("200 OK")) as (elsewhere, visits):
        async with server(says("302 Found", f"Location: http://127.0.0.1:{elsewhere}/")) as (port, _):
            assert await status(port) == 302
        assert visits == []


async def test_a_body_is_not_read() -> None:
    """It may be endless."""

    async def endless(writer: asyncio.StreamWriter, _head: str) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            writer.write(b"x" * 65_536)
            await writer.drain()

    async with server(endless) as (port, _):
        assert await status(port) == 200


async def test_one_that_does_not_answer_in_time_has_failed() -> None:
    released = asyncio.Event()

    async def silent(writer: asyncio.StreamWriter, _head: str) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n")
        await released.wait()

    async with server(silent) as (port, _):
        with pytest.raises(
            ProbeFailed, match=r"^http://\*\*\*@127.0.0.1:\d+/\*\*\*\?\*\*\* did not answer within 50 ms$"
        ):
            await status(port, timeout_ms=50)
        released.set()


async def test_one_that_drips_has_no_longer_than_one_that_is_silent() -> None:
    """The library's own limit begins anew with every byte."""
    dripped = 0

    async def dripping(writer: asyncio.StreamWriter, _head: str) -> None:
        nonlocal dripped
        while True:
            writer.write(b"H" if not dripped else b"X")
            await writer.drain()
            dripped += 1
            with suppress(TimeoutError):
                await asyncio.wait_for(asyncio.Event().wait(), 0.02)

    async with server(dripping) as (port, _):
        with pytest.raises(ProbeFailed, match="within 300 ms"):
            await status(port, timeout_ms=300)
    assert dripped > 1


async def test_one_that_is_not_there_has_failed() -> None:
    with pytest.raises(ProbeFailed, match="could not be reached"):
        await status(free_port())


async def test_one_that_does_not_speak_http_has_failed() -> None:
    async def gibberish(writer: asyncio.StreamWriter, _head: str) -> None:
        writer.write(b"\0\0 hunter2 \r\n\r\n")

    async with server(gibberish) as (port, _):
        with pytest.raises(ProbeFailed, match="could not be reached as a web server"):
            await status(port)


@pytest.fixture
def logging_as_served() -> Iterator[None]:
    """The log set up as a service does, which quietens the libraries; as it was afterwards."""
    libraries = [logging.getLogger(name) for name in ("sqlglot", "httpx", "httpcore")]
    levels = [library.level for library in libraries]
    before = structlog.get_config()
    configure(level="debug", form="json")
    yield
    structlog.configure(**before)
    for library, level in zip(libraries, levels, strict=True):
        library.setLevel(level)


@pytest.mark.usefixtures("logging_as_served")
async def test_nothing_secret_is_in_an_error_or_in_a_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        async with server(says("200 OK")) as (port, _):
            await status(port)
        with pytest.raises(ProbeFailed) as error:
            await status(free_port())
    chain = repr(error.value) + repr(error.value.__cause__)
    assert error.value.__suppress_context__
    for secret in ("hunter2", "hidden", "c29tZW9uZTpodW50ZXIy"):
        assert secret not in chain
        assert secret not in caplog.text
