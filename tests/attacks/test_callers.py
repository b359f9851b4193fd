"""Callers who hinder others: by signals, by their own logins, by slow queries, and by what is shown and stored."""

import json
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path

import httpx
import psycopg
import pytest
from deltalake import write_deltalake

from tests.support.bystander import Bystander
from tests.support.drops import rows
from tests.support.postgres import is_over
from tests.support.service import PATIENT, ProblemError, Service
from tests.support.waiting import until

pytestmark = pytest.mark.e2e
FLOOD = (
    "do $$ begin for n in 1..60000 loop execute format('notify {}, %L', '[\"s' || n || '\",{{}}]'); end loop; end $$"
)
SLOW = "select count(*) from generate_series(1, 1000000) a, generate_series(1, 1000000) b"


@contextmanager
def token(service: Service, name: str, role: str) -> Generator[httpx.Client]:
    """The client of a token, which is revoked at the end."""
    made = service.post("/v1/tokens", {"name": name, "role": role})
    headers = {"Authorization": f"Bearer {made['text']}"}
    try:
        with httpx.Client(base_url=service.url, headers=headers, timeout=600) as client:
            yield client
    finally:
        service.call("DELETE", f"/v1/tokens/{made['id']}")


def login_of(client: httpx.Client) -> str:
    answer = client.get("/v1/read-login", params={"password": "true"})
    assert answer.status_code == 200, answer.text
    return answer.json()["dsn"]


def test_s1_notifications_of_the_read_login_reach_no_service(service: Service, bystander: Bystander) -> None:
    with token(service, "s1", "viewer") as viewer:
        dsn = login_of(viewer)
        with psycopg.connect(dsn, autocommit=True) as reading:
            (channels,) = zip(*reading.execute("select query from pg_stat_activity").fetchall(), strict=True)
            assert not [text for text in channels if "listen " in text]
        with bystander.unharmed():
            for channel in ("tidefill", "tidefill_signals"):
                # A session each: one that is seen while it commits a flood has written, and is ended.
                with psycopg.connect(dsn, autocommit=True) as reading:
                    reading.execute("set default_transaction_read_only = off")
                    reading.execute(FLOOD.format(channel).encode())
    assert service.log.read_text(errors="replace").count("signals.") < 10


def test_s3_what_a_caller_does_to_its_login_concerns_no_other(service: Service, bystander: Bystander) -> None:
    with token(service, "one", "viewer") as one, token(service, "other", "viewer") as other:
        dsns = login_of(one), login_of(other)
        with bystander.unharmed(), psycopg.connect(dsns[0], autocommit=True) as attacking:
            attacking.execute("set default_transaction_read_only = off")
            for spoil in ("password 'x'", "set statement_timeout = 1", "set search_path = nowhere"):
                attacking.execute(f"alter role current_user {spoil}".encode())
            with pytest.raises(psycopg.OperationalError):
                psycopg.connect(dsns[0], dbname="postgres")
            for dsn in (dsns[1], service.get("/v1/read-login", password="true")["dsn"]):
                with psycopg.connect(dsn, autocommit=True) as reading:
                    assert reading.execute("select count(*) >= 0 from bystander").fetchone() == (True,)
                    assert reading.execute("show statement_timeout").fetchone() == ("10min",)


def test_s3_a_login_ends_with_its_token(service: Service) -> None:
    with token(service, "brief", "viewer") as caller:
        dsn = login_of(caller)
        reading = psycopg.connect(dsn, autocommit=True)
        reading.execute("set statement_timeout = 0")
    until(lambda: is_over(reading), what="the session of the revoked token ends")
    reading.close()
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(dsn)
    until(lambda: not service.stored("select from pg_roles where rolname ~ '^tidefill_read_t'"), what="no role is left")


