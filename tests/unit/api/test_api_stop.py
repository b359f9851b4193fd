"""Calls that are open when the service stops, and those that break (I13)."""

import asyncio

import httpx
import structlog
from starlette.types import Receive, Scope, Send

from service.api.middleware import Net


async def test_a_call_that_the_stopping_service_cancels_is_answered_with_a_problem() -> None:
    entered = asyncio.Event()
    calls: list[asyncio.Task[None] | None] = []

    async def waits(scope: Scope, receive: Receive, send: Send) -> None:
        del scope, receive, send
        calls.append(asyncio.current_task())
        entered.set()
        await asyncio.Event().wait()

    async with httpx.AsyncClient(transport=httpx.ASGITransport(Net(waits)), base_url="http://service") as client:
        asking = asyncio.create_task(client.post("/v1/sql", json={"statement": "insert into t values (1)"}))
        await entered.wait()
        [call] = calls
        assert call is not None
        call.cancel()
        answer = await asking
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
    assert "Idempotency-Key" in answer.json()["detail"]


async def test_i13_an_error_of_the_service_is_logged_now_and_then() -> None:
    """A viewer who knew of one filled the log with 40 MB in 22 s."""

    async def breaks(scope: Scope, receive: Receive, send: Send) -> None:
        del receive, send
        if scope["path"] == "/a":
            raise ValueError("a")
        raise KeyError("b")

    transport = httpx.ASGITransport(Net(breaks))
    async with httpx.AsyncClient(transport=transport, base_url="http://service") as client:
        with structlog.testing.capture_logs() as logs:
            answers = [await client.get(path) for path in ("/a", "/a", "/b", "/a", "/b")]
    assert [one.status_code for one in answers] == [500] * 5
    assert [one["path"] for one in logs if one["event"] == "request.broke"] == ["/a", "/b"]
