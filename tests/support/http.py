"""The doors on a world of one's choice, called in the same process."""

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cache
from typing import Any, NoReturn, ParamSpec, Self, TypeVar, cast

import httpx
from fastapi import FastAPI
from pydantic import SecretStr

from service.api.app import create_app
from service.api.settings import ApiSettings
from service.columnar.process import ColumnarProcesses
from service.operations.world import External, Loading, StateStore, Workers, World
from service.ports.audit import Asker
from service.ports.health import StoreHealth
from service.ports.meta_store import Stores
from service.ports.signals import Topic
from service.protocol.ids import Term
from tests.support.meta_store import NOW

P = ParamSpec("P")
T = TypeVar("T")
WORKER_TOKEN = "the worker's own"
PATIENT = 20
OPEN = ApiSettings(worker_token=SecretStr(WORKER_TOKEN))


@dataclass
class StillClock:
    """A wall clock that stands, and a monotonic one that only waiting moves."""

    wall: datetime = NOW
    seconds: float = 0.0

    def now(self) -> datetime:
        return self.wall

    def monotonic(self) -> float:
        return self.seconds


class UnheardSignals:
    """Nobody listens, and nothing is heard."""

    def heard(self, topic: Topic = None) -> int:
        del topic
        return 0

    def notify(self, *topics: Topic) -> None:
        del topics


@dataclass
class PatientSignals(UnheardSignals):
    """Every wait lasts its whole time, on the clock and not in the test.

    After `PATIENT` waits without a signal it lasts ten times as long, because each look is a transaction.
    """

    clock: StillClock
    notified: int = 0
    in_vain: int = 0

    def notify(self, *topics: Topic) -> None:
        del topics
        self.notified += 1
        self.in_vain = 0

    async def wait(self, timeout_seconds: float, *, topic: Topic = None, since: int | None = None) -> None:
        del topic, since
        self.in_vain += 1
        self.clock.seconds += timeout_seconds if self.in_vain <= PATIENT else 10 * timeout_seconds


@dataclass
class BrokenStores:
    """A meta store that raises whatever is asked of it."""

    error: Exception
    asked: int = 0

    def begin(self, _term: Term | None = None, *, by: Asker | None = None) -> NoReturn:
        del by
        self.asked += 1
        raise self.error


class ParsedHere:
    """Texts are parsed where they are: those of a test are cheap. `callers` are those who had a share."""

    def __init__(self) -> None:
        self.callers: list[str] = []

    def of(self, caller: str) -> "ParsedHere":
        self.callers.append(caller)
        return self

    async def run(self, length: int, read: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        del length
        return read(*args, **kwargs)


class CalmStore:
    """A `StoreGauge` of a server that is not loaded."""

    async def measure(self) -> StoreHealth:
        return StoreHealth(connections=10, connections_max=100, lag_bytes=None)


class Absent:
    """A port that the test does not reach. A caller's share of it is not reached either."""

    def of(self, _caller: str) -> Self:
        return self

    def __getattr__(self, name: str) -> NoReturn:
        raise AssertionError(name)


_CONTEXTS = ("state_store", "external", "workers", "loading", "logins", "leading", "calls")


def world_of(stores: Stores, **ports: object) -> World:
    """Return a world of these stores; ports that are not given may not be touched."""
    clock, absent = StillClock(), cast("Any", Absent())
    world = World(
        stores=stores,
        clock=clock,
        signals=PatientSignals(clock),
        parsers=ParsedHere(),
        state_store=StateStore(*[absent] * 7, gauge=CalmStore(), followed_rows=absent),
        external=External(*[absent] * 5),
        workers=Workers(PatientSignals(clock), PatientSignals(clock), "postgresql://writer@db/state"),
        loading=Loading(ColumnarProcesses()),
    )
    return changed(world, **ports)


def changed(world: World, **ports: Any) -> World:
    """Return the world with these ports, limits and values, of whichever context they are."""
    for name, value in ports.items():
        context = next((each for each in _CONTEXTS if hasattr(getattr(world, each), name)), None)
        inner = {name: value} if context is None else {context: replace(getattr(world, context), **{name: value})}
        world = replace(world, **inner)
    return world


@dataclass
class Checks:
    """What `/readyz` finds."""

    found: dict[str, str] = field(default_factory=lambda: {"meta_store": "ok"})
    leads: Callable[[], bool] = lambda: True

    async def __call__(self) -> Mapping[str, str]:
        return self.found


@cache
def _app(settings: ApiSettings) -> FastAPI:
    """One app for each settings: making it takes longer than a test, and the world can be put in afterwards."""
    return create_app(world_of(cast("Stores", Absent())), settings=settings, ready=Checks())


@asynccontextmanager
async def doors(
    stores: object, *, settings: ApiSettings = OPEN, checks: Checks | None = None, **ports: object
) -> AsyncGenerator[httpx.AsyncClient]:
    """Open the doors on a world of these stores."""
    app = _app(settings)
    app.state.world = world_of(cast("Stores", stores), **ports)
    app.state.ready = checks or Checks()
    transport = httpx.ASGITransport(app, raise_app_exceptions=True)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        yield http


def refused(response: httpx.Response, status: int, kind: str) -> Mapping[str, Any]:
    """Assert that the answer is this problem, and return it."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    problem = response.json()
    assert problem["type"] == f"urn:tidefill:problem:{kind}"
    assert problem["status"] == status
    assert problem["title"]
    assert problem["detail"]
    return problem
