"""Two operators on one service: a flood of one does not hold up the other, and quotas end what is too much."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from tests.support.service import Service
from tests.support.waiting import until

pytestmark = pytest.mark.e2e

FLOOD = 30
MADE = 202
"""The status of a background CREATE."""
BACKGROUND = {"background_ddl": "true"}


@dataclass
class Operator:
    """One tenant, by its token."""

    service: Service
    name: str
    id: int
    text: str

    @property
    def actor(self) -> str:
        return f"token {self.id} ({self.name})"

    def sql(self, sql: str, **session: str) -> httpx.Response:
        return self.send("POST", "/v1/sql", json={"sql": sql, "session": session})

    def send(self, method: str, path: str, **more: Any) -> httpx.Response:
        return self.service.http.request(method, path, headers={"Authorization": f"Bearer {self.text}"}, **more)

    def create(self, view: str, *, stopped: bool = False) -> httpx.Response:
        options = " WITH (backfill_rate_limit = 0)" if stopped else ""
        return self.sql(f"CREATE MATERIALIZED VIEW {view}{options} AS SELECT v FROM t", **BACKGROUND)

    def over(self, answer: httpx.Response, quota: str) -> dict[str, Any]:
        """Assert that a quota refused the call; return the problem."""
        assert answer.status_code == 429, answer.text
        problem = answer.json()
        assert (problem["type"], problem["quota"]) == ("urn:tidefill:problem:quota", quota)
        assert problem["detail"].startswith(self.actor)
        return problem


@pytest.fixture
def operators(service: Service) -> Iterator[tuple[Operator, Operator]]:
    """Two operators; there is a table to build views from, and one view may be built at a time."""
    service.run("CREATE TABLE t (v int PRIMARY KEY)")
    service.run("INSERT INTO t VALUES (1), (2), (3)")
    made = [service.post("/v1/tokens", {"name": name, "role": "operator"}) for name in ("flooder", "other")]
    yield tuple(Operator(service, one["name"], int(one["id"]), one["text"]) for one in made)  # type: ignore[misc]
    for one in made:
        service.call("DELETE", f"/v1/tokens/{one['id']}")


def queued(service: Service) -> dict[str, int]:
    """Return the place of each queued job."""
    return {job["name"]: job["queue_place"] for job in service.progress() if job["state"] == "Queued"}


@pytest.mark.soak
def test_a_flood_of_one_operator_delays_the_other_by_one_job(
    service: Service, operators: tuple[Operator, Operator]
) -> None:
    flooder, other = operators
    for number in range(FLOOD):
        answer = flooder.create(f"f{number}", stopped=number == 0)
        assert answer.status_code == MADE, answer.text
    first = service.job("f0")
    assert service.state(first) == "Creating"
    assert other.create("mine").status_code == MADE
    places = queued(service)
    assert places["mine"] == 1
    assert [places[f"f{number}"] for number in range(1, FLOOD)] == list(range(2, FLOOD + 1))
    job = service.job("mine")
    shown = service.detail(job)["job"]
    assert shown["created_by"] == other.actor
    assert "place 1" in shown["progress"]["waiting_for"]
    listed = "select ddl_id, created_by from rw_catalog.rw_ddl_progress where ddl_id in ({}, {}) order by 1"
    assert service.sql(listed.format(first, job)) == [[first, flooder.actor], [job, other.actor]]
    service.limit(first, None)
    service.until_created("mine")
    starts = "select r.name from tidefill.job j join tidefill.relation r on r.id = j.relation"
    theirs = f"j.created_by in ('{flooder.actor}', '{other.actor}')"
    order = service.stored(f"{starts} where j.started_at is not null and {theirs} order by j.started_at")
    assert [name for (name,) in order][:2] == ["f0", "mine"]
    waiting = [service.job(name) for name in queued(service)]
    assert len(waiting) > 1, "the flood is not over when the other's job is created"


@pytest.mark.soak
def test_a_quota_of_jobs_holds_for_each_operator(service: Service, operators: tuple[Operator, Operator]) -> None:
    flooder, other = operators
    service.run("ALTER SYSTEM SET operator_creating_jobs_max = 2")
    asked = [service.calls.submit(flooder.create, f"f{number}", stopped=True) for number in range(6)]
    answers = [one.result() for one in asked]
    assert sorted(answer.status_code for answer in answers) == [MADE, MADE, 429, 429, 429, 429]
    for answer in answers:
        if answer.status_code == 429:
            problem = flooder.over(answer, "operator_creating_jobs_max")
            assert (problem["limit"], problem["used"]) == (2, 2)
            assert "CANCEL JOBS" in problem["detail"]
    assert other.create("mine", stopped=True).status_code == MADE
    service.run("CREATE MATERIALIZED VIEW of_admin WITH (backfill_rate_limit = 0) AS SELECT v FROM t", **BACKGROUND)
    (victim, *_) = [job["ddl_id"] for job in service.progress() if job["created_by"] == flooder.actor]
    assert flooder.sql(f"CANCEL JOBS {victim}").json()["rows"] == [[victim]]
    until(lambda: service.state(victim) == "Cancelled", what="the job is cancelled")
    assert flooder.create("another", stopped=True).status_code == MADE
    assert 'tidefill_quota_refusals_total{quota="operator_creating_jobs_max"}' in service.http.get("/metrics").text


def test_results_and_calls_have_quotas(service: Service, operators: tuple[Operator, Operator]) -> None:
    one, other = operators
    service.run("ALTER SYSTEM SET operator_result_bytes_max = 100000")
    wide = "SELECT repeat('x', 1000) FROM generate_series(1, 1000)"
    answer = one.sql(wide)
    assert answer.status_code == 422
    assert "larger than 100000 bytes (operator_result_bytes_max)" in answer.json()["detail"]
    assert len(one.sql("SELECT v FROM t").json()["rows"]) == 3
    assert len(service.sql(wide)) == 1000, "an admin is not held to it"
    service.run("ALTER SYSTEM SET operator_calls_max = 1")
    with service.http.stream("GET", "/v1/events", headers={"Authorization": f"Bearer {one.text}"}) as stream:
        assert stream.status_code == 200
        refused = one.send("GET", "/v1/jobs")
        one.over(refused, "operator_calls_max")
        assert refused.headers["retry-after"] == "1"
        assert other.send("GET", "/v1/jobs").status_code == 200
    until(lambda: one.send("GET", "/v1/jobs").status_code == 200, what="the stream has ended")
