"""`/v1/sources`, `/v1/secrets` and what a worker asks: no answer but the worker's holds a password."""

from collections.abc import AsyncGenerator, Iterator
from typing import Any

import httpx
import pytest
from psycopg.conninfo import conninfo_to_dict

from service.meta_store.stores import PostgresStores
from service.sources.replication import PostgresReplication
from service.sources.servers import PostgresExternalServers
from service.sources.tables import PostgresExternalTables
from tests.support.external import PASSWORD, External, external_database
from tests.support.http import WORKER_TOKEN, doors, refused

pytestmark = pytest.mark.postgres


@pytest.fixture
def external(postgres_url: str) -> Iterator[External]:
    with external_database(postgres_url) as one:
        one.run(
            "create table orders (id bigint primary key, total bigint generated always as (id * 2) stored)",
            "create table loose (id bigint)",
            "create table odd (id bigint primary key, n numeric)",
        )
        yield one


@pytest.fixture
async def http(stores: PostgresStores, external: External) -> AsyncGenerator[httpx.AsyncClient]:
    ports: dict[str, Any] = {
        "servers": PostgresExternalServers(),
        "catalog": PostgresExternalTables(),
        "replication": PostgresReplication(),
    }
    async with doors(stores, **ports) as opened:
        yield opened
        # What is made here is removed here: no leader runs.
        for slot in external.slots():
            await ports["replication"].drop_slot(external.address, slot)


async def test_a_source_is_made_shown_and_dropped(http: httpx.AsyncClient, external: External) -> None:
    # No statement could spell a longer name: nothing would drop it.
    refused(await http.post("/v1/secrets", json={"name": "é" * 32, "value": PASSWORD}), 422, "invalid")
    kept = await http.post("/v1/secrets", json={"name": "key", "value": PASSWORD})
    assert (kept.status_code, kept.json()) == (200, {"name": "key"})
    body = {"name": "pg", "options": {**external.options, "port": int(external.options["port"])}, "secret": "key"}
    made = await http.post("/v1/sources", json=body, headers={"Idempotency-Key": "once"})
    assert made.status_code == 200, made.text
    again = await http.post("/v1/sources", json=body, headers={"Idempotency-Key": "once"})
    assert again.json() == made.json()
    shown = (await http.get("/v1/sources/pg")).json()
    assert shown == made.json()
    assert (shown["secret"], shown["readable"], shown["tables"], shown["waiting"]) == ("key", True, [], None)
    assert [shown["slot"]] == external.slots()
    assert shown["definition"].endswith("password = secret key)")
    assert [one["name"] for one in (await http.get("/v1/sources")).json()["items"]] == ["pg"]
    refused(await http.post("/v1/sources", json=body), 409, "conflict")
    refused(await http.delete("/v1/secrets/key"), 409, "conflict")
    changed = await http.put("/v1/secrets/key", json={"value": "another"})
    assert changed.json() == {"name": "key"}
    token = {"Authorization": f"Bearer {WORKER_TOKEN}"}
    told = (await http.get(f"/internal/v1/sources/{shown['id']}", headers=token)).json()
    assert conninfo_to_dict(told["conninfo"])["password"] == "another"
    assert (await http.delete("/v1/sources/pg")).status_code == 200
    refused(await http.get("/v1/sources/pg"), 404, "not-found")
    listed = (await http.get("/v1/source-cleanups")).json()["items"]
    assert [(one["source"], one["what"]) for one in listed] == [("pg", "slot"), ("pg", "publication")]
    for one in listed:
        assert (await http.delete(f"/v1/source-cleanups/{one['id']}")).status_code == 200
    assert (await http.delete("/v1/secrets/key")).status_code == 200
    assert (await http.get("/v1/secrets")).json()["items"] == []


async def test_a_worker_is_told_how_to_reach_it_and_nobody_else(http: httpx.AsyncClient, external: External) -> None:
    body = {"name": "pg", "options": external.options, "password": PASSWORD}
    made = await http.post("/v1/sources", json=body)
    assert PASSWORD not in made.text
    number = made.json()["id"]
    path = f"/internal/v1/sources/{number}"
    refused(await http.get(path), 401, "unauthorized")
    token = {"Authorization": f"Bearer {WORKER_TOKEN}"}
    told = (await http.get(path, headers=token)).json()
    assert told["source"] == number
    assert conninfo_to_dict(told["conninfo"])["password"] == PASSWORD
    refused(await http.get("/internal/v1/sources/999999", headers=token), 404, "not-found")
    for page in ("/v1/sources", "/metrics", "/v1/secrets"):
        assert PASSWORD not in (await http.get(page)).text
    await http.delete("/v1/sources/pg")
    refused(await http.get(path, headers=token), 404, "not-found")


