"""Strategies and logical views with real processes: NoShuffle under everything that may happen to it."""

from typing import Any

import pytest

from tests.support.service import Service

pytestmark = pytest.mark.e2e

ROWS = 12_000
NO_SHUFFLE = {"streaming_use_snapshot_backfill": "off", "streaming_use_arrangement_backfill": "off"}
BLOCKED = "because it is blocked by creating unreschedulable backfill jobs"


def scan_of(service: Service, job: int) -> dict[str, Any]:
    """Return the only scan of a job, whose actors stand at one position each."""
    (scan,) = (one for one in service.detail(job)["fragments"] if one["scan_type"])
    assert scan["scan_type"] == "BACKFILL"
    assert all(actor["positions"]["in_progress"] <= 1 for actor in scan["actors"]), scan["actors"]
    return scan


def write(service: Service, step: int) -> None:
    """Rows come, go, change and move their key, before and behind the position, most of it in one epoch."""
    statements = (
        f"UPDATE history SET v = v + 1 WHERE id % {step + 5} = 0",
        f"UPDATE history SET id = -id WHERE id % 500 = {step}",
        f"DELETE FROM history WHERE id % 700 = {step + 1}",
        f"INSERT INTO history SELECT g, {step} FROM generate_series({ROWS + step * 50}, {ROWS + step * 70}) g",
    )
    for answer in [service.later(statement) for statement in statements]:
        answer.result()


@pytest.mark.soak
def test_a_no_shuffle_view_is_paused_throttled_and_killed_while_its_table_changes(service: Service) -> None:
    """I1, I3, I4; its parallelism is that of its upstream and stays so."""
    service.run("CREATE TABLE history (id int PRIMARY KEY, v int)")
    service.run(f"INSERT INTO history SELECT g, g FROM generate_series(1, {ROWS}) g")
    query = "SELECT id, v, v + 1 AS w FROM history WHERE v % 10 <> 3"
    create = f"CREATE MATERIALIZED VIEW copied WITH (backfill_rate_limit = 1000) AS {query}"
    refused = service.refused(create, streaming_parallelism="2", **NO_SHUFFLE)
    assert "that of history is 1, not 2" in str(refused)
    plan = [line for (line,) in service.sql(f"EXPLAIN {create}", **NO_SHUFFLE)]
    assert any("table: history, type: BACKFILL, parallelism: 1, pages: through Spark" in line for line in plan)
    service.run(create, background_ddl="true", **NO_SHUFFLE)
    job = service.job("copied")
    service.until_rows(job, 300)
    write(service, 0)
    service.verified("copied")
    paused = service.mutate({"type": "pause"})
    scan = scan_of(service, job)
    assert (len(scan["actors"]), scan["finished"], scan["positions"]["in_progress"]) == (1, False, 1)
    generation = service.graph()["generation"]
    service.kill_worker()
    service.until_recovered(generation)
    write(service, 1)
    assert service.flush() > paused
    assert service.rows(job) == scan["rows"], "a pause outlives the worker, and no row is read twice"
    service.verified("copied")
    assert BLOCKED in str(service.refused("ALTER MATERIALIZED VIEW copied SET BACKFILL_PARALLELISM = 2"))
    service.mutate({"type": "resume"})
    service.until_rows(job, scan["rows"] + 300)
    write(service, 2)
    scan_of(service, job)
    service.limit(job, None)
    service.until_created("copied")
    write(service, 3)
    assert service.assert_equal("copied", query) > ROWS / 2
    assert service.sql("SELECT DISTINCT backfill_type FROM rw_catalog.rw_backfill_info") == [
        ["ARRANGEMENT_OR_NO_SHUFFLE"]
    ]


