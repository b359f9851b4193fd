"""Attacks on the HTTP doors: web pages that call the service, and sources that scan its network."""

from io import BytesIO
from pathlib import Path

import httpx
import psycopg
import pytest

from tests.support.bystander import Bystander
from tests.support.generated_client import client_module, generated_client
from tests.support.service import Service

pytestmark = pytest.mark.e2e
FOREIGN = (
    {"Origin": "http://evil.example", "Sec-Fetch-Site": "cross-site"},
    {"Origin": "null"},
    {"Sec-Fetch-Site": "same-site"},
)


def test_s8_no_web_page_changes_anything_even_with_the_token(service: Service, bystander: Bystander) -> None:
    with bystander.unharmed(), httpx.Client(base_url=service.url, headers=service.headers) as page:
        for sent in FOREIGN:
            for path in ("/v1/recover", "/v1/barriers", "/v1/jobs/1/cancel", "/v1/jobs/1/pause", "/v1/jobs/1/verify"):
                answer = page.post(path, headers=sent)
                assert (answer.status_code, answer.json()["type"]) == (403, "urn:tidefill:problem:foreign-origin")
            answer = page.post("/v1/sql", json={"sql": "CREATE SECRET s WITH (backend = 'meta') AS 'x'"}, headers=sent)
            assert answer.status_code == 403
            assert page.get("/v1/events", headers=sent).status_code == 403
    assert service.items("/v1/secrets") == []


def test_u3_and_u6_people_read_with_the_login_that_is_shown_and_write_nothing(
    service: Service, bystander: Bystander
) -> None:
    """Their tables may be named like internal ones."""
    assert service.get("/v1/read-login")["password"] is None
    login = service.get("/v1/read-login", password="true")
    for name in ("job", "event", "source", "worker", "request"):
        service.run(f"CREATE TABLE {name} (id int PRIMARY KEY, note text)")
        service.run(f"INSERT INTO {name} VALUES (1, '{name}')")
        service.run(f"CREATE VIEW of_{name} AS SELECT note FROM {name}")
        assert service.sql(f"SELECT note FROM of_{name}") == [[name]]
    with bystander.unharmed(), psycopg.connect(login["dsn"], autocommit=True) as reading:
        for name in ("job", "event", "source", "worker", "request"):
            assert reading.execute(f"select note from {name}".encode()).fetchall() == [(name,)]
        assert reading.execute("select count(*) from rw_catalog.rw_ddl_progress").fetchall() == [(0,)]
        with psycopg.connect(service.database_url(), autocommit=True) as superuser:
            for write in ("update public.job set note = 'x'", "delete from public.of_job", "truncate public.event"):
                with pytest.raises(psycopg.Error):
                    superuser.execute(write)
    assert service.sql("SELECT note FROM job") == [["job"]]
    assert service.value("SELECT count(*) FROM rw_catalog.rw_ddl_progress") == 0


def test_u8_a_background_create_names_its_job(service: Service) -> None:
    service.run("CREATE TABLE t (id int PRIMARY KEY)")
    service.run("INSERT INTO t SELECT g FROM generate_series(1, 1000) g")
    create = "CREATE MATERIALIZED VIEW v WITH (backfill_rate_limit = 0) AS SELECT id FROM t"
    body = {"sql": create, "session": {"background_ddl": "true"}}
    with httpx.Client(base_url=service.url, headers={**service.headers, "Idempotency-Key": "u8"}) as client:
        first = client.post("/v1/sql", json=body, timeout=60)
        answer = client.post("/v1/sql", json=body, timeout=60)
        assert answer.json() == first.json()
        assert (first.status_code, answer.status_code, answer.json()["background"]) == (202, 202, True)
        job = answer.json()["job"]
        assert answer.headers["location"] == f"/v1/jobs/{job}"
        assert client.get(answer.headers["location"]).json()["job"]["name"] == "v"
    assert service.get("/v1/jobs/v")["job"]["id"] == job
    service.post("/v1/jobs/v/cancel")
    service.run("DROP TABLE t")
    names = {one["name"] for one in service.get("/v1/jobs")["items"]}
    assert "t" not in names
    dropped = [one for one in service.get("/v1/jobs", dropped="true")["items"] if one["name"] == "t"]
    assert [(one["state"], one["progress"]["percent"]) for one in dropped[-1:]] == [("Dropped", 0.0)]


def test_u8_a_generated_client_loads_rows_in_bulk(service: Service, tmp_path: Path) -> None:
    service.run("CREATE TABLE loaded (id int PRIMARY KEY, note text)")
    with (
        generated_client(tmp_path),
        client_module("client").AuthenticatedClient(base_url=service.url, token=service.token) as client,
    ):
        file = client_module("types").File(payload=BytesIO(b"id,note\n1,first\n2,second\n"))
        load = client_module("api.relations.load_rows").sync
        assert load("loaded", client=client, body=file, format_="csv").rows == 2
        body = client_module("models").SqlBody(sql="SELECT note FROM loaded ORDER BY id")
        said = client_module("api.sql.run_statement").sync(client=client, body=body)
    assert said.rows == [["first"], ["second"]]