async def test_a_worker_is_told_a_secret_and_nobody_else(http: httpx.AsyncClient) -> None:
    """A sink's worker asks for what an option names, whatever the name."""
    await http.post("/v1/secrets", json={"name": "a/b &c", "value": PASSWORD})
    path = "/internal/v1/secrets?name=a%2Fb%20%26c"
    refused(await http.get(path), 401, "unauthorized")
    token = {"Authorization": f"Bearer {WORKER_TOKEN}"}
    assert (await http.get(path, headers=token)).json() == {"value": PASSWORD}
    refused(await http.get("/internal/v1/secrets?name=none", headers=token), 404, "not-found")
    await http.delete("/v1/secrets/a%2Fb%20%26c")


async def test_u10_what_is_missing_is_said_item_by_item_with_the_sql_that_mends_it(
    http: httpx.AsyncClient, external: External
) -> None:
    tables = ["orders", "public.loose", "odd", "sales.nowhere"]
    body = {"options": external.options, "password": PASSWORD, "tables": tables}
    checked = await http.post("/v1/sources/check", json=body)
    assert checked.status_code == 200, checked.text
    items = {one["item"]: one for one in checked.json()["items"]}
    assert [one for one in items if not items[one]["ok"]] == ["table public.loose", "table odd", "table sales.nowhere"]
    assert "key (id), 1 columns; generated ones are left out: total" in items["table orders"]["detail"]
    assert "has no primary key" in items["table public.loose"]["detail"]
    assert "declare the columns" in items["table odd"]["detail"]
    assert "does not exist" in items["table sales.nowhere"]["detail"]
    assert "held there whole" in items["decoding"]["detail"]
    assert items["wal_level"]["detail"] == "wal_level is logical"
    external.run(
        f"alter role {external.login} noreplication",
        f"revoke create on database {external.options['database.name']} from {external.login}",
        superuser=True,
    )
    items = {one["item"]: one for one in (await http.post("/v1/sources/check", json=body)).json()["items"]}
    assert (items["replication"]["ok"], items["publication"]["ok"]) == (False, False)
    assert "ALTER ROLE ... REPLICATION" in items["replication"]["detail"]
    assert external.slots() == []
    assert external.publications() == []
    _mend(external, items)
    items = {one["item"]: one for one in (await http.post("/v1/sources/check", json=body)).json()["items"]}
    assert (items["replication"], items["publication"]) == (
        {**items["replication"], "ok": True, "label": "Replication privilege", "sql": None},
        {**items["publication"], "ok": True, "label": "Making a publication", "sql": None},
    )
    assert "the source to be" not in str(items)
    external.run(f"alter role {external.login} noreplication", superuser=True)
    problem = refused(await http.post("/v1/sources", json={"name": "pg", **body_of(body)}), 422, "invalid")
    assert "may not replicate" in problem["detail"]


async def _checked(http: httpx.AsyncClient, body: object) -> tuple[list[str], dict[str, dict[str, Any]]]:
    """Return what is wrong, and all items by name."""
    items = {one["item"]: one for one in (await http.post("/v1/sources/check", json=body)).json()["items"]}
    return [name for name, one in items.items() if not one["ok"]], items


@pytest.mark.parametrize("named", [None, 'their "own"'], ids=["unnamed", "named"])
async def test_u9_one_round_tells_all_that_is_wrong_and_its_sql_runs_as_it_stands(
    http: httpx.AsyncClient, external: External, named: str | None
) -> None:
    """The login may neither read nor publish two tables of somebody else, and one of them has no key."""
    external.run(
        'create schema "Their\'s"',
        'create table "Their\'s"."of ""x"" " (id int primary key)',
        'create table "Their\'s".loose (id int, b int)',
        f"alter role {external.login} noreplication",
        superuser=True,
    )
    tables = ['"Their\'s"."of ""x"" "', "Their's.loose"]
    shown, loose = [f"table {name}" for name in tables], f"table {tables[1]}"
    options = external.options if named is None else {**external.options, "publication.name": named}
    name = named or "tidefill"
    body = {"options": options, "password": PASSWORD, "tables": tables}
    wrong, items = await _checked(http, body)
    assert wrong == ["replication", "publication.name", *shown]
    for said in ("may not SELECT", "only the owner", "has no primary key"):
        assert said in items[loose]["detail"]
    assert "the one that is made" not in str(items)
    for part in ("detail", "sql"):
        assert (
            f"set publication.name = '{name}' and publication.create.enable = false" in items["publication.name"][part]
        )
    _run_sql(external, items)
    body["options"] = {**external.options, "publication.name": name, "publication.create.enable": "false"}
    assert (await _checked(http, body))[0] == [loose]
    quoted = '"' + name.replace('"', '""') + '"'
    partial = f"create publication {quoted} for table \"Their's\".loose (id) with (publish = 'insert')"
    external.run(f"drop publication {quoted}", partial, superuser=True)
    wrong, items = await _checked(http, body)
    assert wrong == ["publication.name", *shown]
    assert "leaves out rows or columns" in items[loose]["detail"]
    _run_sql(external, items)
    assert (await _checked(http, body))[0] == [loose]


