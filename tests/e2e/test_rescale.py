"""Another number of actors in the middle of a backfill: nothing is lost, nothing comes twice (I3, I4, I11)."""

import pytest

from tests.support.service import ProblemError, Service

pytestmark = [pytest.mark.e2e, pytest.mark.arrangement]

ROWS = 20_000
VIEW = "CREATE MATERIALIZED VIEW copied WITH (backfill_rate_limit = 100) AS SELECT id, v, v + 1 AS w FROM history"
QUERY = "SELECT id, v, v + 1 AS w FROM history"


def actors(service: Service, job: int) -> list[int]:
    """Return how many vnodes each actor of the job's scan owns."""
    (scan,) = (one for one in service.detail(job)["fragments"] if one["scan_type"])
    return [sum(last - first + 1 for first, last in actor["vnodes"]) for actor in scan["actors"]]


def progress(service: Service, job: int) -> tuple[int, list[int]]:
    """Return the rows that progress shows and the rows of each actor's positions."""
    detail = service.detail(job)
    (scan,) = (one for one in detail["fragments"] if one["scan_type"])
    return detail["job"]["progress"]["rows"], [actor["positions"]["rows"] for actor in scan["actors"]]


def altered(service: Service, text: str, job: int, *, to: int) -> None:
    """Alter the parallelism of a creating job; it holds when the statement is answered, and no row of it is lost."""
    before = service.rows(job)
    service.run(f"ALTER MATERIALIZED VIEW copied SET {text}")
    assert len(actors(service, job)) == to
    assert sum(actors(service, job)) == 256
    rows, of_actors = progress(service, job)
    assert before <= rows == sum(of_actors)
    service.run(f"UPDATE history SET v = v + 1 WHERE id % {to + 6} = 0")
    service.verified("copied")


@pytest.mark.soak
def test_a_job_is_rescaled_up_and_down_while_it_is_created_and_over_a_kill(service: Service) -> None:
    service.run("CREATE TABLE history (id int PRIMARY KEY, v int)")
    service.run(f"INSERT INTO history SELECT g, g FROM generate_series(1, {ROWS}) g")
    session = {"streaming_parallelism": "4", "streaming_parallelism_for_backfill": "1"}
    service.run(VIEW, background_ddl="true", **session)
    job = service.job("copied")
    service.until_rows(job, 300)
    assert actors(service, job) == [256]
    altered(service, "BACKFILL_PARALLELISM = 5", job, to=5)
    service.until_rows(job, service.rows(job) + 300)
    altered(service, "BACKFILL_PARALLELISM TO 2", job, to=2)
    generation, rows = service.graph()["generation"], service.rows(job)
    service.kill_worker()
    # Deferred or not: the change waits for the recovery to be over, and the kill takes no row back.
    service.run("ALTER MATERIALIZED VIEW copied SET BACKFILL_PARALLELISM TO 7 DEFERRED")
    service.until_recovered(generation)
    service.flush()
    service.flush()
    assert len(actors(service, job)) == 7
    assert service.rows(job) >= rows
    altered(service, "BACKFILL_PARALLELISM TO default", job, to=4)
    altered(service, "BACKFILL_PARALLELISM TO 3", job, to=3)
    assert service.sql("SELECT parallelism FROM rw_catalog.rw_streaming_jobs WHERE name = 'copied'") == [["fixed(3)"]]
    assert service.state(job) == "Creating"
    service.limit(job, None)
    service.until_created("copied")
    service.flush()
    assert len(actors(service, job)) == 4, "the normal parallelism is restored"
    service.run("UPDATE history SET v = v + 1 WHERE id % 3 = 0")
    assert service.assert_equal("copied", QUERY) == ROWS
    service.run("ALTER MATERIALIZED VIEW copied SET PARALLELISM = 6")
    service.run("DELETE FROM history WHERE id % 3 = 0")
    assert len(actors(service, job)) == 6
    assert service.assert_equal("copied", QUERY) == ROWS - ROWS // 3


@pytest.mark.soak
def test_new_actors_do_not_bring_an_old_limit_back(service: Service) -> None:
    """Scenario 13."""
    service.run("CREATE TABLE history (id int PRIMARY KEY, v int)")
    service.run("INSERT INTO history SELECT g, g FROM generate_series(1, 1000) g")
    create = "CREATE MATERIALIZED VIEW copied WITH (backfill_rate_limit = 0) AS SELECT * FROM history"
    service.run(create, background_ddl="true", streaming_parallelism="1")
    service.run("ALTER MATERIALIZED VIEW copied SET BACKFILL_RATE_LIMIT = 10")
    service.run("ALTER MATERIALIZED VIEW copied SET PARALLELISM = 16")
    assert len(actors(service, service.job("copied"))) == 16
    service.run("WAIT")
    assert service.assert_equal("copied", "SELECT * FROM history") == 1_000


@pytest.mark.soak
def test_no_more_actors_than_vnodes_and_as_many_vnodes_as_asked_for(service: Service) -> None:
    service.run("CREATE TABLE few (id int PRIMARY KEY)", streaming_max_parallelism="4")
    service.run("CREATE TABLE most (id int PRIMARY KEY) WITH (vnode_count = 32768)")
    service.run("INSERT INTO most SELECT g FROM generate_series(1, 100) g")
    with pytest.raises(ProblemError, match="specified parallelism 5 should not exceed max parallelism 4"):
        service.run("CREATE MATERIALIZED VIEW copied AS SELECT * FROM few", streaming_parallelism="5")
    service.run("CREATE MATERIALIZED VIEW copied AS SELECT * FROM few", streaming_parallelism="4")
    with pytest.raises(ProblemError, match="specified parallelism 5 should not exceed max parallelism 4"):
        service.run("ALTER MATERIALIZED VIEW copied SET PARALLELISM TO 5")
    with pytest.raises(ProblemError, match="specified backfill parallelism 9 should not exceed max parallelism 4"):
        service.patch(f"/v1/jobs/{service.job('copied')}", {"backfill_parallelism": 9})
    service.run("CREATE MATERIALIZED VIEW spread AS SELECT * FROM most")
    assert service.assert_equal("spread", "SELECT * FROM most") == 100
