"""A created view whose stage reads an input whole for each change has a graph of its own, and stops nobody (I13)."""

import pytest

from tests.support.bystander import Bystander
from tests.support.service import ProblemError, Service
from tests.support.waiting import until

pytestmark = pytest.mark.e2e

QUERY = "SELECT id, sum(v) OVER (ORDER BY id) AS s, rank() OVER (ORDER BY v DESC, id) AS r FROM hf"


_GRAPHS = (
    "select j.id, j.state, j.graph, j.own_graph, g.status, g.last_error, r.shown, r.held_back, s.consumed"
    " from tidefill.job j join tidefill.relation r on r.id = j.relation left join tidefill.graph g on g.id = j.graph"
    " left join tidefill.snapshot_backfill s on s.job = j.id"
)
ABOVE = "SELECT r, count(*) AS n FROM heavy WHERE s > 10 GROUP BY r"


def filled(service: Service) -> None:
    """Create a table of 300 rows."""
    service.run("CREATE TABLE hf (id bigint PRIMARY KEY, v bigint)")
    service.run(f"INSERT INTO hf VALUES {', '.join(f'({number}, {number % 7})' for number in range(300))}")


def prepare(service: Service) -> int:
    """Create a table of 300 rows and the view over it. Return the view's job."""
    service.run("ALTER SYSTEM SET own_graph_rows = 100")
    filled(service)
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
        until(lambda: bool(service.stored(waiting)), what="its epoch waits")
        begun = bystander.written
        until(lambda: bystander.written > begun + 3, what="others write")
        assert service.sql("SELECT s FROM heavy WHERE id = 1") == before
        store.execute("rollback")
    same(service)
    service.verified("heavy")


@pytest.mark.soak
def test_s2_a_job_with_a_graph_of_its_own_lives_on(service: Service) -> None:
    """It follows through a recovery and a pause, others read it, and it leaves nothing when it is dropped."""
    prepare(service)
    ((graph,),) = service.stored("select graph from rw_catalog.rw_own_graphs")
    service.run(f"CREATE MATERIALIZED VIEW above AS {ABOVE}")
    assert len(service.stored("select 1 from rw_catalog.rw_own_graphs")) == 2
    service.kill_worker()
    service.run("UPDATE hf SET v = 100 WHERE id < 50")
    same(service)
    same(service, "above", ABOVE)
    service.post("/v1/mutations", {"type": "pause"})
    service.run("DELETE FROM hf WHERE id > 200")
    same(service)
    service.post("/v1/mutations", {"type": "resume"})
    service.run("RECOVER")
    service.run("INSERT INTO hf VALUES (1000, 5)")
    same(service)
    same(service, "above", ABOVE)
    with pytest.raises(ProblemError, match="streaming_use_snapshot_backfill = true"):
        service.run(f"CREATE MATERIALIZED VIEW no AS {QUERY}", streaming_use_snapshot_backfill="false")
    service.run("DROP MATERIALIZED VIEW heavy CASCADE")
    assert service.stored("select id from tidefill.graph where id <> 1") == []
    assert service.stored(f"select graph from state.published where graph = {graph}") == []
    service.run("DROP TABLE hf")


@pytest.mark.soak
def test_s2_a_view_whose_changes_take_too_long_leaves_the_graph_of_the_others(service: Service) -> None:
    """It and what reads it go on from the committed epoch, in graphs of their own, and lose nothing."""
    service.run("ALTER SYSTEM SET stage_timeout_ms = 1000")
    filled(service)
    service.run(f"CREATE MATERIALIZED VIEW heavy AS {QUERY}")
    service.run(f"CREATE MATERIALIZED VIEW above AS {ABOVE}")
    service.run("CREATE MATERIALIZED VIEW beside AS SELECT id, v + 1 AS w FROM hf")
    job = service.job("heavy")
    service.run("RECOVER")
    assert service.stored("select 1 from rw_catalog.rw_own_graphs") == []
    left = f"select 1 from tidefill.job where id = {job} and own_graph like '%stage_timeout_ms (1000)%'"
    with service.store() as store, service.store() as reader:
        reader.execute(b"begin; select 1 from public.heavy limit 1")
        store.execute(f"begin; lock table state.t_{job} in share mode".encode())
        updated = service.later("UPDATE hf SET v = v + 1 WHERE id < 100")
        until(lambda: bool(service.stored(left)), what=lambda: service.stored(_GRAPHS))
        store.execute("rollback")
        updated.result()
        until(lambda: "heavy cannot be read in its own graph" in service.log.read_text(), what="only heavy waits")
        same(service, "beside", "SELECT id, v + 1 AS w FROM hf")
        reader.execute("rollback")
    until(
        lambda: len(service.stored("select 1 from rw_catalog.rw_own_graphs")) == 2, what=lambda: service.stored(_GRAPHS)
    )
    same(service)
    same(service, "above", ABOVE)
    same(service, "beside", "SELECT id, v + 1 AS w FROM hf")
    service.kill_worker()
    service.run("DELETE FROM hf WHERE id > 250")
    same(service)
    same(service, "above", ABOVE)
    service.verified("heavy")
    assert service.state(job) == "Created"
    service.run("DROP MATERIALIZED VIEW heavy CASCADE")
    until(lambda: service.stored("select id from tidefill.graph where id <> 1") == [], what="both graphs are gone")


