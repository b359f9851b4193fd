"""How many calls and streams there may be (C12)."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from types import SimpleNamespace

import httpx
import pytest
from starlette.types import Message, Receive, Scope, Send

from service.api.crowd import CountedStream, Crowd, Streams
from service.domain.errors import Unavailable
from service.domain.roles import Role
from service.domain.shares import Shares
from service.ports.audit import Asker
from tests.support.fake_meta_store import FakeStores
from tests.support.http import OPEN, BrokenStores, Checks, doors, refused
from tests.support.meta_store import NOW


async def test_c12_calls_beyond_the_bound_are_refused_but_not_those_of_workers_and_probes() -> None:
    entered, leave = asyncio.Semaphore(0), asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        del scope, receive
        entered.release()
        await leave.wait()
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    transport = httpx.ASGITransport(Crowd(app, calls=Shares(4)))
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

    crowd = Crowd(app, calls=Shares(8))

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
    with streams.place("a"):
        with pytest.raises(Unavailable, match="TIDEFILL_STREAMS_MAX"), streams.place("a"):
            pass
        with streams.place("b"):
            pass
    with streams.place("a"):
        pass


async def test_a19_a_stream_beyond_the_bound_is_refused_before_its_head_however_many_come_at_once() -> None:
    """Streams that were asked for at once were all let in, answered 200, and then cut off with an error in the log."""
    streams, leave = Streams(streams_max=2), asyncio.Event()
    answered: list[list[Message]] = [[], [], []]

    async def frames() -> AsyncIterator[str]:
        await leave.wait()
        yield "."

    async def call(number: int, stream: CountedStream) -> None:
        async def send(message: Message) -> None:
            answered[number].append(message)

        await stream({"type": "http", "asgi": {"spec_version": "2.4"}}, _never, send)

    asked = [CountedStream(frames(), streams, "a") for _ in answered]
    calls = [asyncio.create_task(call(*one)) for one in enumerate(asked)]
    await asyncio.wait(calls[1:])
    leave.set()
    ended = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(one) for one in ended] == [type(None), Unavailable, Unavailable]
    assert [len(messages) for messages in answered] == [3, 0, 0]
    assert streams.streams.taken == 0


async def test_a19_a_refused_stream_is_answered_503() -> None:
    async with doors(FakeStores(lambda: NOW), settings=replace(OPEN, streams_max=0)) as http:
        refused(await http.get("/v1/events"), 503, "unavailable")


async def _never() -> Message:
    await asyncio.Event().wait()
    raise AssertionError


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