def _run_sql(external: External, items: dict[str, dict[str, Any]]) -> None:
    external.run(*(one["sql"] for one in items.values() if one["sql"] is not None), superuser=True)


def _mend(external: External, items: dict[str, dict[str, Any]]) -> None:
    """U10: the SQL that a check gives provides what it misses."""
    assert "publication.create.enable = false" in items["publication"]["detail"]
    _run_sql(external, items)


async def test_a_server_that_does_not_answer_is_said_without_the_password(
    http: httpx.AsyncClient, external: External
) -> None:
    options = {**external.options, "port": "1"}
    checked = await http.post("/v1/sources/check", json={"options": options, "password": PASSWORD})
    (item,) = checked.json()["items"]
    assert (item["item"], item["ok"]) == ("reachable", False)
    wrong = {"options": external.options, "password": "not it"}
    (item,) = (await http.post("/v1/sources/check", json=wrong)).json()["items"]
    assert "password authentication failed" in item["detail"]
    away = await http.post("/v1/sources", json={"name": "pg", "options": options, "password": PASSWORD})
    refused(away, 503, "unreachable")
    refused(await http.post("/v1/sources", json={"name": "pg", **wrong}), 422, "invalid")
    for answer in (checked, away):
        assert PASSWORD not in answer.text
    assert (await http.get("/v1/sources")).json()["items"] == []


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"options": {}, "password": "x"}, "/options/connector"),
        ({"options": {"port": 0}, "password": "x"}, "/options/port"),
        ({"options": {"colour": "red"}, "password": "x"}, "/options/colour"),
        ({"options": {}}, "/password"),
        ({"options": {}, "password": "x", "secret": "y"}, "/password"),
        ({"options": {"a": None}, "password": "x"}, "/options/a"),
        ({"password": "x"}, "/options"),
    ],
)
async def test_a_wrong_body_is_refused_at_its_place(
    http: httpx.AsyncClient, external: External, body: dict[str, Any], pointer: str
) -> None:
    if pointer == "/options/port":
        body = {**body, "options": {**external.options, **body["options"]}}
    for path, more in (("/v1/sources", {"name": "pg"}), ("/v1/sources/check", {})):
        problem = refused(await http.post(path, json={**body, **more}), 422, "invalid")
        assert problem["pointer"] == pointer


def body_of(checked: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in checked.items() if name != "tables"}


LAKE = {"connector": "deltalake", "location": "s3://bucket/lake", "s3.region": "eu", "s3.access.key": "reader"}


@pytest.mark.parametrize(
    ("body", "detail", "pointer"),
    [
        ({"options": LAKE, "password": "x"}, "has no password", "/password"),
        ({"options": {"connector": "postgres-cdc"}, "secrets": {"password": "key"}}, "a place in a lake", "/secrets"),
        (
            {"options": {**LAKE, "s3.secret.key": PASSWORD}},
            "is not given as a text",
            "/options/s3.secret.key",
        ),
        ({"options": LAKE, "secrets": {"location": "key"}}, 'option "location" is no secret', "/options/location"),
        ({"options": LAKE}, "s3.secret.key is missing", None),
        ({"options": {**LAKE, "colour": "red"}, "secrets": {"s3.secret.key": "key"}}, 'unknown option "colour"', None),
        ({"options": {"connector": "file", "location": "drop"}}, "absolute path", None),
    ],
)
async def test_a_place_in_a_lake_that_cannot_be_is_refused(
    http: httpx.AsyncClient, body: dict[str, Any], detail: str, pointer: str | None
) -> None:
    answer = await http.post("/v1/sources", json={"name": "lake", **body})
    refused(answer, 422, "invalid")
    assert detail in answer.json()["detail"]
    assert PASSWORD not in answer.text
    assert pointer is None or answer.json()["pointer"] == pointer
    assert (await http.get("/v1/sources")).json()["items"] == []
