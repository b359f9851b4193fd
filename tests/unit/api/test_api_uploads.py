"""Bodies that trickle give way to others (I13)."""

import asyncio
from dataclasses import dataclass, field

import pytest
from starlette.types import Message, Receive, Scope, Send

from service.api.middleware import Bodies
from service.api.uploads import Uploads
from service.domain.errors import TimedOut
from service.domain.uploading import GRACE_SECONDS, Arrival, slowest
from tests.support.http import StillClock

PATHS = ["/v1/sql", "/v1/relations/t/rows"]


@dataclass
class Client:
    """A client that sends what it is told to, as the server sees it."""

    service: Uploads
    path: str = "/v1/sql"
    method: str = "POST"
    sent: asyncio.Queue[Message] = field(default_factory=asyncio.Queue[Message])
    taken: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))
    """How often the service has asked for more."""
    statuses: list[int] = field(default_factory=list[int])

    def begin(self) -> asyncio.Task[None]:
        headers = [(b"content-type", b"application/json")]
        scope = {"type": "http", "method": self.method, "path": self.path, "query_string": b"", "headers": headers}
        return asyncio.create_task(self.service(scope, self._receive, self._send))

    async def send(self, body: bytes, *, more: bool = True) -> None:
        """Send a piece and wait until the service asks for the next one."""
        await self.taken.acquire()
        self.sent.put_nowait({"type": "http.request", "body": body, "more_body": more})

    async def _receive(self) -> Message:
        self.taken.release()
        return await self.sent.get()

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.statuses.append(message["status"])


async def reading(_scope: Scope, receive: Receive, send: Send) -> None:
    """Read the body as a load does, and answer."""
    while (await receive()).get("more_body", False):
        pass
    await send({"type": "http.response.start", "status": 204, "headers": []})


def service(clock: StillClock, *, uploads_max: int = 2) -> Uploads:
    return Uploads(Bodies(reading, size_max=1 << 20), uploads_max=uploads_max, monotonic=clock.monotonic)


@pytest.mark.parametrize("path", PATHS)
async def test_the_slowest_body_gives_way_to_the_next(path: str) -> None:
    """With a token, a thousand bodies of a byte a second kept every place of a call, for a minute and for an hour."""
    clock = StillClock()
    app = service(clock)
    fast, slow, last = Client(app), Client(app, path), Client(app)
    tasks = [one.begin() for one in (fast, slow)]
    await fast.send(b"[" + b" " * 99)
    await slow.send(b"[")
    for one in (fast, slow):
        await one.taken.acquire()
        one.taken.release()
    clock.seconds += 2 * GRACE_SECONDS
    tasks.append(last.begin())
    if path == PATHS[0]:
        await tasks[1]
        assert slow.statuses == [408]
    else:
        # The route answers it, as what its pace refuses.
        with pytest.raises(TimedOut, match="TIDEFILL_UPLOADS_MAX"):
            await tasks[1]
    for one in (fast, last):
        await one.send(b"]" if one is fast else b"[]", more=False)
    await asyncio.gather(tasks[0], tasks[2])
    assert fast.statuses == last.statuses == [204]
    assert not app.arriving


async def test_a_body_that_is_not_read_meanwhile_gives_way_when_it_is() -> None:
    entered, leave = asyncio.Event(), asyncio.Event()

    async def waits(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        entered.set()
        await leave.wait()
        await reading(scope, receive, send)

    clock = StillClock()
    app = Uploads(waits, uploads_max=1, monotonic=clock.monotonic)
    held = Client(app)
    task = held.begin()
    await held.taken.acquire()
    clock.seconds += 2 * GRACE_SECONDS
    held.sent.put_nowait({"type": "http.request", "body": b"x", "more_body": True})
    await entered.wait()
    other = Client(app)
    second = other.begin()
    await other.taken.acquire()
    leave.set()
    with pytest.raises(TimedOut):
        await task
    for more in (True, False):
        other.sent.put_nowait({"type": "http.request", "body": b"x", "more_body": more})
    await second
    assert other.statuses == [204]


async def test_many_calls_may_come_at_once_and_those_without_a_body_or_of_workers_do_not_count() -> None:
    app = service(StillClock(), uploads_max=1)
    clients = [Client(app), Client(app), Client(app, "/internal/v1/workers"), Client(app, "/v1/jobs", "GET")]
    tasks = [one.begin() for one in clients]
    for one in clients:
        await one.taken.acquire()
    assert len(app.arriving) == 2
    for one in clients:
        one.sent.put_nowait({"type": "http.request", "body": b"", "more_body": False})
    await asyncio.gather(*tasks)
    assert [one.statuses for one in clients] == [[204]] * 4
    assert not app.arriving


def test_the_slowest_is_found_among_those_that_were_waited_for() -> None:
    young = Arrival("", 0, GRACE_SECONDS)
    link = Arrival("", 10_000 * 60, 60)
    trickle = Arrival("", 1_000 * 60, 60)
    unread = Arrival("", 100, 0.1)
    assert slowest([young, unread], now=99) is None
    assert slowest([young, link, trickle, unread], now=99) is trickle
    stalled = Arrival("", 1 << 20, 1, waiting_since=0.0)
    assert slowest([link, stalled], now=600) is stalled


def test_i13_the_body_that_gives_way_is_of_the_caller_with_the_most() -> None:
    """Steady loads of 60 kB/s were answered 408: one caller's 500, each begun with a burst, came faster."""
    steady = Arrival("one", 20_000 * 60, 60)
    bursts = [Arrival("other", 700_000, 10.0 + number) for number in range(3)]
    assert slowest([steady, *bursts], now=99) is bursts[-1]
    begun = [Arrival("third", 0, 0.1) for _ in range(4)]
    assert slowest([steady, *bursts, *begun], now=99) is None
