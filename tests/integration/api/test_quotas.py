"""A tenant has at most as many calls in progress as the quota of its role; other tenants do not notice."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from service.api.settings import ApiSettings
from service.meta_store.stores import PostgresStores
from tests.support.http import WORKER_TOKEN, StillClock, doors, refused

pytestmark = pytest.mark.postgres
ROOT = "the root's own"
CLOSED = ApiSettings(worker_token=SecretStr(WORKER_TOKEN), api_token=SecretStr(ROOT))


@dataclass
class Tenants:
    """Closed doors. A held call is in progress, because the rest of its body has yet to come."""

    http: httpx.AsyncClient
    stores: PostgresStores
    clock: StillClock
    arrived: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))
    rest: asyncio.Event = field(default_factory=asyncio.Event)

    async def token(self, name: str, role: str) -> str:
        answer = await self.call(ROOT, "POST", "/v1/tokens", json={"name": name, "role": role})
        return answer.json()["text"]

    async def set(self, **parameters: object) -> None:
        answer = await self.call(ROOT, "PATCH", "/v1/system-parameters", json=parameters)
        assert answer.status_code == 200, answer.text

    async def call(self, token: str, method: str, path: str, **more: Any) -> httpx.Response:
        return await self.http.request(method, path, headers={"Authorization": f"Bearer {token}"}, **more)

    async def hold(self, token: str) -> "asyncio.Task[httpx.Response]":
        async def body() -> AsyncIterator[bytes]:
            self.arrived.release()
            yield b'{"sql": '
            await self.rest.wait()
            yield b'"SHOW JOBS"}'

        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        held = asyncio.create_task(self.http.post("/v1/sql", content=body(), headers=headers))
        await self.arrived.acquire()
        return held


@asynccontextmanager
async def tenants(stores: PostgresStores) -> AsyncGenerator[Tenants]:
    clock = StillClock()
    async with doors(stores, settings=CLOSED, clock=clock) as http:
        yield Tenants(http, stores, clock)


async def test_calls_beyond_the_quota_are_refused_and_nobody_elses(stores: PostgresStores) -> None:
    async with tenants(stores) as these:
        a, b = await these.token("a", "operator"), await these.token("b", "operator")
        viewer = await these.token("v", "viewer")
        first = await these.hold(a)
        await these.set(operator_calls_max=2)
        second = await these.hold(a)
        answer = await these.call(a, "GET", "/v1/jobs")
        problem = refused(answer, 429, "quota")
        assert answer.headers["retry-after"] == "1"
        assert (problem["quota"], problem["limit"], problem["used"]) == ("operator_calls_max", 2, 2)
        assert problem["detail"] == (
            "token 1 (a) has 2 calls in progress, and operator_calls_max is 2: try again when one of them has ended"
        )
        for other in (b, viewer, ROOT):
            assert (await these.call(other, "GET", "/v1/jobs")).status_code == 200
        assert (await these.call(a, "GET", "/livez")).status_code == 200
        page = (await these.call(ROOT, "GET", "/metrics")).text
        assert 'tidefill_quota_refusals_total{quota="operator_calls_max"} 1.0' in page
        these.rest.set()
        assert [one.status_code for one in await asyncio.gather(first, second)] == [200, 200]
        assert (await these.call(a, "GET", "/v1/jobs")).status_code == 200


async def test_a_quota_that_another_service_set_counts_within_seconds(stores: PostgresStores) -> None:
    async with tenants(stores) as these:
        viewer = await these.token("v", "viewer")
        held = await these.hold(viewer)
        async with these.stores.begin() as tx:
            await tx.parameters.set("viewer_calls_max", "1")
        assert (await these.call(viewer, "GET", "/v1/jobs")).status_code == 200
        these.clock.seconds += 5
        refused(await these.call(viewer, "GET", "/v1/jobs"), 429, "quota")
        these.rest.set()
        assert (await held).status_code == 200
