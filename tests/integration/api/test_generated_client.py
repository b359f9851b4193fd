"""U8: the document as a generator of clients takes it, and the client that comes out of it as its users call it."""

import asyncio
import json
from collections.abc import AsyncGenerator, Iterator
from io import BytesIO
from typing import Any

import pytest
import uvicorn
from fastapi import FastAPI

from service.api.app import create_app
from service.meta_store.stores import PostgresStores
from service.serving.staging import PostgresStaging
from tests.support.generated_client import client_module, generated_client
from tests.support.http import OPEN, BrokenStores, Checks, doors, world_of


@pytest.fixture
async def document() -> dict[str, Any]:
    async with doors(BrokenStores(AssertionError("reached"))) as http:
        return (await http.get("/openapi.json")).json()


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with generated_client(tmp_path_factory.mktemp("generated")):
        yield


def test_u8_operations_read_well(document: dict[str, Any]) -> None:
    operations = [one for paths in document["paths"].values() for one in paths.values()]
    names = [one["operationId"] for one in operations]
    assert len(set(names)) == len(names)
    assert {"run_statement", "list_jobs", "show_source", "create_secret", "load_rows", "list_events"} <= set(names)
    assert not [name for name in names if "v1" in name]
    tags = {tag["name"] for tag in document["tags"] if tag["description"]}
    assert all(set(one["tags"]) <= tags for one in operations)
    assert document["components"]["securitySchemes"]["bearer"]["scheme"] == "bearer"
    assert not {"ActorPlan", "Stage", "JobPlan", "Add", "Update"} & document["components"]["schemas"].keys()
    assert "text/event-stream" in document["paths"]["/v1/events"]["get"]["responses"]["200"]["content"]


def test_u8_every_list_has_one_form(document: dict[str, Any]) -> None:
    for path, operations in document["paths"].items():
        answer = operations.get("get", {}).get("responses", {}).get("200", {}).get("content", {})
        assert answer.get("application/json", {}).get("schema", {}).get("type") != "array", path


@pytest.mark.postgres
@pytest.mark.parametrize("form", ["csv", "ndjson"])
async def test_u8_a_generated_client_calls_the_service(generated: None, app: FastAPI, address: str, form: str) -> None:
    del app
    await asyncio.to_thread(_call, address, form)


def _call(address: str, form: str) -> None:
    """Call some operations, as a program that is not asynchronous does."""
    models = client_module("models")
    names = ("jobs.list_jobs", "relations.load_rows", "sources.list_secrets", "sql.run_statement")
    api = {name: client_module(f"api.{name}") for name in names}
    with client_module("client").Client(base_url=address) as client:
        said = api["sql.run_statement"].sync(client=client, body=models.SqlBody(sql="SHOW background_ddl"))
        assert said.rows == [["false"]]
        assert api["jobs.list_jobs"].sync(client=client).items == []
        assert api["sources.list_secrets"].sync(client=client).items == []
        file = client_module("types").File(payload=BytesIO(b"a\n1\n"))
        answer = api["relations.load_rows"].sync_detailed("nowhere", client=client, body=file, format_=form)
    assert (answer.status_code, json.loads(answer.content)["detail"]) == (404, 'relation "nowhere" does not exist')


@pytest.fixture
async def app(stores: PostgresStores, staging: PostgresStaging) -> FastAPI:
    return create_app(world_of(stores, staging=staging), settings=OPEN, ready=Checks())


@pytest.fixture
async def address(app: FastAPI) -> AsyncGenerator[str]:
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_config=None, lifespan="off"))
    listening = server.config.bind_socket()
    running = asyncio.create_task(server.serve(sockets=[listening]))
    yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    server.should_exit = True
    await running
    listening.close()


async def test_u8_the_documentation_needs_no_other_server() -> None:
    async with doors(BrokenStores(AssertionError("reached"))) as http:
        page = await http.get("/docs")
        assert "http://" not in page.text
        assert "https://" not in page.text
        assert "frame-ancestors 'none'" in page.headers["content-security-policy"]
        for name in ("swagger-ui-bundle.js", "swagger-ui.css", "favicon.png"):
            assert f"docs/{name}" in page.text
            answer = await http.get(f"/docs/{name}")
            assert (answer.status_code, len(answer.content) > 1000) == (200, True)
        for name in ("redoc.standalone.js", "..%2fcore.py", "x"):
            assert (await http.get(f"/docs/{name}")).status_code == 404
