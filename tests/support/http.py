"""The doors on a world of one's choice, called in the same process."""

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from typing import Any, NoReturn, ParamSpec, TypeVar, cast

import httpx
from fastapi import FastAPI
from pydantic import SecretStr

from service.api.app import create_app
from service.api.settings import ApiSettings
from service.columnar.process import ColumnarProcesses
from service.operations.world import World
from service.ports.audit import Asker
from service.ports.health import StoreHealth
from service.ports.meta_store import Stores
from service.ports.signals import Topic
from service.protocol.ids import Term
from tests.support.meta_store import NOW

P = ParamSpec("P")
T = TypeVar("T")
WORKER_TOKEN = "the worker's own"
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
    """Every wait lasts its whole time, on the clock and not in the test."""

    clock: StillClock
    notified: int = 0

    def notify(self, *topics: Topic) -> None:
        del topics
        self.notified += 1

    async def wait(self, timeout_seconds: float, *, topic: Topic = None, since: int | None = None) -> None:
        del topic, since
        self.clock.seconds += timeout_seconds


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
    """Texts are parsed where they are: those of a test are cheap."""

    async def run(self, length: int, read: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        del length
        return read(*args, **kwargs)


class CalmStore:
    """A `StoreGauge` of a server that is not loaded."""

    async def measure(self) -> StoreHealth:
        return StoreHealth(connections=10, connections_max=100, lag_bytes=None)


class Absent:
    """A port that the test does not reach."""

    def __getattr__(self, name: str) -> NoReturn:
        raise AssertionError(name)


def world_of(stores: Stores, **ports: object) -> World:
    """Return a world of these stores; ports that are not given may not be touched."""
    clock = StillClock()
    given: dict[str, Any] = {
        **dict.fromkeys(
            (
                "tables",
                "fences",
                "lookups",
                "pins",
                "reader",
                "staging",
                "http_probe",
                "views",
                "servers",
                "external",
                "replication",
                "external_rows",
                "followed_rows",
            ),
            Absent(),
        ),
        "clock": clock,
        "gauge": CalmStore(),
        "signals": PatientSignals(clock),
        "barrier_signals": PatientSignals(clock),
        "request_signals": PatientSignals(clock),
        "dml_url": "postgresql://writer@db/state",
        "parsers": ParsedHere(),
        "columnar": ColumnarProcesses(),
        **ports,
    }
    return World(stores=stores, **given)


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