@pytest.mark.soak
def test_a1_views_that_hold_up_others_together_leave_their_graph(service: Service) -> None:
    """Each of them is nearly free for one view, and goes on being so."""
    service.run("CREATE TABLE many (id int PRIMARY KEY, t text, n int)")
    service.run("INSERT INTO many VALUES (1, 'abc', 1)")
    for letter in "abcdef":
        query = f"SELECT n, count(*) AS c, max(length(repeat(t || '{letter}', n))) AS l FROM many GROUP BY n"
        service.run(f"CREATE MATERIALIZED VIEW dear_{letter} AS {query}")
    left = "select 1 from tidefill.job where own_graph like '%took longer than stage_timeout_ms%'"
    length = 10_000_000
    while not service.stored(left):
        service.run(f"UPDATE many SET n = {length} WHERE id = 1")
        length = min(length * 5 // 4, 200_000_000)
    same(service, "dear_a", "SELECT n, count(*) AS c, max(length(repeat(t || 'a', n))) AS l FROM many GROUP BY n")


def test_s7_a_view_that_grows_without_end_is_given_up_with_the_reason(service: Service) -> None:
    filled(service)
    service.run("ALTER SYSTEM SET creating_rows_max = 1000")
    service.run("CREATE MATERIALIZED VIEW small AS SELECT id FROM hf")
    crossed = "SELECT a.id AS a, b.id AS b FROM hf a CROSS JOIN hf b"
    refused = service.refused(f"CREATE MATERIALIZED VIEW crossed WITH (backfill_rate_limit = 10) AS {crossed}")
    assert "creating_rows_max is 1000" in str(refused)
    assert service.sql("SELECT count(*) FROM small") == [[300]]
    until(lambda: service.stored("select id from tidefill.graph where id <> 1") == [], what="its graph is gone")


@pytest.mark.parametrize(
    ("query", "created", "change", "grown"),
    [
        ("SELECT a.id AS a, b.id AS b FROM hf a JOIN hf b ON a.v = b.v", 12_858, "UPDATE hf SET v = 0", 90_000),
        ("SELECT a.id AS a, b.id AS b FROM hf a CROSS JOIN hf b", 90_000, "INSERT INTO hf VALUES (300, 0)", 90_601),
    ],
)
@pytest.mark.soak
def test_n8_a_created_view_that_grows_without_end_fails_alone_with_the_reason(
    service: Service, bystander: Bystander, query: str, created: int, change: str, grown: int
) -> None:
    """Also one with a graph of its own. It can be read as it is, and no recovery delays the others."""
    service.run("ALTER SYSTEM SET own_graph_rows = 100")
    service.run(f"ALTER SYSTEM SET view_rows_max = {created}")
    filled(service)
    service.run("CREATE MATERIALIZED VIEW small AS SELECT id FROM hf")
    service.run(f"CREATE MATERIALIZED VIEW growing AS {query}")
    job = service.job("growing")
    assert service.sql("SELECT count(*) FROM growing") == [[created]]
    with bystander.unharmed():
        service.run(change)
        until(lambda: service.state(job) == "Failed", what=lambda: service.detail(job))
        assert f"{grown} rows, and view_rows_max is {created}" in service.detail(job)["job"]["error"]
        service.run("INSERT INTO hf VALUES (1000, 0)")
        assert service.sql("SELECT count(*) FROM growing") == [[grown]]
        same(service, "small", "SELECT id FROM hf")
    service.run("DROP MATERIALIZED VIEW growing")
    until(lambda: service.stored("select id from tidefill.graph where id <> 1") == [], what="its graph is gone")


@pytest.mark.soak
def test_n4_a_projection_that_takes_too_long_leaves_the_graph_of_the_others(service: Service) -> None:
    """Spark computes it, and a value of its table makes it slow."""
    service.run("ALTER SYSTEM SET stage_timeout_ms = 2000")
    filled(service)
    long = " + ".join(f"length(repeat('{letter}', 1000000 * v::int))" for letter in "abcdefghijkl")
    query = f"SELECT id, {long} AS n FROM hf"
    service.run("UPDATE hf SET v = 0")
    service.run(f"CREATE MATERIALIZED VIEW slow AS {query}")
    service.run("CREATE MATERIALIZED VIEW beside AS SELECT id, v + 1 AS w FROM hf")
    job = service.job("slow")
    # The limit counts from a recovery on.
    service.run("RECOVER")
    updated = service.later("UPDATE hf SET v = 28 + id % 3")
    left = f"select 1 from tidefill.job where id = {job} and own_graph like '%stage_timeout_ms (2000)%'"
    until(lambda: bool(service.stored(left)), what=lambda: service.stored(_GRAPHS))
    updated.result()
    same(service, "beside", "SELECT id, v + 1 AS w FROM hf")
    service.run("UPDATE hf SET v = 0 WHERE id > 3")
    same(service, "slow", query)
    service.run("DROP MATERIALIZED VIEW slow")
    until(lambda: service.stored("select id from tidefill.graph where id <> 1") == [], what="its graph is gone")
