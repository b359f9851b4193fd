"""The reference's acceptance scenarios over HTTP, as far as they speak of tables and project/filter views.

A docstring names the scenario. Numbers of rows are smaller than the reference's where only time depends on them. A rate
limit keeps a backfill from ending before the test has looked at it.
"""

from datetime import datetime

import pytest

from tests.support.scenarios import emptied_again_and_again, live_rows_arrive, table, view
from tests.support.service import ProblemError, Service, until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

PROGRESS = "SELECT * FROM rw_catalog.rw_fragment_backfill_progress"


def ended(refused: ProblemError) -> str:
    return str(refused.problem["detail"])


def test_two_views_are_built_in_the_background_and_cannot_be_read_before(service: Service) -> None:
    """Scenario 1."""
    service.run("ALTER SYSTEM SET max_concurrent_creating_streaming_jobs = 4")
    table(service, "t1", 100_000)
    jobs = [view(service, name, "t1", rate=10) for name in ("m1_1", "m1_2")]
    assert [job["ddl_id"] for job in service.progress()] == jobs
    assert len(service.sql("SELECT * FROM rw_catalog.rw_ddl_progress")) == 2
    unread = service.refused("SELECT count(*) FROM m1_1")
    assert (unread.status, unread.problem["type"]) == (409, "urn:tidefill:problem:conflict")
    again = service.refused("CREATE MATERIALIZED VIEW m1_2 AS SELECT * FROM t1", background_ddl="true")
    assert again.status == 409
    for job in jobs:
        service.limit(job, None)
    service.run("WAIT")
    assert service.progress() == []
    for name in ("m1_1", "m1_2"):
        assert service.assert_equal(name, "SELECT * FROM t1") == 100_000


def test_the_catalog_says_which_view_is_built_in_the_background(service: Service) -> None:
    """Scenario 3, for views."""
    service.run("ALTER SYSTEM SET max_concurrent_creating_streaming_jobs = 2")
    table(service, "t3", 10_000)
    waiting = service.later("CREATE MATERIALIZED VIEW m3_f WITH (backfill_rate_limit = 10) AS SELECT * FROM t3")
    until(lambda: len(service.progress()) == 1, what="the foreground job is listed")
    view(service, "m3_b", "t3", rate=10)
    listed = "SELECT name, background_ddl FROM rw_catalog.rw_materialized_views ORDER BY name"
    assert service.sql(listed) == [["m3_b", True], ["m3_f", False]]
    types = {job["name"]: job["create_type"] for job in service.progress()}
    assert types == {"m3_b": "BACKGROUND", "m3_f": "FOREGROUND"}
    for name in types:
        service.limit(service.job(name), None)
    assert waiting.result()["tag"] == "CREATE_MATERIALIZED_VIEW"
    service.run("WAIT")
    assert service.sql(listed) == [["m3_b", True], ["m3_f", False]]


def test_creating_a_view_three_times_if_not_exists_makes_one_job(service: Service) -> None:
    """Scenario 4."""
    table(service, "t4", 100)
    create = "CREATE MATERIALIZED VIEW IF NOT EXISTS m4 AS SELECT * FROM t4"
    for _ in range(3):
        service.run(create, background_ddl="true", backfill_rate_limit="0")
    assert len(service.progress()) == 1
    service.run("DROP MATERIALIZED VIEW m4")
    assert service.progress() == []
    assert service.refused("SELECT * FROM m4").status == 422


def test_a_name_that_is_being_created_is_taken_and_if_not_exists_waits_for_it(service: Service) -> None:
    """Scenario 5."""
    table(service, "t5", 10_000)
    job = view(service, "m5", "t5", rate=10)
    assert len(service.progress()) == 1
    taken = service.refused("CREATE MATERIALIZED VIEW m5 AS SELECT * FROM t5")
    assert "materialized view named m5 already exists and is still being created" in ended(taken)
    create = "CREATE MATERIALIZED VIEW IF NOT EXISTS m5 AS SELECT * FROM t5"
    service.run(create, background_ddl="true")
    assert len(service.progress()) == 1
    waiting = service.later(create)
    rows = service.until_rows(job, service.rows(job) + 10)
    assert not waiting.done(), f"returned at {rows} of 10000 rows"
    service.limit(job, None)
    assert "already exists, skipping" in waiting.result()["notices"][0]
    assert service.progress() == []
    assert service.value("SELECT count(*) FROM m5") == 10_000