def test_s4_slow_queries_of_one_caller_fail_none_of_another(service: Service, bystander: Bystander) -> None:
    with (
        token(service, "slow", "viewer") as slow,
        token(service, "quick", "viewer") as quick,
        bystander.unharmed(),
        ThreadPoolExecutor(16) as calls,
    ):
        body = {"sql": SLOW, "session": {"statement_timeout": "25000"}}
        busy = [calls.submit(slow.post, "/v1/sql", json=body) for _ in range(16)]
        until(lambda: _running(service) >= 4, what="several queries run")
        for _ in range(10):
            answer = quick.post("/v1/sql", json={"sql": "SELECT 1"})
            assert answer.status_code == 200, answer.text
        assert {call.result().status_code for call in busy} <= {422, 503}


ENDLESS = (
    "JOIN large b ON b.city = a.city JOIN large c ON c.city = b.city WHERE a.id + b.id + c.id <> 7",
    "LEFT JOIN large b ON b.city = a.city LEFT JOIN large c ON c.city = a.city LEFT JOIN large d ON d.city = a.city",
)
LARGE = "SELECT city, length(string_agg(repeat(city, 1000000), ',' ORDER BY id)) FROM large GROUP BY city"
"""It is 60 GB of text."""


def endless(number: int) -> str:
    return f"SELECT a.city, count(*) FROM large a {ENDLESS[number]} GROUP BY a.city"


@pytest.mark.soak
def test_s4_endless_and_large_queries_over_a_lake_leave_the_worker_to_others(
    service: Service, bystander: Bystander, tmp_path: Path
) -> None:
    """Each endless one took a slot of Spark for ever, although its caller had been told that it took too long. A large
    one ended the worker.
    """
    write_deltalake(tmp_path / "large", rows(1, 20_000))
    service.run(
        f"CREATE TABLE large (*, PRIMARY KEY (id)) WITH (connector = 'deltalake', location = '{tmp_path}/large')"
    )
    count = {"sql": "SELECT count(*) FROM large", "session": PATIENT}
    with token(service, "slow", "viewer") as slow, token(service, "quick", "viewer") as quick, bystander.unharmed():
        worker = service.worker_pid()

        def counted() -> None:
            answer = quick.post("/v1/sql", json=count)
            assert answer.json()["rows"] == [[20_000]], answer.text

        counted()
        answer = slow.post("/v1/sql", json={"sql": LARGE, "session": PATIENT})
        assert "more memory than the process has" in answer.text
        for number in (0, 1):
            # A process that starts would take some of the time of the query that waits for it.
            counted()
            answer = slow.post("/v1/sql", json={"sql": endless(number), "session": {"statement_timeout": "1500"}})
            assert answer.status_code == 422, answer.text
            assert "canceling statement due to statement timeout after 1500 ms" in answer.text
        body = {"sql": endless(0), "session": {"statement_timeout": "20000"}}

        def beside() -> bool:
            """Whether a query is answered while another caller's runs: both processes may have to start first."""
            long = service.calls.submit(slow.post, "/v1/sql", json=body)
            counted()
            at_once = not long.done()
            if at_once:
                service.run("CREATE MATERIALIZED VIEW counted AS SELECT city, count(*) AS n FROM large GROUP BY city")
            assert long.result().status_code == 422
            return at_once

        until(beside, what="queries of two callers run at once")
        assert service.worker_pid() == worker


def test_i13_a_query_over_a_lake_ends_with_its_caller(service: Service, tmp_path: Path) -> None:
    """It went on until its timeout, and its caller had the next turn at once: one held all three processes."""
    write_deltalake(tmp_path / "large", rows(1, 20_000))
    service.run(
        f"CREATE TABLE large (*, PRIMARY KEY (id)) WITH (connector = 'deltalake', location = '{tmp_path}/large')"
    )
    count = {"sql": "SELECT count(*) FROM large", "session": PATIENT}
    body = {"sql": endless(0), "session": PATIENT}
    with token(service, "quick", "viewer") as quick, token(service, "slow", "viewer") as slow:
        with closing(HTTPConnection(slow.base_url.netloc.decode())) as call:
            call.request("POST", "/v1/sql", json.dumps(body), {**slow.headers, "Content-Type": "application/json"})
            until(lambda: _asked(service), what="a worker computes it")
        answer = quick.post("/v1/sql", json=count)
        assert answer.json()["rows"] == [[20_000]], answer.text
        until(lambda: not _asked(service), what="it has ended")


