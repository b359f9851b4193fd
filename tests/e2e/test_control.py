"""Mutations act exactly at their epoch and outlive the worker (I4); limits delay history only (I5)."""

from datetime import datetime

import pytest

from service.protocol.relation import ALIVE
from tests.support.service import Service

pytestmark = [pytest.mark.e2e, pytest.mark.arrangement]

LIMIT = 100
"""Rows per second of the one actor."""


def backfill(service: Service, *, rows: int, limit: int) -> int:
    """Start a view over a table of so many rows, with one actor; return its job."""
    service.run("CREATE TABLE history (id int PRIMARY KEY, v int)")
    service.run(f"INSERT INTO history SELECT g, 0 FROM generate_series(1, {rows}) g")
    create = f"CREATE MATERIALIZED VIEW copied WITH (backfill_rate_limit = {limit}) AS SELECT id, v FROM history"
    service.run(create, background_ddl="true", streaming_parallelism="1")
    return service.job("copied")


def copied(service: Service) -> str:
    """Return the name of the table that stores the view."""
    return f"state.t_{service.get('/v1/relations/copied')['id']}"


@pytest.mark.soak
def test_a_pause_and_a_limit_are_exact_and_outlive_the_worker(service: Service) -> None:
    """I4: from the pause's epoch to the resume's not one row of history; never more than the limit allows."""
    # Epochs must fit their interval: what a bucket may hold would keep longer ones below the limit by itself.
    service.run("ALTER SYSTEM SET barrier_interval_ms = 1000")
    job = backfill(service, rows=5_000, limit=0)
    (fragment,) = (one["id"] for one in service.detail(job)["fragments"] if one["scan_type"])
    began = service.mutate({"type": "throttle", "fragments": {str(fragment): LIMIT}})
    service.until_rows(job, LIMIT)
    paused = service.mutate({"type": "pause"})
    rows, generation = service.rows(job), service.graph()["generation"]
    service.kill_worker()
    service.until_recovered(generation)
    for _ in range(3):
        service.flush()
    assert (service.graph()["paused"], service.rows(job)) == (True, rows)
    resumed = service.mutate({"type": "resume"})
    service.until_rows(job, rows + LIMIT)
    # The table does not change, so that every row of the view was read as history, in the epoch that made it.
    read = dict(service.stored(f"select _from, count(*) from {copied(service)} group by _from"))
    assert [epoch for epoch in read if epoch < began or paused <= epoch < resumed] == []
    assert_limited(service, read, began)
    service.limit(job, None)
    service.until_created("copied")
    assert service.assert_equal("copied", "SELECT id, v FROM history") == 5_000


def assert_limited(service: Service, read: dict[int, int], began: int) -> None:
    """In every window of whole epochs: what the limit gives from the first one's start to the last one's end, and what
    may have been saved up before, which is an interval's worth and less than a page.
    """
    bucket = LIMIT * 1.0
    barriers = [barrier for barrier in service.barriers(after=began - 1) if barrier["committed_at"] is not None]
    assert seconds(barriers[0]["injected_at"], barriers[-1]["collected_at"]) > 2, "too short to tell"
    for first, start in enumerate(barriers):
        rows = 0
        for barrier in barriers[first:]:
            rows += read.get(int(barrier["epoch"]), 0)
            allowed = LIMIT * seconds(start["injected_at"], barrier["collected_at"]) + bucket
            assert rows <= allowed, (start["epoch"], barrier["epoch"], rows, allowed)


def seconds(first: str, last: str) -> float:
    return (datetime.fromisoformat(last) - datetime.fromisoformat(first)).total_seconds()


def test_live_changes_and_barriers_go_on_while_history_stands_still(service: Service) -> None:
    """I5: with a limit of 0 what is backfilled already follows the table, and nothing more is read."""
    job = backfill(service, rows=1_000, limit=LIMIT)
    service.until_rows(job, 50)
    stopped = service.limit(job, 0)
    rows, table = service.rows(job), copied(service)
    assert 50 < rows < 1_000
    for value in (1, 2, 3):
        assert service.run(f"UPDATE history SET v = {value}")["tag"] == "UPDATE 1000"
        service.verified("copied")
        alive = f"select v, count(*) from {table} where _to = {ALIVE} group by v"
        assert service.stored(alive) == [(value, rows)]
    service.run("DELETE FROM history WHERE id % 2 = 0")
    ((left,),) = service.stored(f"select count(*) from {table} where _to = {ALIVE} and id % 2 = 1")
    assert service.stored(f"select count(*) from {table} where _to = {ALIVE}") == [(left,)]
    service.flush()
    since = [barrier for barrier in service.barriers(after=stopped) if barrier["committed_at"] is not None]
    assert len(since) >= 5
    assert (service.rows(job), service.state(job)) == (rows, "Creating")
    service.limit(job, None)
    service.until_created("copied")
    assert service.assert_equal("copied", "SELECT id, v FROM history") == 500
