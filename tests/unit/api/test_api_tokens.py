"""Who may call: the API's token for `/v1`, the worker's own for `/internal`, nobody's for the probes."""

from collections.abc import AsyncIterator

import pytest
from pydantic import SecretStr

from service.api.settings import ApiSettings
from service.domain.errors import NotFound
from tests.support.fake_meta_store import FakeStores
from tests.support.http import WORKER_TOKEN, BrokenStores, Checks, doors, refused
from tests.support.meta_store import NOW

API_TOKEN = "the user's own"
CLOSED = ApiSettings(worker_token=SecretStr(WORKER_TOKEN), api_token=SecretStr(API_TOKEN))
STORES = BrokenStores(NotFound("reached"))


def bearer(token: str, scheme: str = "Bearer") -> dict[str, str]:
    return {"Authorization": f"{scheme} {token}"}


@pytest.mark.parametrize(
    "headers",
    [
        {},
        bearer("wrong"),
        bearer(""),
        bearer(API_TOKEN + "x"),
        bearer(API_TOKEN[:-1]),
        bearer(API_TOKEN, "Basic"),
        bearer("tdf_7_" + "x" * 42),
        {"Authorization": API_TOKEN},
    ],
)
@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/nothing", "/metrics"])
async def test_without_the_api_token_nothing_is_told(path: str, headers: dict[str, str]) -> None:
    async with doors(STORES, settings=CLOSED) as http:
        response = await http.get(path, headers=headers)
    refused(response, 401, "unauthorized")
    assert response.headers["www-authenticate"] == ('Bearer error="invalid_token"' if headers else "Bearer")


@pytest.mark.parametrize("scheme", ["Bearer", "bearer"])
async def test_the_api_token_opens_the_door(scheme: str) -> None:
    async with doors(STORES, settings=CLOSED) as http:
        refused(await http.get("/v1/jobs", headers=bearer(API_TOKEN, scheme)), 404, "not-found")


@pytest.mark.parametrize("path", ["/", "/livez", "/readyz", "/docs", "/openapi.json"])
async def test_the_probes_and_the_documentation_are_open(path: str) -> None:
    async with doors(STORES, settings=CLOSED) as http:
        assert (await http.get(path)).status_code == 200


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/docs/x", "/openapi.json"])
async def test_open_paths_are_open_for_reading_alone(path: str) -> None:
    """I13: without a token a body was waited for, for a minute, and parsed."""

    async def body() -> AsyncIterator[bytes]:
        yield b"{"
        raise AssertionError("the body is read")

    async with doors(STORES, settings=CLOSED) as http:
        refused(
            await http.post(path, content=body(), headers={"Content-Type": "application/json"}), 401, "unauthorized"
        )


@pytest.mark.parametrize("settings", [CLOSED, ApiSettings(worker_token=SecretStr(WORKER_TOKEN))])
async def test_the_worker_api_always_needs_the_workers_token(settings: ApiSettings) -> None:
    path = "/internal/v1/workers/w/barrier"
    async with doors(STORES, settings=settings) as http:
        refused(await http.get(path), 401, "unauthorized")
        refused(await http.get(path, headers=bearer("wrong")), 401, "unauthorized")
        refused(await http.get(path, headers=bearer(WORKER_TOKEN)), 404, "not-found")


async def test_nobody_else_makes_the_calls_of_workers_and_they_make_no_others() -> None:
    async with doors(FakeStores(lambda: NOW), settings=CLOSED) as http:
        answer = await http.get("/internal/v1/workers/w/barrier", headers=bearer(API_TOKEN))
        assert refused(answer, 403, "forbidden")["needs"] == "worker"
        problem = refused(await http.get("/v1/jobs", headers=bearer(WORKER_TOKEN)), 403, "forbidden")
    assert (problem["needs"], problem["has"]) == ("viewer", "worker")


def test_settings_do_not_show_their_tokens() -> None:
    assert API_TOKEN not in repr(CLOSED)
    assert WORKER_TOKEN not in repr(CLOSED)


async def test_readiness_names_what_is_missing() -> None:
    checks = Checks({"meta_store": "ok", "worker": "no worker is alive"})
    async with doors(STORES, checks=checks) as http:
        response = await http.get("/readyz")
        assert response.status_code == 503
        assert response.json() == {"status": "unavailable", "checks": checks.found, "degraded": {}}
        checks.found["worker"] = "ok"
        assert (await http.get("/readyz")).status_code == 200