@pytest.mark.soak
def test_a_no_shuffle_view_has_the_actors_of_the_view_that_it_reads(service: Service) -> None:
    service.run("CREATE TABLE history (id int PRIMARY KEY, v int)")
    service.run("INSERT INTO history SELECT g, g FROM generate_series(1, 3000) g")
    service.run("CREATE MATERIALIZED VIEW spread AS SELECT id, v FROM history", streaming_parallelism="3")
    create = "CREATE MATERIALIZED VIEW tied WITH (backfill_rate_limit = 100) AS SELECT v, id FROM spread WHERE v > 9"
    service.run(create, background_ddl="true", **NO_SHUFFLE)
    job = service.job("tied")
    service.until_rows(job, 200)
    (written,) = (one for one in service.detail(service.job("spread"))["fragments"] if one["scan_type"])
    scan = scan_of(service, job)
    assert [actor["vnodes"] for actor in scan["actors"]] == [actor["vnodes"] for actor in written["actors"]]
    assert len(scan["actors"]) == 3
    assert BLOCKED in str(service.refused("ALTER MATERIALIZED VIEW spread SET PARALLELISM = 2"))
    service.limit(job, None)
    service.until_created("tied")
    assert "tied its actors: tied" in str(service.refused("ALTER MATERIALIZED VIEW spread SET PARALLELISM = 2"))
    service.run("DELETE FROM history WHERE id % 5 = 0")
    service.flush()
    service.assert_equal("tied", "SELECT v, id FROM spread WHERE v > 9")
    service.run("DROP MATERIALIZED VIEW tied")
    service.run("ALTER MATERIALIZED VIEW spread SET PARALLELISM = 2")
    assert service.assert_equal("spread", "SELECT id, v FROM history") == 2_400


@pytest.mark.soak
def test_a_logical_view_is_read_and_stands_in_the_query_of_a_materialized_one(service: Service) -> None:
    """I1, I2: what is over it follows what is under it, through as many views as there are."""
    service.run("CREATE TABLE orders (id int PRIMARY KEY, amount int)")
    service.run("CREATE TABLE named (k text PRIMARY KEY, id int, amount smallint)")
    service.run("INSERT INTO orders SELECT g, g % 1000 FROM generate_series(1, 3000) g")
    service.run("INSERT INTO named SELECT 'k' || g, g, g % 100 FROM generate_series(1, 1000) g")
    service.run(
        "CREATE VIEW amounts AS SELECT id, amount, 'order' AS origin FROM orders WHERE amount > 10"
        " UNION ALL SELECT id, amount, k FROM named"
    )
    service.run("CREATE VIEW twice AS SELECT id AS number, amount * 2 AS amount, origin || '!' AS origin FROM amounts")
    query = "SELECT number, amount / 3 AS third, origin FROM twice WHERE amount < 900 AND origin <> 'k7!'"
    plan = "".join(line for (line,) in service.sql(f"EXPLAIN CREATE MATERIALIZED VIEW m AS {query}"))
    assert plan.count("operator: projection") == 2
    assert service.sql("SHOW MATERIALIZED VIEWS") == []
    limit = "WITH (backfill_rate_limit = 300)"
    service.run(f"CREATE MATERIALIZED VIEW m {limit} AS {query}", background_ddl="true", streaming_parallelism="1")
    job = service.job("m")
    service.until_rows(job, 200)
    service.run("UPDATE orders SET amount = amount + 7 WHERE id % 3 = 0")
    service.run("UPDATE named SET k = 'moved' || id, amount = 9 WHERE id % 9 = 0")
    service.verified("m")
    service.limit(job, None)
    service.until_created("m")
    service.run("DELETE FROM orders WHERE id % 7 = 0")
    assert service.assert_equal("m", query) > 1_000
    assert service.value("SELECT count(*) FROM twice WHERE origin = 'moved9!'") == 1
    assert "depend on it: materialized view m" in str(service.refused("DROP VIEW twice"))
    assert "depend on it" in str(service.refused("DROP TABLE named"))
    service.run("DROP VIEW amounts CASCADE")
    assert service.sql("SELECT name FROM rw_catalog.rw_views") == []
    assert [item["name"] for item in service.get("/v1/relations")["items"]] == ["orders", "named"]
    service.run("DROP TABLE named")
