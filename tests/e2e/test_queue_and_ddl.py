"""The queue of creating views and the statements around it: who starts, who waits and at which place, what may be
cancelled, and what CREATE, DROP and WAIT say of names that are there or not.
"""

from typing import Any

import pytest

from tests.support.service import ProblemError, Service
from tests.support.waiting import until

pytestmark = pytest.mark.e2e

SLOTS = "ALTER SYSTEM SET max_concurrent_creating_streaming_jobs = "
STOPPED = "WITH (backfill_rate_limit = 0) AS SELECT v FROM t"


@pytest.fixture
def queueing(service: Service) -> Service:
    """A service with a table to build views from; one may be built at a time, as by default."""
    service.run("CREATE TABLE t (v int PRIMARY KEY)")
    service.run("INSERT INTO t VALUES (1), (2), (3)")
    return service


def ask(service: Service, name: str) -> tuple[int, list[str]]:
    """Create a view in the background that does not finish by itself; return its job and the notices."""
    answer = service.run(f"CREATE MATERIALIZED VIEW {name} {STOPPED}", background_ddl="true")
    return service.job(name), answer["notices"]


def shown(service: Service) -> list[tuple[Any, ...]]:
    """Return name, state and place of what is listed."""
    return [(job["name"], job["state"], job["queue_place"]) for job in service.progress()]


def test_views_wait_for_their_turn_in_order(queueing: Service) -> None:
    """Reference 3.7: a place is shown from the start, and moves up with a cancel, a finish and a larger limit."""
    service = queueing
    first, nothing = ask(service, "first")
    second, said = ask(service, "second")
    third, _ = ask(service, "third")
    fourth, _ = ask(service, "fourth")
    assert nothing == []
    assert said == [f"job {second} is queued: max_concurrent_creating_streaming_jobs is reached"]
    queued = [("second", "Queued", 1), ("third", "Queued", 2), ("fourth", "Queued", 3)]
    assert shown(service) == [("first", "Creating", None), *queued]
    jobs = {row[0]: (row[2], row[3]) for row in service.sql("SHOW JOBS")}
    assert jobs[second] == ("BACKGROUND", "0.0%")
    taken = service.refused(f"CREATE MATERIALIZED VIEW third {STOPPED}")
    assert "already exists and is still being created" in taken.problem["detail"]
    # A table needs no place.
    service.run("CREATE TABLE beside (v int PRIMARY KEY)")
    assert service.sql(f"CANCEL JOBS {second}") == [[second]]
    assert shown(service)[1:] == [("third", "Queued", 1), ("fourth", "Queued", 2)]
    service.run(f"{SLOTS} 2")
    until(lambda: service.state(third) == "Creating", what="a larger limit starts the next")
    assert shown(service)[2:] == [("fourth", "Queued", 1)]
    # A smaller one stops nobody, and starts nobody before enough have ended.
    service.run(f"{SLOTS} 1")
    service.limit(first, None)
    service.until_created("first")
    service.flush()
    assert shown(service) == [("third", "Creating", None), ("fourth", "Queued", 1)]
    service.limit(third, None)
    service.until_created("third")
    until(lambda: service.state(fourth) == "Creating", what="the last one has its turn")
    fifth, _ = ask(service, "fifth")
    service.run(f"{SLOTS} 0")
    until(lambda: service.state(fifth) == "Creating", what="zero is no limit")
    assert sorted(service.sql(f"CANCEL JOBS {fifth}, {fourth}, {first}, 999999")) == [[fourth], [fifth]]
    assert shown(service) == []


@pytest.mark.soak
def test_a_foreground_view_waits_in_the_queue_and_hears_of_its_cancel(queueing: Service) -> None:
    service = queueing
    first, _ = ask(service, "first")
    waiting = service.later("CREATE MATERIALIZED VIEW second AS SELECT v FROM t")
    cancelled = service.later("CREATE MATERIALIZED VIEW third AS SELECT v FROM t")
    until(lambda: {place for _, _, place in shown(service)} == {None, 1, 2}, what="both wait")
    types = {job["name"]: job["create_type"] for job in service.progress()}
    assert types == {"first": "BACKGROUND", "second": "FOREGROUND", "third": "FOREGROUND"}
    job = service.job("third")
    assert service.sql(f"CANCEL JOBS {job}") == [[job]]
    with pytest.raises(ProblemError, match="was cancelled"):
        cancelled.result()
    assert not waiting.done()
    service.limit(first, None)
    assert waiting.result()["tag"] == "CREATE_MATERIALIZED_VIEW"
    assert service.sql("SELECT v FROM second ORDER BY v") == [[1], [2], [3]]


def test_of_cancels_and_drops_at_once_one_counts_and_none_is_refused(queueing: Service) -> None:
    service = queueing
    first, _ = ask(service, "first")
    second, _ = ask(service, "second")
    cancels = [service.later(f"CANCEL JOBS {first}, {second}") for _ in range(4)]
    drops = [service.later(f"DROP MATERIALIZED VIEW IF EXISTS {name}") for name in ("first", "second")]
    cancelled = [job for cancel in cancels for (job,) in cancel.result()["rows"]]
    assert {drop.result()["tag"] for drop in drops} == {"DROP_MATERIALIZED_VIEW"}
    assert len(cancelled) == len(set(cancelled))
    assert shown(service) == []
    assert [service.state(job) for job in (first, second)] == ["Cancelled", "Cancelled"]


def test_names_that_are_there_or_not(queueing: Service) -> None:
    service = queueing
    again = service.run("CREATE TABLE IF NOT EXISTS t (other text)")
    assert again["notices"] == ['table "t" already exists, skipping']
    assert service.refused("CREATE TABLE t (v int)").status == 409
    gone = service.run("DROP TABLE IF EXISTS nobody")
    assert gone["notices"] == ['table "nobody" does not exist, skipping']
    assert service.refused("DROP TABLE nobody").status == 404
    assert service.refused("DROP MATERIALIZED VIEW t").status == 409
    job, _ = ask(service, "m")
    create = f"CREATE MATERIALIZED VIEW IF NOT EXISTS m {STOPPED}"
    assert service.run(create, background_ddl="true")["notices"] == ['materialized view "m" already exists, skipping']
    assert service.refused("DROP TABLE t").status == 409
    service.run("WAIT TABLE t")
    one, all_of_them = service.later("WAIT MATERIALIZED VIEW m"), service.later("WAIT")
    assert service.refused("WAIT MATERIALIZED VIEW nobody").status == 404
    service.flush()
    assert (one.done(), all_of_them.done()) == (False, False)
    service.limit(job, None)
    assert (one.result()["tag"], all_of_them.result()["tag"]) == ("WAIT", "WAIT")
    assert service.state(job) == "Created"
    service.run("DROP TABLE t CASCADE")
    assert service.get("/v1/relations")["items"] == []
