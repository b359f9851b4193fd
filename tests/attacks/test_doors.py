"""Attacks on the HTTP doors: web pages that call the service, and sources that scan its network."""

import httpx
import psycopg
import pytest

from tests.support.bystander import Bystander
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
    assert service.get("/v1/secrets") == []


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