def _asked(service: Service) -> bool:
    """Whether a worker has a question."""
    return bool(service.stored("select 1 from tidefill.request where worker is not null and response is null"))


def test_i13_a_view_without_an_end_is_dropped_and_leaves_its_turn(service: Service, tmp_path: Path) -> None:
    """The worker was told by no barrier that its graph is gone, and kept Spark's turn from every other view."""
    write_deltalake(tmp_path / "large", rows(1, 20_000))
    service.run(
        f"CREATE TABLE large (*, PRIMARY KEY (id)) WITH (connector = 'deltalake', location = '{tmp_path}/large')"
    )
    service.run(f"CREATE MATERIALIZED VIEW endless AS {endless(1)}", background_ddl="true")
    until(lambda: "still computes epoch" in str(service.get("/v1/jobs/endless")), what="it computes")
    service.run("DROP MATERIALIZED VIEW endless")
    service.run("CREATE MATERIALIZED VIEW counted AS SELECT city, count(*) AS n FROM large GROUP BY city")
    assert service.value("SELECT sum(n) FROM counted") == "20000"


def _running(service: Service) -> int:
    ((count,),) = service.stored(
        "select count(*) from pg_stat_activity where application_name = 'tidefill-reader' and state = 'active'"
    )
    return int(count)


def test_s6_a_key_of_one_caller_answers_no_other(service: Service, bystander: Bystander) -> None:
    service.run("CREATE TABLE keyed (id int PRIMARY KEY, n int)")
    insert = {"sql": "INSERT INTO keyed VALUES (1, 1)"}
    key = {"Idempotency-Key": "K"}
    with bystander.unharmed(), token(service, "v", "viewer") as viewer, token(service, "o", "operator") as operator:
        wide = {"sql": "SELECT repeat('x', 1000000) FROM generate_series(1, 20)"}
        assert viewer.post("/v1/sql", json=wide, headers=key).status_code == 200
        assert operator.post("/v1/sql", json=insert, headers=key).json()["tag"] == "INSERT 0 1"
        assert operator.post("/v1/sql", json=insert, headers=key).json()["tag"] == "INSERT 0 1"
        service.run("DELETE FROM keyed")
        with httpx.Client(base_url=service.url, headers={**service.headers, **key}, timeout=60) as admin:
            assert admin.post("/v1/sql", json=insert).json()["tag"] == "INSERT 0 1"
    assert service.sql("SELECT id, n FROM keyed") == [[1, 1]]
    ((size,),) = service.stored("select coalesce(sum(length(response::text)), 0) from tidefill.idempotency_key")
    assert int(size) < 100_000


def test_s7_neither_hosts_nor_values_are_logged(service: Service) -> None:
    service.run("CREATE TABLE told (id int PRIMARY KEY)")
    with pytest.raises(ProblemError):
        service.run("INSERT INTO told VALUES ('a value of a statement')")
    with pytest.raises(ProblemError):
        service.sql("SELECT 'another value of a statement'::int")
    place = "hostname = '127.0.0.255', port = 1, username = 'u', password = 'p', database.name = 'd'"
    with pytest.raises(ProblemError):
        service.run(f"CREATE SOURCE away WITH (connector = 'postgres-cdc', {place})")
    log = service.log.read_text(errors="replace")
    for path in (service.data_dir / "postgres").rglob("postgres-*.log"):
        log += path.read_text(errors="replace")
    assert "value of a statement" not in log
    assert "127.0.0.255" not in log