def test_dropping_a_view_that_is_being_created_frees_its_name(service: Service) -> None:
    """Scenario 10: built in the foreground, in the background, and in the background after a recovery."""
    table(service, "t10", 1_000)
    creating = service.later("CREATE MATERIALIZED VIEW m10 WITH (backfill_rate_limit = 1) AS SELECT * FROM t10")
    until(lambda: any(job["rows"] for job in service.progress()) or None, what="the foreground job reads")
    service.run("DROP MATERIALIZED VIEW m10")
    with pytest.raises(ProblemError, match="was cancelled"):
        creating.result()
    view(service, "m10", "t10", rate=1)
    service.run("DROP MATERIALIZED VIEW m10")
    view(service, "m10", "t10", rate=1)
    generation = service.graph()["generation"]
    service.run("RECOVER")
    service.until_recovered(generation)
    service.run("DROP MATERIALIZED VIEW m10")
    assert service.progress() == []
    view(service, "m10", "t10", rate=-1, background=False)
    assert service.value("SELECT count(*) FROM m10") == 1_000


@pytest.mark.arrangement
def test_a_limit_of_zero_reads_nothing_until_it_is_raised(service: Service) -> None:
    """Scenario 11."""
    table(service, "t11", 1)
    create = "CREATE MATERIALIZED VIEW m11 WITH (backfill_rate_limit = 0) AS SELECT * FROM t11"
    service.run(create, background_ddl="true")
    for _ in range(4):
        service.flush()
    (progress,) = service.progress()
    assert (progress["progress"], progress["rows"]) == ("0.00% (0/1)", 0)
    assert progress["waiting_for"] == "backfill_rate_limit is 0"
    service.run("ALTER MATERIALIZED VIEW m11 SET BACKFILL_RATE_LIMIT TO 1")
    service.run("WAIT MATERIALIZED VIEW m11")
    assert service.sql("SELECT v FROM m11") == [[1]]


def test_a_recovery_does_not_bring_an_old_limit_back(service: Service) -> None:
    """Scenario 13 without its change of parallelism: a recovery makes new actors just as well."""
    table(service, "t13", 1_000)
    create = "CREATE MATERIALIZED VIEW m13 WITH (backfill_rate_limit = 0) AS SELECT * FROM t13"
    service.run(create, background_ddl="true", streaming_parallelism="1")
    service.flush()
    assert [job["rows"] for job in service.progress()] == [0]
    service.run("ALTER MATERIALIZED VIEW m13 SET BACKFILL_RATE_LIMIT = 200")
    generation = service.graph()["generation"]
    service.run("RECOVER")
    service.until_recovered(generation)
    limits = "SELECT node_name, rate_limit FROM rw_catalog.rw_rate_limit"
    assert service.sql(limits) == [["STREAM_SCAN", 200]]
    service.run("WAIT")
    assert service.assert_equal("m13", "SELECT * FROM t13") == 1_000


@pytest.mark.arrangement
def test_progress_goes_on_where_it_was_when_the_worker_is_killed(service: Service) -> None:
    """Scenario 19; I6."""
    table(service, "t19", 1_000)
    create = "CREATE MATERIALIZED VIEW m19 WITH (backfill_rate_limit = 1) AS SELECT * FROM t19"
    service.run(create, background_ddl="true", streaming_parallelism="1")
    job = service.job("m19")
    service.until_rows(job, 4)
    generation = service.graph()["generation"]
    service.kill_worker()
    before = service.rows(job)
    service.until_recovered(generation)
    (progress,) = service.progress()
    assert before <= progress["rows"] <= before + seconds_of_generation(service) + 1
    assert progress["progress"] == f"{progress['rows'] / 10:.2f}% ({progress['rows']}/1000)"
    service.until_rows(job, progress["rows"])


def seconds_of_generation(service: Service) -> float:
    """Return how long the present generation has been running, by its own barriers."""
    newest = service.barriers()
    began = next(barrier for barrier in newest if barrier["generation"] == newest[-1]["generation"])
    return (instant(newest[-1]["injected_at"]) - instant(began["injected_at"])).total_seconds() + 1


def instant(text: str) -> datetime:
    return datetime.fromisoformat(text)


def test_the_view_of_fragments_is_empty_before_and_after_a_job(service: Service) -> None:
    """Scenario 22."""
    assert service.sql(PROGRESS) == []
    table(service, "t22", 1_000)
    assert service.sql(PROGRESS) == []
    job = view(service, "m22", "t22", rate=10)
    ((listed_job, _, name, upstream, text),) = service.sql(PROGRESS)
    assert (listed_job, name, upstream) == (job, "public.m22", "public.t22")
    assert text.endswith("/1000)")
    (shown,) = service.get("/v1/fragment-backfill-progress")
    assert (shown["job_id"], shown["total"]) == (job, 1_000)
    service.limit(job, None)
    service.run("WAIT")
    assert service.sql(PROGRESS) == []
    assert service.get("/v1/fragment-backfill-progress") == []


