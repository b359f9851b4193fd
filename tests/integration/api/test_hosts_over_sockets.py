"""S8 over real connections: heads that client libraries do not send."""

import asyncio
from collections.abc import AsyncGenerator
from typing import cast

import pytest
import uvicorn

from service.api.app import create_app
from service.ports.meta_store import Stores
from tests.support.http import OPEN, Absent, Checks, world_of


@pytest.fixture
async def port() -> AsyncGenerator[int]:
    app = create_app(world_of(cast("Stores", Absent())), settings=OPEN, ready=Checks())
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_config=None, lifespan="off"))
    listening = server.config.bind_socket()
    running = asyncio.create_task(server.serve(sockets=[listening]))
    yield listening.getsockname()[1]
    server.should_exit = True
    await running
    listening.close()


@pytest.mark.parametrize(
    ("head", "status"),
    [
        ("GET /livez HTTP/1.1\r\nHost: localhost", 200),
        ("GET /livez HTTP/1.1\r\nHost: [::1]:8700", 200),
        ("GET /livez HTTP/1.1\r\nHost: evil.example", 421),
        ("GET /livez HTTP/1.1\r\nHost: evil.example\r\nX-Forwarded-Host: localhost\r\nForwarded: host=localhost", 421),
        ("GET /livez HTTP/1.1\r\nHost: ", 421),
        ("GET /livez HTTP/1.1", 400),
        ("GET /livez HTTP/1.0", 421),
        ("GET /livez HTTP/1.0\r\nHost: localhost", 200),
        ("GET /livez HTTP/1.1\r\nHost: localhost\r\nHost: evil.example", 400),
        ("GET http://evil.example/livez HTTP/1.1\r\nHost: localhost", 400),
        ("GET http://localhost/livez HTTP/1.1\r\nHost: evil.example", 400),
        ("POST /v1/recover HTTP/1.1\r\nHost: localhost\r\nOrigin: http://evil.example\r\nContent-Length: 0", 403),
        ("POST /v1/recover HTTP/1.1\r\nHost: localhost\r\nOrigin: null\r\nContent-Length: 0", 403),
    ],
)
async def test_s8_a_head_as_no_library_sends_it_is_answered_as_the_rules_say(port: int, head: str, status: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(head.encode() + b"\r\nConnection: close\r\n\r\n")
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    assert int(answer.split()[1]) == status, answer.decode()
