"""Forms of browsers without a session are few and arrive soon, whatever the others do (I13)."""

import asyncio
import re
import threading
from collections.abc import Mapping
from typing import Any

import pytest
from fastapi.responses import PlainTextResponse
from pydantic import SecretStr
from starlette.types import Message, Receive, Scope, Send

from service.api.credentials import Credentials
from service.domain.uploading import GRACE_SECONDS
from service.pages import door
from service.pages.door import LOGINS_MAX, Door
from service.pages.sessions import Sessions
from service.turns import CALLER
from tests.support.http import StillClock


class Browser:
    """A browser without a session that sends the beginning of a form and nothing else."""

    def __init__(self, service: Door) -> None:
        self.service, self.status, self.asked = service, 0, 0
        self.left: asyncio.Future[Message] = asyncio.get_running_loop().create_future()

    async def post(self) -> None:
        headers = [(b"content-type", b"application/x-www-form-urlencoded"), (b"host", b"localhost")]
        scope: Scope = {"type": "http", "method": "POST", "path": "/login", "query_string": b"", "headers": headers}
        await self.service({**scope, "scheme": "http"}, self._receive, self._send)

    async def _receive(self) -> Message:
        self.asked += 1
        return {"type": "http.request", "body": b"token=", "more_body": True} if self.asked == 1 else await self.left

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]


async def _unreached(scope: Scope, receive: Receive, send: Send) -> None:
    raise AssertionError(scope, receive, send)


def opened(clock: StillClock) -> Door:
    return Door(
        _unreached,
        credentials=Credentials(SecretStr("worker"), SecretStr("root")),
        sessions=Sessions(clock.monotonic),
        open_paths=[re.compile("^/login$")],
        size_max=1 << 20,
        uploads_max=1,
        monotonic=clock.monotonic,
    )


async def test_the_slowest_form_gives_way_to_another_one() -> None:
    """2,000 of them kept every connection for a minute, without a token."""
    clock = StillClock()
    service = opened(clock)
    browsers = [Browser(service) for _ in range(LOGINS_MAX + 1)]
    tasks = [asyncio.ensure_future(one.post()) for one in browsers[:-1]]
    while any(one.asked < 2 for one in browsers[:-1]):  # noqa: ASYNC110 - a browser has no event for it
        await asyncio.sleep(0)  # noqa: TID251 - the tasks read
    clock.seconds += 2 * GRACE_SECONDS
    tasks.append(asyncio.ensure_future(browsers[-1].post()))
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    assert sorted(one.status for one in browsers) == [0] * LOGINS_MAX + [408]
    for one in browsers:
        if not one.left.done():
            one.left.set_result({"type": "http.disconnect"})
    await asyncio.gather(*tasks)


async def test_a_form_that_never_ends_is_given_up_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "LOGIN_SECONDS", 0.05)
    browser = Browser(opened(StillClock()))
    async with asyncio.timeout(30):
        await browser.post()
    assert browser.status == 408


async def seen(service: Door, cookies: list[bytes], body: bytes = b"") -> Mapping[str, Any]:
    """Return the state of a request that the service gives to its page."""
    found: dict[str, Any] = {}

    async def page(scope: Scope, receive: Receive, send: Send) -> None:
        found.update(scope["state"])
        await PlainTextResponse("")(scope, receive, send)

    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Message) -> None:
        del message

    service.app = page
    media = (b"content-type", b"application/x-www-form-urlencoded")
    headers = [media, (b"host", b"localhost"), *((b"cookie", one) for one in cookies)]
    scope: Scope = {"type": "http", "method": "POST" if body else "GET", "path": "/login", "query_string": b""}
    await service({**scope, "scheme": "http", "headers": headers}, receive, send)
    return found


@pytest.mark.timeout(60)
async def test_i13_a_cookie_of_many_escapes_is_not_decoded() -> None:
    """One request with 64 kB of them let nobody be answered for 5 s, without a token."""
    service = opened(StillClock())
    id_ = service.sessions.begin(SecretStr("root"), by="root")
    hostile = b'a="%s"' % (rb"\"" * 500_000)
    mine = b"tidefill=" + id_.encode()
    for cookies in ([mine], [hostile, mine], [hostile + b"; " + mine + b"; b=c"], [b"xtidefill=no;" + mine]):
        assert (await seen(service, cookies))["session"] == id_
    for cookies in ([], [hostile], [b"x" + mine], [b"a=" + mine], [mine[:-1]]):
        assert (await seen(service, cookies))["session"] is None


async def test_i13_a_long_form_leaves_the_event_loop_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """60 viewers' forms of a megabyte of escapes let nobody be answered for 17 s."""
    parsed, may = door._parsed, threading.Event()  # pyright: ignore[reportPrivateUsage] - it waits for the event loop

    def waiting(body: bytes) -> dict[str, str]:
        assert may.wait(20), "the event loop goes on"
        return parsed(body)

    service = opened(StillClock())
    cookies = [b"tidefill=" + service.sessions.begin(SecretStr("root"), by="root").encode()]
    csrf = (await seen(service, cookies))["csrf"]
    long = f"csrf={csrf}&sql={'%41' * 40_000}".encode()
    monkeypatch.setattr(door, "_parsed", waiting)
    asking = asyncio.ensure_future(seen(service, cookies, long))
    asyncio.get_running_loop().call_soon(may.set)
    assert (await asking)["form"] == {"sql": "A" * 40_000}


async def test_i13_the_long_forms_of_a_caller_are_no_queue_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """300 forms of a megabyte of one caller let another one's wait for 38 s."""
    parsed, begun, may = door._parsed, threading.Event(), threading.Event()  # pyright: ignore[reportPrivateUsage]

    def waiting(body: bytes) -> dict[str, str]:
        if b"slow" in body:
            begun.set()
            assert may.wait(20)
        return parsed(body)

    service = opened(StillClock())
    fields = service._fields  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(door, "_parsed", waiting)

    async def asked(caller: str, word: str) -> dict[str, str]:
        CALLER.set(caller)
        return await fields(f"{word}={'x' * door.LOGIN_BYTES_MAX}".encode())

    many = [asyncio.create_task(asked("mallory", "slow")) for _ in range(5)]
    await asyncio.to_thread(begun.wait)
    assert list(await asked("vera", "mine")) == ["mine"]
    may.set()
    await asyncio.gather(*many)
