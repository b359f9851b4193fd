"""Snapshot backfill with real processes: a graph of its own, which nobody waits for and everybody reaches."""

import psycopg
import pytest

from tests.support.service import Service
from tests.support.waiting import until

pytestmark = pytest.mark.e2e

ROWS = 3_000
QUERY = "SELECT id, v + 1 AS w FROM history WHERE v >= 0"
AT_THE_FENCE = """
select count(*) from pg_stat_activity where application_name ~ '^tidefill:{graph}:[0-9]+$'
  and wait_event_type = 'Lock' and query like '%hold_generation%'
"""


def created_from(service: Service, limit: int) -> int:
    """Start a snapshot job in the background; return it."""
    service.run("CREATE TABLE history (id int PRIMARY KEY, v int)")
    service.run(f"INSERT INTO history SELECT g, g FROM generate_series(1, {ROWS}) g")
    create = f"CREATE MATERIALIZED VIEW copied WITH (backfill_rate_limit = {limit}) AS {QUERY}"
    service.run(create, background_ddl="true", streaming_parallelism="1")
    return service.job("copied")


def graphs(service: Service) -> list[int]:
    """Return the graphs of snapshot jobs."""
    return [graph for (graph,) in service.stored("select id from tidefill.graph where id <> 1 order by 1")]


def figures(service: Service, name: str) -> dict[str, float]:
    """Return what a page of metrics says of one, by its labels."""
    found = [line for line in service.http.get("/metrics").text.splitlines() if line.startswith(f"{name}{{")]
    return {line[len(name) : line.rindex(" ")]: float(line[line.rindex(" ") :]) for line in found}


def test_a_job_that_is_stuck_delays_nobody(service: Service) -> None:
    """I10: its writers hang, and statements, barriers and flushes of the database graph go on."""
    job = created_from(service, 200)
    service.until_rows(job, 0)
    (graph,) = graphs(service)
    with psycopg.connect(service.database_url()) as holding:
        holding.execute("select from state.fence where graph = %s for update", [graph])
        until(lambda: service.stored(AT_THE_FENCE.format(graph=graph)) != [(0,)] or None, what="its writer waits")
        rows, published = service.rows(job), service.published()
        for value in (1, 2, 3):
            assert service.run(f"UPDATE history SET v = v + {value} WHERE id <= 100")["tag"] == "UPDATE 100"
            service.flush()
        assert service.published() > published
        assert service.rows(job) == rows
    service.limit(job, None)
    service.until_created("copied")
    assert service.assert_equal("copied", QUERY) == ROWS
    assert graphs(service) == []


@pytest.mark.soak
def test_pause_limit_and_status_reach_it(service: Service) -> None:
    """Scenarios 24, 62 and 77; I4: it is created while everything is paused."""
    service.mutate({"type": "pause"})
    job = created_from(service, 100)
    for _ in range(3):
        service.flush()
    (progress,) = service.progress()
    assert (progress["backfill_type"], progress["rows"], progress["waiting_for"]) == ("SNAPSHOT_BACKFILL", 0, "paused")
    assert progress["progress"] == f"Snapshot [0.00% (0/{ROWS})]"
    assert service.value("SELECT backfill_type FROM rw_catalog.rw_backfill_info") == "SNAPSHOT_BACKFILL"
    assert int(service.value("SELECT backfill_epoch FROM rw_catalog.rw_backfill_info")) > 0
    refused = service.refused("ALTER MATERIALIZED VIEW copied SET PARALLELISM = 2")
    assert "blocked by creating unreschedulable backfill jobs" in str(refused)
    service.mutate({"type": "resume"})
    rows = service.until_rows(job, 100)
    stopped = service.limit(job, 0)
    held = service.rows(job)
    assert rows <= held < ROWS
    service.run("UPDATE history SET v = v + 1")
    service.run("DELETE FROM history WHERE id > 2900")
    service.flush()
    assert service.rows(job) == held
    copied = service.get("/v1/relations/copied")["id"]
    table = f"state.t_{copied}"
    assert service.stored(f"select count(*) from {table} where _from >= {stopped}") == [(0,)]
    service.verified("copied")
    stages = figures(service, "stream_snapshot_backfill_consume_snapshot_row_count")
    assert sum(rows for labels, rows in stages.items() if 'stage="consuming_snapshot"' in labels) == held
    assert figures(service, "meta_snapshot_backfill_upstream_lag")[f'{{table_id="{copied}"}}'] > 0
    timed = figures(service, "meta_snapshot_backfill_barrier_duration_seconds_count")
    assert timed[f'{{barrier_type="consuming_snapshot",table_id="{copied}"}}'] > 0
    joined = (
        "SELECT m.name FROM rw_catalog.rw_ddl_progress p JOIN rw_catalog.rw_materialized_views m ON m.id = p.ddl_id"
    )
    assert service.value(joined) == "copied"
    ended = f"select count(*) from state.t_{service.get('/v1/relations/history')['id']} where _to < {2**63 - 1}"
    assert service.stored(ended) == [(ROWS + 100,)], "the log since its snapshot is kept, however old"
    service.limit(job, None)
    service.until_created("copied")
    assert service.assert_equal("copied", QUERY) == 2_900
    until(lambda: service.stored(ended) == [(0,)] or None, what="the log is vacuumed once nobody needs it")