@pytest.mark.arrangement
def test_an_empty_upstream_is_finished_at_the_second_barrier(service: Service) -> None:
    """Scenario 23."""
    table(service, "t23", 0)
    began = service.flush()
    view(service, "m23", "t23", rate=-1, background=False)
    job = service.detail(service.job("m23"))["job"]
    assert job["progress"]["rows"] == 0
    after = [barrier["committed_at"] for barrier in since_add(service, began)]
    assert after.index(job["finished_at"]) == 1


def since_add(service: Service, epoch: int) -> list[dict[str, object]]:
    """Return the barriers from the first that added a job after `epoch`."""
    barriers = service.barriers(after=epoch)
    first = next(index for index, barrier in enumerate(barriers) if barrier["mutation"] == "add")
    return barriers[first:]


def test_live_rows_that_arrive_during_the_backfill_are_not_lost(service: Service) -> None:
    """Scenario 36 with 60,000 rows and 60,000 live ones."""
    live_rows_arrive(service, 60_000)


def test_a_table_that_is_emptied_again_and_again_does_not_hold_up_a_backfill(service: Service) -> None:
    """Scenario 39 with 8 deletions."""
    emptied_again_and_again(service, 8)


def test_a_forced_page_at_the_end_loses_no_row_that_arrives_behind_it(service: Service) -> None:
    """Scenario 42: one row a page at most, while rows arrive before and behind the position; the prefix is right (I1)
    whenever it is looked at.
    """
    table(service, "t42", 30)
    create = (
        "CREATE MATERIALIZED VIEW m42 WITH (backfill_rate_limit = 10) AS SELECT v, v * 2 AS w FROM t42 WHERE v <> 7"
    )
    service.run(create, background_ddl="true", streaming_parallelism="1")
    job, query = service.job("m42"), "SELECT v, v * 2 AS w FROM t42 WHERE v <> 7"
    turns = 0
    while service.state(job) == "Creating":
        turns += 1
        assert service.post(f"/v1/jobs/{job}/verify")["equal"]
        if turns <= 5:
            service.run(f"INSERT INTO t42 VALUES ({100 + turns}), ({-turns})")
    assert turns > 1
    service.until_created("m42")
    assert service.assert_equal("m42", query) == 29 + 2 * min(turns, 5)


def test_a_background_view_survives_its_workers(service: Service) -> None:
    """Scenario 45 for a project/filter view: the JVM is killed; then the graph is recovered once more."""
    table(service, "t45", 200)
    create = "CREATE MATERIALIZED VIEW m45 AS SELECT v, v + 1 AS next FROM t45 WHERE v > 0"
    service.run(create, background_ddl="true", backfill_rate_limit="1")
    job = service.job("m45")
    service.until_rows(job, 2)
    generation = service.graph()["generation"]
    service.kill_jvm()
    service.run("INSERT INTO t45 SELECT * FROM generate_series(201, 400)")
    generation = service.until_recovered(generation)["generation"]
    service.run("RECOVER")
    service.until_recovered(generation)
    # A machine under load may cost it more.
    assert service.detail(job)["job"]["recoveries"] >= 2
    service.limit(job, None)
    service.run("WAIT")
    assert service.assert_equal("m45", "SELECT v, v + 1 AS next FROM t45 WHERE v > 0") == 400


def test_an_early_recovery_tells_the_client_of_a_foreground_create(service: Service) -> None:
    """Scenario 47."""
    table(service, "t47", 10_000)
    creating = service.later("CREATE MATERIALIZED VIEW m47 WITH (backfill_rate_limit = 1) AS SELECT * FROM t47")
    until(lambda: any(job["rows"] for job in service.progress()) or None, what="the job reads")
    service.run("RECOVER")
    with pytest.raises(ProblemError, match="adhoc recovery"):
        creating.result()
    until(lambda: service.progress() == [] or None, what="the list is empty")


def test_a_cancelled_job_is_answered_once_by_its_id_and_leaves_its_name(service: Service) -> None:
    """Scenario 49."""
    table(service, "t49", 500)
    for _ in range(5):
        job = view(service, "m49", "t49", rate=1)
        assert service.sql(f"CANCEL JOBS {job}") == [[job]]
        assert service.sql(f"CANCEL JOBS {job}") == []
    job = view(service, "m49", "t49", rate=1)
    service.until_rows(job, 0)
    service.kill_worker()
    assert service.sql(f"CANCEL JOBS {job}") == [[job]]
    view(service, "m49", "t49", rate=-1, background=False)
    assert service.assert_equal("m49", "SELECT * FROM t49") == 500
