"""How many calls and streams there may be (C12)."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from types import SimpleNamespace

import httpx
import pytest
from starlette.types import Message, Receive, Scope, Send

from service.api.crowd import Crowd, Streams
from service.domain.errors import Unavailable
from service.domain.roles import Role
from service.ports.audit import Asker
from tests.support.http import BrokenStores, Checks, doors


async def test_c12_calls_beyond_the_bound_are_refused_but_not_those_of_workers_and_probes() -> None:
    entered, leave = asyncio.Semaphore(0), asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        del scope, receive
        entered.release()
        await leave.wait()
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    transport = httpx.ASGITransport(Crowd(app, calls_max=4))
    async with httpx.AsyncClient(transport=transport, base_url="http://service") as client:
        held = [asyncio.create_task(client.get("/v1/jobs")) for _ in range(2)]
        for _ in held:
            await entered.acquire()
        refused = await client.get("/v1/jobs")
        assert (refused.status_code, refused.headers["Retry-After"]) == (503, "1")
        assert "TIDEFILL_CALLS_MAX" in refused.json()["detail"]
        others = [asyncio.create_task(client.get(path)) for path in ("/livez", "/internal/v1/workers/a/barrier")]
        for _ in others:
            await entered.acquire()
        leave.set()
        assert [answer.status_code for answer in await asyncio.gather(*held, *others)] == [204] * 4
        assert (await client.get("/v1/jobs")).status_code == 204


async def test_s4_one_caller_leaves_places_for_others() -> None:
    leave = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        del scope, receive
        await leave.wait()
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    crowd = Crowd(app, calls_max=8)

    async def call(actor: str) -> int:
        sent: list[Message] = []

        async def send(message: Message) -> None:
            sent.append(message)

        async def receive() -> Message:
            return {"type": "http.disconnect"}

        app_of = SimpleNamespace(state=SimpleNamespace(world=None))
        state = {"caller": Asker(actor, Role.ADMIN)}
        await crowd({"type": "http", "path": "/v1/jobs", "method": "GET", "app": app_of, "state": state}, receive, send)
        return sent[0]["status"]

    calls = [asyncio.create_task(call(actor)) for actor in "aaaaaaaabbbbccd"]
    await asyncio.sleep(0)  # noqa: TID251 - the tasks begin
    leave.set()
    answers = await asyncio.gather(*calls)
    answered = Counter(actor for actor, status in zip("aaaaaaaabbbbccd", answers, strict=True) if status == 204)
    assert answered == {"a": 4, "b": 2, "c": 1, "d": 1}


async def test_c12_streams_beyond_the_bound_are_refused() -> None:
    streams = Streams(streams_max=2)

    async def endless() -> AsyncIterator[str]:
        while True:
            yield "."

    held = streams.held(endless(), "a")
    assert await anext(held) == "."
    with pytest.raises(Unavailable, match="TIDEFILL_STREAMS_MAX"):
        streams.check("a")
    streams.check("b")
    assert isinstance(held, AsyncIterator)
    await held.aclose()  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType] - a generator
    streams.check("a")


async def test_many_probes_are_answered_with_one_look() -> None:
    """They need no token, and each look asks both stores."""
    looked, looking, leave = 0, asyncio.Event(), asyncio.Event()

    class Slow(Checks):
        async def __call__(self) -> Mapping[str, str]:
            nonlocal looked
            looked += 1
            looking.set()
            await leave.wait()
            return {"leader": "none"}

    async with doors(BrokenStores(AssertionError("asked")), checks=Slow()) as http:
        probes = [asyncio.create_task(http.get("/readyz")) for _ in range(50)]
        await looking.wait()
        leave.set()
        answers = await asyncio.gather(*probes)
    assert {(answer.status_code, answer.json()["checks"]["leader"]) for answer in answers} == {(503, "none")}
    assert looked < 10
