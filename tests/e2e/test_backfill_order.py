"""History is read in the order that the view asks for, whatever is killed meanwhile; an operator may go against it."""

from typing import Any

import pytest

from tests.support.service import Service
from tests.support.waiting import until

pytestmark = pytest.mark.e2e

ROWS = 400
LIMIT = 200
"""Rows per second of the one actor of each scan: a scan takes two seconds, eight barriers."""
QUERY = " UNION ALL ".join(f"SELECT id, {number} AS origin FROM {name}" for number, name in enumerate("abc"))
ORDERED = "CREATE MATERIALIZED VIEW m WITH (backfill_order = FIXED(a -> b, b -> c), backfill_rate_limit = 0) AS "


def ordered(service: Service) -> int:
    """Create a view over three tables that may not read yet; return its job."""
    for name in "abc":
        service.run(f"CREATE TABLE {name} (id int PRIMARY KEY)")
        service.run(f"INSERT INTO {name} SELECT g FROM generate_series(1, {ROWS}) g")
    service.run(ORDERED + QUERY, background_ddl="true", streaming_parallelism="1")
    return service.job("m")


def scans(service: Service, job: int) -> dict[str, dict[str, Any]]:
    """Return the scans by their table's name."""
    return {one["upstream"]: one for one in service.detail(job)["fragments"] if one["scan_type"]}


def waits(service: Service, job: int) -> dict[str, list[str]]:
    """Return what each scan that waits waits for."""
    return {name: one["waits_for"] for name, one in scans(service, job).items() if one["waiting"]}


def until_read(service: Service, job: int, name: str, *, above: int) -> dict[str, dict[str, Any]]:
    """Wait until a scan has read more than so many rows; return the scans as they were seen then."""

    def look() -> dict[str, dict[str, Any]] | None:
        seen = scans(service, job)
        return seen if seen[name]["rows"] > above else None

    return until(look, what=lambda: f"{name} is read: {scans(service, job)}; {service.log_tail()}")


def read_in(service: Service) -> dict[int, tuple[int, int, int]]:
    """Return by origin how many rows were read, in which epoch the first and in which the last. The tables do not
    change, so that every row was read as history, in the epoch that made it.
    """
    table = f"state.t_{service.get('/v1/relations/m')['id']}"
    found = service.stored(f"select origin, count(*), min(_from), max(_from) from {table} group by origin")
    return {origin: (rows, first, last) for origin, rows, first, last in found}


@pytest.mark.soak
def test_the_order_is_kept_over_a_kill_of_the_worker(service: Service) -> None:
    """I3, I4."""
    job = ordered(service)
    assert service.sql("EXPLAIN (backfill, format dot) " + ORDERED.replace("VIEW m", "VIEW n") + QUERY) == [
        ["digraph G {"],
        ['  "public.a" -> "public.b";'],
        ['  "public.b" -> "public.c";'],
        ["}"],
    ]
    assert waits(service, job) == {"b": ["a"], "c": ["b"]}
    service.limit(job, LIMIT)
    seen = until_read(service, job, "b", above=LIMIT // 2)
    assert (seen["a"]["finished"], seen["a"]["rows"]) == (True, ROWS)
    assert (seen["b"]["finished"], seen["c"]["rows"]) == (False, 0), "too late to tell"
    generation = service.graph()["generation"]
    service.kill_worker()
    service.until_recovered(generation)
    seen = until_read(service, job, "b", above=seen["b"]["rows"])
    assert (seen["b"]["finished"], seen["c"]["waiting"], seen["c"]["rows"]) == (False, True, 0), "too late to tell"
    assert waits(service, job) == {"c": ["b"]}
    service.verified("m")
    service.until_created("m")
    (a, first_of_a, last_of_a), (b, first_of_b, last_of_b), (c, first_of_c, last_of_c) = (
        read_in(service)[origin] for origin in range(3)
    )
    assert (a, b, c) == (ROWS, ROWS, ROWS)
    assert first_of_a < last_of_a < first_of_b < last_of_b < first_of_c < last_of_c
    assert service.assert_equal("m", QUERY) == 3 * ROWS


@pytest.mark.soak
def test_a_scan_is_started_by_hand_and_stays_so(service: Service) -> None:
    """I4: acknowledged with its epoch, and not taken back by a recovery."""
    job = ordered(service)
    last = scans(service, job)["c"]["id"]
    service.call("PATCH", f"/v1/fragments/{last}", json={"backfill_rate_limit": None})
    service.flush()
    assert scans(service, job)["c"]["rows"] == 0
    started = int(service.post(f"/v1/fragments/{last}/start-backfill")["epoch"])
    seen = until_read(service, job, "c", above=ROWS - 1)
    assert (seen["a"]["rows"], seen["b"]["rows"]) == (0, 0)
    assert read_in(service)[2][1] >= started
    assert waits(service, job) == {"b": ["a"]}
    generation = service.graph()["generation"]
    service.kill_worker()
    service.until_recovered(generation)
    assert waits(service, job) == {"b": ["a"]}
    service.post(f"/v1/jobs/{job}/start-backfill")
    assert waits(service, job) == {}
    service.limit(job, None)
    service.until_created("m")
    assert service.assert_equal("m", QUERY) == 3 * ROWS
