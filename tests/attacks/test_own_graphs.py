"""A created view whose stage reads an input whole for each change has a graph of its own, and stops nobody (I13)."""

import pytest

from tests.support.bystander import Bystander
from tests.support.service import ProblemError, Service
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

QUERY = "SELECT id, sum(v) OVER (ORDER BY id) AS s, rank() OVER (ORDER BY v DESC, id) AS r FROM hf"


def prepare(service: Service) -> int:
    """Create a table of 300 rows and the view over it. Return the view's job."""
    service.run("ALTER SYSTEM SET own_graph_rows = 100")
    service.run("CREATE TABLE hf (id bigint PRIMARY KEY, v bigint)")
    service.run(f"INSERT INTO hf VALUES {', '.join(f'({number}, {number % 7})' for number in range(300))}")
    made = service.run(f"CREATE MATERIALIZED VIEW heavy AS {QUERY}")
    assert "own_graph_rows (100)" in " ".join(made["notices"])
    return service.job("heavy")


def same(service: Service, view: str = "heavy", query: str = QUERY) -> None:
    """Wait until a view shows what its query answers."""
    until(lambda: sorted(service.sql(f"SELECT * FROM {view}")) == sorted(service.sql(query)), what="the view follows")


def test_s2_a_view_that_reads_its_input_whole_stops_nobody(service: Service, bystander: Bystander) -> None:
    job = prepare(service)
    same(service)
    ((reason, lag),) = service.stored("select reason, lag_seconds from rw_catalog.rw_own_graphs")
    assert "reads all rows of hf (300)" in reason
    assert lag >= 0
    before = service.sql("SELECT s FROM heavy WHERE id = 1")
    waiting = f"select 1 from pg_locks where relation = 'state.t_{job}'::regclass and not granted"
    with service.store() as store, bystander.unharmed():
        store.execute(f"begin; lock table state.t_{job} in share mode".encode())
        service.run("UPDATE hf SET v = v + 1 WHERE id = 1")
        until(lambda: service.stored(waiting), what="its epoch waits")
        begun = bystander.written
        until(lambda: bystander.written > begun + 3, what="others write")
        assert service.sql("SELECT s FROM heavy WHERE id = 1") == before
        store.execute("rollback")
    same(service)
    service.verified("heavy")


def test_s2_a_job_with_a_graph_of_its_own_lives_on(service: Service) -> None:
    """It follows through a recovery and a pause, others read it, and it leaves nothing when it is dropped."""
    prepare(service)
    ((graph,),) = service.stored("select graph from rw_catalog.rw_own_graphs")
    service.run("CREATE MATERIALIZED VIEW above AS SELECT r, count(*) AS n FROM heavy WHERE s > 10 GROUP BY r")
    assert len(service.stored("select 1 from rw_catalog.rw_own_graphs")) == 2
    service.kill_worker()
    service.run("UPDATE hf SET v = 100 WHERE id < 50")
    same(service)
    same(service, "above", "SELECT r, count(*) AS n FROM heavy WHERE s > 10 GROUP BY r")
    service.post("/v1/mutations", {"type": "pause"})
    service.run("DELETE FROM hf WHERE id > 200")
    same(service)
    service.post("/v1/mutations", {"type": "resume"})
    service.run("RECOVER")
    service.run("INSERT INTO hf VALUES (1000, 5)")
    same(service)
    same(service, "above", "SELECT r, count(*) AS n FROM heavy WHERE s > 10 GROUP BY r")
    with pytest.raises(ProblemError, match="streaming_use_snapshot_backfill = true"):
        service.run(f"CREATE MATERIALIZED VIEW no AS {QUERY}", streaming_use_snapshot_backfill="false")
    service.run("DROP MATERIALIZED VIEW heavy CASCADE")
    assert service.stored("select id from tidefill.graph where id <> 1") == []
    assert service.stored(f"select graph from state.published where graph = {graph}") == []
    service.run("DROP TABLE hf")
