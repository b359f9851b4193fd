"""A snapshot job with a worker of its own: a second process, which dies and is replaced, and nobody else notices."""

import os
import signal
from typing import Any

import pytest

from tests.support.processes import processes, session_of, state_of
from tests.support.service import Service
from tests.support.waiting import until

pytestmark = pytest.mark.e2e

ROWS = 3_000
QUERY = "SELECT id, v + 1 AS w FROM history WHERE v >= 0"
OWN = "cloud.serverless_backfill_enabled"


def created(service: Service, limit: int) -> int:
    """Start a serverless job in the background; return it."""
    service.run("CREATE TABLE history (id int PRIMARY KEY, v int)")
    service.run(f"INSERT INTO history SELECT g, g FROM generate_series(1, {ROWS}) g")
    create = f"CREATE MATERIALIZED VIEW copied WITH ({OWN} = true, backfill_rate_limit = {limit}) AS {QUERY}"
    answer = service.run(create, background_ddl="true", streaming_parallelism="1")
    assert "worker of its own" in answer["notices"][0]
    return service.job("copied")


def own_workers(service: Service) -> list[dict[str, Any]]:
    """Return the workers that live and serve one graph alone."""
    return [worker for worker in service.workers() if worker["graph"] != 1]


def own_worker(service: Service, *, besides: str = "") -> dict[str, Any]:
    """Wait for the worker of a serverless job, a new one where there was one; return it."""
    return until(
        lambda: next((one for one in own_workers(service) if one["worker"] != besides), None),
        what=lambda: f"a worker of its own: {service.progress()}",
    )


def processes_of(pid: int) -> list[int]:
    """Return the processes of a worker: driver, JVM and the tasks' own."""
    return [one for one in processes() if session_of(one) == pid and state_of(one) not in {"Z", "X"}]


@pytest.mark.soak
def test_it_is_created_beside_all_others_though_its_worker_is_killed(service: Service) -> None:
    """I3, I9, I10: the database graph makes its barriers, in the same generation, by the same worker."""
    before, shared = service.graph(), service.worker_pid()
    job = created(service, 300)
    (progress,) = service.progress()
    assert progress["is_serverless_backfill"]
    assert service.value("SELECT is_serverless_backfill FROM rw_catalog.rw_ddl_progress") is True
    first = own_worker(service)
    assert first["pid"] not in {shared, os.getpid()}
    (graph,) = (graph for (graph,) in service.stored("select id from tidefill.graph where id <> 1"))
    assert first["graph"] == graph
    rows = service.until_rows(job, 0)
    assert service.stored(f"select worker from tidefill.graph where id = {graph}") == [(first["worker"],)]
    os.kill(first["pid"], signal.SIGKILL)
    until(lambda: service.detail(job)["job"]["recoveries"] >= 1, what=lambda: service.detail(job)["job"])
    published = service.published()
    assert service.run("UPDATE history SET v = v + 1 WHERE id <= 100")["tag"] == "UPDATE 100"
    service.flush()
    assert service.published() > published
    assert processes_of(first["pid"]) == [], "its JVM went with it"
    second = own_worker(service, besides=first["worker"])
    assert second["graph"] == graph
    assert service.until_rows(job, rows) < ROWS, "it goes on from what was committed"
    service.limit(job, None)
    service.until_created("copied")
    assert service.assert_equal("copied", QUERY) == ROWS
    until(lambda: not processes_of(second["pid"]), what="its worker is stopped")
    after = service.graph()
    assert (after["generation"], after["recoveries"]) == (before["generation"], before["recoveries"])
    told = f"select kind from tidefill.event where facts ->> 'graph' = '{graph}' and kind like 'worker.%' order by id"
    expected = [(f"worker.{kind}",) for kind in ("registered", "lost", "registered", "stopped")]
    until(lambda: service.stored(told) == expected, what=lambda: service.stored(told))
    assert service.worker_pid() == shared


@pytest.mark.soak
def test_nothing_is_left_of_one_that_is_cancelled_half_way(service: Service) -> None:
    """I9: when the answer is there, its worker's processes are gone."""
    job = created(service, 100)
    own = own_worker(service)
    service.until_rows(job, 0)
    assert processes_of(own["pid"]) != []
    homes = service.data_dir / "workers"
    assert (homes / own["worker"]).is_dir(), "it goes with the worker"
    assert service.sql(f"CANCEL JOBS {job}") == [[job]]
    assert processes_of(own["pid"]) == []
    assert own_workers(service) == []
    assert service.stored("select id from tidefill.graph where id <> 1") == []
    assert [home.name for home in homes.iterdir()] == [worker["worker"] for worker in service.workers()]


def test_it_is_refused_where_it_makes_no_sense(service: Service) -> None:
    service.run("CREATE TABLE history (id int PRIMARY KEY, v int)")
    create = f"CREATE MATERIALIZED VIEW copied AS {QUERY}"
    off = {"streaming_use_snapshot_backfill": "false", "enable_serverless_backfill": "true"}
    assert "only a Snapshot backfill has" in str(service.refused(create, **off))
    plan = service.sql(f"EXPLAIN {create}", enable_serverless_backfill="true")
    assert plan[-1] == ["Backfill worker: its own, until the job merges"]
    shared = create.replace("copied", f"copied WITH ({OWN} = false)")
    plan = service.sql(f"EXPLAIN {shared}", enable_serverless_backfill="true")
    assert plan[-1] == ["Backfill order: NONE"]
