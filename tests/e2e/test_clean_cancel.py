"""After a cancel or a drop nothing is left, in whatever state the job was (I9)."""

from concurrent.futures import Future
from typing import Any

import pytest

from service.protocol.ids import WorkerId
from tests.support.scripted_worker import ScriptedWorker, reported, scan_of
from tests.support.service import Service
from tests.support.waiting import Repeating, until

pytestmark = pytest.mark.e2e

STORED = """
select n.nspname || '.' || c.relname from pg_class c join pg_namespace n on n.oid = c.relnamespace
where n.nspname in ('state', 'live', 'stage', 'public') and c.relkind in ('r', 'v', 'S') order by 1
"""
IN_META = "relation_column", "fragment", "actor", "backfill_position", "scan_progress", "cleanup", "graph"
COUNTED = [
    "state.pin",
    # Those of the database graph come with its first barriers.
    *(f"(select from state.{name} where graph <> 1) {name}" for name in ("fence", "published", "horizon")),
    *(f"tidefill.{name}" for name in IN_META),
]
ROWS = " union all ".join(f"select {number}, count(*) from {rows}" for number, rows in enumerate(COUNTED))
VIEW = "CREATE MATERIALIZED VIEW {name} WITH (backfill_rate_limit = {limit}) AS SELECT v FROM history"


def footprint(service: Service) -> list[tuple[object, ...]]:
    """Return the tables and views there are, and the rows that say what runs and how far it is."""
    return [*service.stored(STORED), *service.stored(ROWS)]


def create(service: Service, name: str, limit: int) -> int:
    service.run(VIEW.format(name=name, limit=limit), background_ddl="true", streaming_parallelism="1")
    return service.job(name)


def bring(service: Service, state: str) -> int:
    """Bring a new job into a state."""
    job = create(service, "m", -1 if state == "Created" else 100)
    if state == "Created":
        service.until_created("m")
    elif state != "Queued":
        service.until_rows(job, 0)
    if state == "paused":
        service.mutate({"type": "pause"})
        state = "Creating"
    assert service.state(job) == state
    return job


CANCEL, DROP = "CANCEL JOBS {job}", "DROP MATERIALIZED VIEW m"


@pytest.mark.parametrize(
    ("state", "end"),
    [
        ("Creating", CANCEL),
        ("Created", DROP),
        pytest.param("Queued", CANCEL, marks=pytest.mark.soak),
        pytest.param("paused", DROP, marks=pytest.mark.soak),
        pytest.param("Queued", DROP, marks=pytest.mark.soak),
        pytest.param("Creating", DROP, marks=pytest.mark.soak),
        pytest.param("paused", CANCEL, marks=pytest.mark.soak),
        pytest.param("Created", CANCEL, marks=pytest.mark.soak),
    ],
)
def test_nothing_is_left(service: Service, state: str, end: str) -> None:
    """I9: when the answer is there, everything else is gone."""
    service.run("CREATE TABLE history (v int PRIMARY KEY)")
    service.run(f"INSERT INTO history VALUES {', '.join(f'({v})' for v in range(2_000))}")
    if state == "Queued":
        create(service, "first", 0)
    until(lambda: no_staging_tables(service), what="nothing is staged")
    before = footprint(service)
    job = bring(service, state)
    assert footprint(service) != before
    ended = service.run(end.format(job=job))
    if (state, end) == ("Created", CANCEL):
        assert ended["rows"] == [], "it was not being created any more"
        service.run(DROP)
    assert footprint(service) == before
    if state == "paused":
        service.mutate({"type": "resume"})


def test_nothing_is_left_of_a_table_and_of_what_was_staged_for_it(service: Service) -> None:
    """I9: the staged rows go by themselves once their statement is answered."""
    until(lambda: no_staging_tables(service), what="nothing is staged")
    before = footprint(service)
    service.run("CREATE TABLE history (v int PRIMARY KEY)")
    service.run("INSERT INTO history SELECT * FROM generate_series(1, 5000)")
    service.run("DROP TABLE history")
    until(lambda: no_staging_tables(service), what="nothing is staged")
    assert footprint(service) == before


def no_staging_tables(service: Service) -> bool:
    return service.stored("select count(*) from pg_tables where schemaname = 'stage'") == [(0,)]


@pytest.mark.soak
@pytest.mark.arrangement
def test_nothing_is_left_of_what_is_dropped_with_no_worker_alive(workerless: Service) -> None:
    """Scenario 54, I9: a created and two creating views, after the service was started again."""
    service = workerless
    service.run("ALTER SYSTEM SET max_concurrent_creating_streaming_jobs = 0")
    with ScriptedWorker(service, WorkerId("the-worker")) as worker:
        with Repeating(lambda _: worker.pass_one()):
            service.run("CREATE TABLE history (v int PRIMARY KEY)")
            service.flush()
        before = footprint(service)
        calls = [add(service, worker, name) for name in ("created", "cancelled", "dropped")]
        with Repeating(lambda _: worker.pass_one()):
            assert [call.result()["tag"] for call in calls] == ["CREATE_MATERIALIZED_VIEW"] * 3
            service.flush()
    job = service.job("cancelled")
    service.stop()
    service.start(ready=False)
    until(service.leads, what=service.log_tail)
    service.expire("worker")
    assert service.workers() == []
    states = {name: service.state(service.job(name)) for name in ("created", "cancelled", "dropped")}
    assert states == {"created": "Created", "cancelled": "Creating", "dropped": "Creating"}
    assert service.sql(f"CANCEL JOBS {job}") == [[job]]
    service.run("DROP MATERIALIZED VIEW dropped")
    service.run("DROP MATERIALIZED VIEW created")
    assert footprint(service) == before


def add(service: Service, worker: ScriptedWorker, name: str) -> "Future[dict[str, Any]]":
    """Create a view in the background; its worker says that it is `created`, or that it has begun."""
    call = service.later(VIEW.format(name=name, limit=0), background_ddl="true")
    barrier, plan = worker.until_added()
    scan = scan_of(plan)
    said = [reported(scan, actor.id, 0, finished=name == "created") for actor in scan.actors]
    assert worker.post(worker.collected(barrier, *said)) == 204
    return call
