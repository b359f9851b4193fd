"""The reference's scenarios of the backfill order, for the strategies that it names. Where it joins, these put tables
together; every scan costs every epoch a Spark job, so that tables are small and views few.
"""

from typing import Any

import pytest

from tests.support.scenarios import (
    FRAGMENT_PROGRESS,
    RESCALED,
    STRATEGIES,
    cars_are_read_in_order,
    equal,
    finish,
    recovered,
    scan_rows,
    table,
    views,
)
from tests.support.service import ARRANGEMENT, ProblemError, Service
from tests.support.waiting import until

pytestmark = pytest.mark.e2e


def together(*tables: str) -> str:
    """Return a query over tables of scenarios."""
    return " UNION ALL ".join(f"SELECT v FROM {name}" for name in tables)


def fixed(edges: str) -> str:
    return f"WITH (backfill_order = FIXED({edges}))"


def scans(service: Service, job: int) -> dict[str, dict[str, Any]]:
    """Return the scans of a job by their table's name."""
    return {one["upstream"]: one for one in service.detail(job)["fragments"] if one["scan_type"]}


def waits(service: Service, job: int) -> dict[str, list[str]]:
    """Return what each scan that waits waits for."""
    return {name: one["waits_for"] for name, one in scans(service, job).items() if one["waiting"]}


def until_read(service: Service, jobs: dict[str, int], name: str, above: int = 0) -> None:
    """Wait until every job has read more than so many rows of a table."""
    until(
        lambda: all(scan_rows(service, job)[name] > above for job in jobs.values()),
        what=lambda: [scans(service, job) for job in jobs.values()],
    )


@pytest.mark.soak
def test_dimensions_are_read_before_the_fact(service: Service) -> None:
    """Scenario 25 with 10,000 sales."""
    cars_are_read_in_order(service, 10_000, 4_000)


@pytest.mark.soak
def test_an_order_is_over_what_the_query_reads(service: Service) -> None:
    """Scenarios 27 and 32: refused left and right of the arrow; some of the relations will do; AUTO is about joins."""
    for name in ("t", "a", "b", "c"):
        table(service, name, 1)
    query = together("a", "b", "c")
    for session in STRATEGIES.values():
        for edges in ("t -> a", "a -> t"):
            refused = service.refused(f"CREATE MATERIALIZED VIEW m27 {fixed(edges)} AS {query}", **session)
            assert refused.status == 422
            assert refused.problem["detail"] == (
                "Table or source 't' specified in backfill_order is not used in the query"
            )
    jobs = views(service, "m27", query, options=fixed("a -> c"), strategies=RESCALED)
    assert [service.detail(job)["backfill_order"] for job in jobs.values()] == [[["a", "c"]]] * 2
    auto = views(service, "m32", query, options="WITH (backfill_order = AUTO)", strategies={"arrangement": ARRANGEMENT})
    assert [service.detail(job)["backfill_order"] for job in auto.values()] == [[]]
    jobs |= auto
    service.run("WAIT")
    assert equal(service, jobs, query) == 3
    explained = "EXPLAIN (backfill, format dot) CREATE MATERIALIZED VIEW m WITH (backfill_order = AUTO) AS "
    assert service.sql(explained + query) == [["digraph G {"], ["}"]]


@pytest.mark.soak
def test_an_order_outlives_a_recovery_before_anything_was_read(service: Service) -> None:
    """Scenario 28."""
    for name in ("t1", "t2", "t3"):
        table(service, name, 1)
    query = together("t1", "t2", "t3")
    jobs = views(service, "m28", query, rate=0, options=fixed("t1 -> t2, t2 -> t3"))
    recovered(service)
    for job in jobs.values():
        assert waits(service, job) == {"t2": ["t1"], "t3": ["t2"]}
        assert scan_rows(service, job) == {"t1": 0, "t2": 0, "t3": 0}
    unordered = views(service, "plain28", query, strategies={"arrangement": ARRANGEMENT})
    assert finish(service, jobs | unordered, query) == 3


@pytest.mark.soak
def test_what_comes_second_waits_over_a_recovery(service: Service) -> None:
    """Scenario 29."""
    for name in ("t1", "t2"):
        table(service, name, 10_000)
    query = together("t1", "t2")
    jobs = views(service, "m29", query, rate=1, options=fixed("t1 -> t2"), strategies=RESCALED)
    for recover in (True, False):
        rows = max(scan_rows(service, job)["t1"] for job in jobs.values())
        until_read(service, jobs, "t1", above=rows)
        assert [scan_rows(service, job)["t2"] for job in jobs.values()] == [0, 0]
        assert all(waits(service, job) == {"t2": ["t1"]} for job in jobs.values())
        texts = [text for _, _, _, upstream, text, *_ in service.sql(FRAGMENT_PROGRESS) if upstream == "public.t2"]
        assert texts == ["0.00% (0/10000)"] * 2
        if recover:
            recovered(service)
    assert finish(service, jobs, query) == 20_000
    assert service.sql(FRAGMENT_PROGRESS) == []


@pytest.mark.soak
def test_a_scan_that_waits_is_started_by_its_id_and_all_of_a_job_by_the_job_s(service: Service) -> None:
    """Scenario 31."""
    for name in ("t1", "t2", "t3"):
        table(service, name, 1_000)
    query = together("t1", "t2", "t3")
    jobs = views(service, "m31", query, rate=1, options=fixed("t1 -> t2, t2 -> t3"), strategies=RESCALED)
    for job in jobs.values():
        service.post(f"/v1/fragments/{scans(service, job)['t3']['id']}/start-backfill")
        assert waits(service, job) == {"t2": ["t1"]}
    until_read(service, jobs, "t3")
    for job in jobs.values():
        assert (scan_rows(service, job)["t2"], scans(service, job)["t1"]["finished"]) == (0, False)
        service.post(f"/v1/jobs/{job}/start-backfill")
        assert waits(service, job) == {}
    until_read(service, jobs, "t2")
    (dml,) = (one["id"] for one in service.detail(service.job("t1"))["fragments"])
    for path, message in (
        ("/v1/jobs/999999", "job 999999 not found"),
        ("/v1/fragments/999999", "fragment 999999 not found"),
        (f"/v1/fragments/{dml}", f"fragment {dml} is not a backfill node"),
    ):
        with pytest.raises(ProblemError, match=message):
            service.post(f"{path}/start-backfill")
    assert finish(service, jobs, query) == 3_000
