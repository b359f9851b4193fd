"""Calls that are open when the service stops (I13)."""

import asyncio

import httpx
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
