"""A limit that is adapted: what a probe says decides, over real barriers, and the view is right in the end."""

from typing import Any

import pytest

from tests.support.service import Service
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.arrangement]

ROWS = 60_000
FLOOR = 50
PARAMETERS = {
    "backfill_auto_floor": FLOOR,
    # The test is of the probe: on a busy machine barriers may take what they like.
    "backfill_auto_latency_target_ms": 60_000,
    "backfill_auto_probe_sql": "SELECT ok FROM healthy",
}


def scan(service: Service, job: int) -> dict[str, Any]:
    (found,) = [one for one in service.detail(job)["fragments"] if one["scan_type"]]
    return found


def until_limit(service: Service, job: int, *, least: int = 0, most: int = 10**9) -> dict[str, Any]:
    """Wait until the limit in force is within; return the scan as it was seen then."""

    def look() -> dict[str, Any] | None:
        seen = scan(service, job)
        return seen if least <= (seen["rate_limit"] or 0) <= most else None

    return until(look, what=lambda: f"{least}..{most}: {scan(service, job)}; {service.log_tail()}")


@pytest.mark.soak
def test_a_probe_takes_the_limit_to_the_floor_and_lets_it_rise_again(service: Service) -> None:
    service.run("CREATE TABLE healthy (id int PRIMARY KEY, ok boolean)")
    service.run("INSERT INTO healthy VALUES (1, true)")
    service.run("CREATE TABLE history (id int PRIMARY KEY, v int)")
    service.run(f"INSERT INTO history SELECT g, g % 7 FROM generate_series(1, {ROWS}) g")
    service.patch("/v1/system-parameters", PARAMETERS)
    create = "CREATE MATERIALIZED VIEW copied WITH (backfill_rate_limit = 'auto') AS SELECT id, v FROM history"
    service.run(create, background_ddl="true", streaming_parallelism="1")
    job = service.job("copied")
    risen = until_limit(service, job, least=2_000)
    assert (risen["auto"]["phase"], risen["auto"]["signal"]) == ("slow start", None)

    service.run("UPDATE healthy SET ok = false")
    fallen = until_limit(service, job, most=FLOOR)
    assert (fallen["auto"]["signal"], fallen["auto"]["reason"]) == ("sql_probe", "the query gave false")
    assert not fallen["finished"], "too late to tell"
    (progress,) = service.progress()
    assert progress["waiting_for"] == f"throttled to {FLOOR} (auto) rows/s per actor"
    assert progress["auto"][0]["limit"]["reason"] == "the query gave false"
    assert service.value("SELECT rate_limit FROM rw_catalog.rw_rate_limit") == FLOOR
    assert service.value("SELECT signal FROM rw_catalog.rw_backfill_auto_limit") == "sql_probe"

    service.run("UPDATE healthy SET ok = true")
    until_limit(service, job, least=4 * FLOOR)
    changes = service.get(f"/v1/jobs/{job}/limit-history")["items"][::-1]
    lowered = [change for change in changes if change["after"] < change["before"]]
    assert {change["signal"] for change in lowered} == {"sql_probe"}
    assert lowered[-1]["after"] == FLOOR
    assert changes[0]["after"] == 2 * changes[0]["before"]
    epochs = [int(change["epoch"]) for change in changes if change["epoch"] is not None]
    assert epochs == sorted(set(epochs))
    carriers = {barrier["epoch"]: barrier for barrier in service.barriers()}
    assert {carriers[change["epoch"]]["mutation"] for change in changes if change["epoch"]} == {"throttle"}

    service.run("ALTER MATERIALIZED VIEW copied SET BACKFILL_RATE_LIMIT TO DEFAULT")
    assert scan(service, job)["auto"] is None
    service.until_created("copied")
    assert service.assert_equal("copied", "SELECT id, v FROM history") == ROWS
