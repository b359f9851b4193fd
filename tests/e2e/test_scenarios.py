"""The reference's acceptance scenarios over HTTP, as far as they speak of tables and project/filter views, for every
backfill strategy.

A docstring names the scenario. Numbers of rows are smaller than the reference's where only time depends on them. A rate
limit keeps a backfill from ending before the test has looked at it.
"""

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from tests.support.scenarios import (
    FRAGMENT_PROGRESS,
    NO_SHUFFLE,
    RESCALED,
    STRATEGIES,
    drop,
    emptied_again_and_again,
    equal,
    finish,
    goes_on_over_a_kill,
    live_rows_arrive,
    recovered,
    table,
    until_all_read,
    view,
    views,
)
from tests.support.service import ProblemError, Service
from tests.support.waiting import until

pytestmark = pytest.mark.e2e


def ended(refused: ProblemError) -> str:
    return str(refused.problem["detail"])


def shown(strategy: str, progress: str) -> str:
    """Return a progress text as a job of this strategy has it while it reads history."""
    return f"Snapshot [{progress}]" if strategy.endswith("snapshot") else progress


@pytest.mark.soak
def test_views_are_built_in_the_background_and_cannot_be_read_before(service: Service) -> None:
    """Scenario 1."""
    table(service, "t1", 100_000)
    jobs = views(service, "m1", "SELECT * FROM t1", rate=10)
    assert sorted(job["ddl_id"] for job in service.progress()) == sorted(jobs.values())
    assert service.value("SELECT count(*) FROM rw_catalog.rw_ddl_progress") == 3
    for name in jobs:
        unread = service.refused(f"SELECT count(*) FROM {name}")
        assert (unread.status, unread.problem["type"]) == (409, "urn:tidefill:problem:conflict")
        again = service.refused(f"CREATE MATERIALIZED VIEW {name} AS SELECT * FROM t1", background_ddl="true")
        assert again.status == 409
    assert finish(service, jobs, "SELECT * FROM t1") == 100_000
    assert service.progress() == []


@pytest.mark.soak
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
    jobs = views(service, "m4", "SELECT * FROM t4", rate=0)
    for name in jobs:
        create = f"CREATE MATERIALIZED VIEW IF NOT EXISTS {name} AS SELECT * FROM t4"
        for _ in range(2):
            service.run(create, background_ddl="true", backfill_rate_limit="0")
    assert sorted(job["ddl_id"] for job in service.progress()) == sorted(jobs.values())
    drop(service, jobs)
    assert service.progress() == []
    assert {service.refused(f"SELECT * FROM {name}").status for name in jobs} == {422}


@pytest.mark.soak
def test_a_name_that_is_being_created_is_taken_and_if_not_exists_waits_for_it(service: Service) -> None:
    """Scenario 5."""
    table(service, "t5", 10_000)
    jobs = views(service, "m5", "SELECT * FROM t5", rate=10)
    waiting: dict[str, Future[dict[str, Any]]] = {}
    for name in jobs:
        taken = service.refused(f"CREATE MATERIALIZED VIEW {name} AS SELECT * FROM t5")
        assert f"materialized view named {name} already exists and is still being created" in ended(taken)
        create = f"CREATE MATERIALIZED VIEW IF NOT EXISTS {name} AS SELECT * FROM t5"
        service.run(create, background_ddl="true")
        assert len(service.progress()) == 3
        waiting[name] = service.later(create)
    # A recovery cancels what a foreground CREATE has just asked for, and not what it has found.
    recovered(service)
    until_all_read(service, max(service.rows(job) for job in jobs.values()) + 10)
    assert not any(answer.done() for answer in waiting.values()), service.progress()
    assert finish(service, jobs, "SELECT * FROM t5") == 10_000
    for answer in waiting.values():
        assert "already exists, skipping" in answer.result()["notices"][0]
    assert service.progress() == []


@pytest.mark.soak
def test_dropping_a_view_that_is_being_created_frees_its_name(service: Service) -> None:
    """Scenario 10: built in the foreground, in the background, and in the background after a recovery."""
    table(service, "t10", 1_000)
    jobs = views(service, "m10", "SELECT * FROM t10", rate=1)
    drop(service, jobs)
    creating = [
        service.later(f"CREATE MATERIALIZED VIEW {name} WITH (backfill_rate_limit = 1) AS SELECT * FROM t10", **session)
        for name, session in zip(jobs, STRATEGIES.values(), strict=True)
    ]
    until(lambda: len(service.progress()) == 3, what="the foreground jobs are listed")
    until_all_read(service)
    drop(service, jobs)
    for answer in creating:
        with pytest.raises(ProblemError, match="was cancelled"):
            answer.result()
    views(service, "m10", "SELECT * FROM t10", rate=1)
    recovered(service)
    drop(service, jobs)
    assert service.progress() == []
    jobs = views(service, "m10", "SELECT * FROM t10")
    service.run("WAIT")
    assert equal(service, jobs, "SELECT * FROM t10") == 1_000


def test_a_limit_of_zero_reads_nothing_until_it_is_raised(service: Service) -> None:
    """Scenario 11."""
    table(service, "t11", 1)
    jobs = views(service, "m11", "SELECT * FROM t11", options="WITH (backfill_rate_limit = 0)")
    for _ in range(4):
        service.flush()
    for progress in service.progress():
        assert (progress["progress"], progress["rows"]) == (shown(progress["name"], "0.00% (0/1)"), 0)
        assert progress["waiting_for"] == "backfill_rate_limit is 0"
    for name in jobs:
        service.run(f"ALTER MATERIALIZED VIEW {name} SET BACKFILL_RATE_LIMIT TO 1")
    for name in jobs:
        service.run(f"WAIT MATERIALIZED VIEW {name}")
        assert service.sql(f"SELECT v FROM {name}") == [[1]]


@pytest.mark.soak
def test_a_recovery_does_not_bring_an_old_limit_back(service: Service) -> None:
    """Scenario 13 without its change of parallelism: a recovery makes new actors just as well."""
    table(service, "t13", 1_000)
    jobs = views(service, "m13", "SELECT * FROM t13", options="WITH (backfill_rate_limit = 0)")
    service.flush()
    assert [job["rows"] for job in service.progress()] == [0, 0, 0]
    for name in jobs:
        service.run(f"ALTER MATERIALIZED VIEW {name} SET BACKFILL_RATE_LIMIT = 200")
    recovered(service)
    limits = "SELECT node_name, rate_limit FROM rw_catalog.rw_rate_limit"
    assert service.sql(limits) == [["STREAM_SCAN", 200]] * 3
    service.run("WAIT")
    assert equal(service, jobs, "SELECT * FROM t13") == 1_000


@pytest.mark.soak
def test_progress_goes_on_where_it_was_when_the_worker_is_killed(service: Service) -> None:
    """Scenario 19; I6."""
    table(service, "t19", 1_000)
    jobs = views(service, "m19", "SELECT * FROM t19", options="WITH (backfill_rate_limit = 1)")
    until_all_read(service, 4)
    goes_on_over_a_kill(service, jobs, shown)


@pytest.mark.soak
def test_the_view_of_fragments_is_empty_before_and_after_a_job(service: Service) -> None:
    """Scenario 22."""
    assert service.sql(FRAGMENT_PROGRESS) == []
    table(service, "t22", 1_000)
    assert service.sql(FRAGMENT_PROGRESS) == []
    jobs = views(service, "m22", "SELECT * FROM t22", rate=10)
    listed = {job: (name, upstream, text) for job, _, name, upstream, text, *_ in service.sql(FRAGMENT_PROGRESS)}
    assert listed.keys() == set(jobs.values())
    for name, job in jobs.items():
        assert listed[job][:2] == (f"public.{name}", "public.t22")
        assert listed[job][2].endswith("/1000)")
    fragments = service.items("/v1/fragment-backfill-progress")
    assert {(one["job_id"], one["total"]) for one in fragments} == {(job, 1_000) for job in jobs.values()}
    finish(service, jobs, "SELECT * FROM t22")
    assert service.sql(FRAGMENT_PROGRESS) == []
    assert service.items("/v1/fragment-backfill-progress") == []


def test_an_empty_upstream_is_finished_at_the_second_barrier(service: Service) -> None:
    """Scenario 23. A snapshot job is finished by the barriers of its own graph, and merges then."""
    table(service, "t23", 0)
    for name, session in STRATEGIES.items():
        began = service.flush()
        service.run(f"CREATE MATERIALIZED VIEW m23_{name} AS SELECT * FROM t23", **session)
        job = service.detail(service.job(f"m23_{name}"))["job"]
        assert job["progress"]["rows"] == 0
        if name != "snapshot":
            after = [barrier["committed_at"] for barrier in since_add(service, began)]
            assert after.index(job["finished_at"]) == 1


def since_add(service: Service, epoch: int) -> list[dict[str, object]]:
    """Return the barriers from the first that added a job after `epoch`."""
    barriers = service.barriers(after=epoch)
    first = next(index for index, barrier in enumerate(barriers) if barrier["mutation"] == "add")
    return barriers[first:]


@pytest.mark.soak
def test_rows_that_arrive_one_by_one_between_checkpoints_are_not_lost(service: Service) -> None:
    """Scenario 34: by three actors over a table that one writes (NoShuffle has one as well), ten barriers to a
    checkpoint.
    """
    service.run("CREATE TABLE t34 (v int PRIMARY KEY)")
    service.run("INSERT INTO t34 SELECT g FROM generate_series(1, 300) g WHERE g NOT BETWEEN 101 AND 200")
    service.run("ALTER SYSTEM SET barrier_interval_ms = 100")
    service.run("ALTER SYSTEM SET checkpoint_frequency = 10")
    query = "SELECT * FROM t34"
    jobs = views(service, "m34", query, rate=1, strategies=RESCALED, streaming_parallelism="3")
    jobs |= views(service, "m34", query, rate=1, strategies={"no_shuffle": NO_SHUFFLE})
    until_all_read(service)
    with ThreadPoolExecutor(100) as clients:
        answers = [clients.submit(service.run, f"INSERT INTO t34 VALUES ({v})") for v in range(101, 201)]
    assert {answer.result()["tag"] for answer in answers} == {"INSERT 0 1"}
    assert {service.state(job) for job in jobs.values()} == {"Creating"}, "too late to tell"
    assert finish(service, jobs, query) == 300


@pytest.mark.soak
def test_live_rows_that_arrive_during_the_backfill_are_not_lost(service: Service) -> None:
    """Scenario 36 with 30,000 rows and 30,000 live ones."""
    live_rows_arrive(service, 30_000)


@pytest.mark.soak
def test_a_table_that_is_emptied_again_and_again_does_not_hold_up_a_backfill(service: Service) -> None:
    """Scenario 39 with 8 deletions."""
    emptied_again_and_again(service, 8)


@pytest.mark.soak
def test_a_forced_page_at_the_end_loses_no_row_that_arrives_behind_it(service: Service) -> None:
    """Scenario 42: one row a page at most, while rows arrive before and behind the position; the prefix is right (I1)
    whenever it is looked at.
    """
    table(service, "t42", 30)
    query = "SELECT v, v * 2 AS w FROM t42 WHERE v <> 7"
    jobs = views(service, "m42", query, rate=5)
    turns = 0
    while service.progress():
        turns += 1
        if turns <= 5:
            service.run(f"INSERT INTO t42 VALUES ({100 + turns}), ({-turns})")
        assert turns > 1 or len(service.progress()) == len(jobs), "too late to tell"
        for name in jobs:
            service.verified(name)
    assert equal(service, jobs, query) == 29 + 2 * min(turns, 5)


@pytest.mark.soak
def test_background_views_survive_their_workers(service: Service) -> None:
    """Scenario 45 for project/filter views: the JVM is killed; then the graph is recovered once more."""
    table(service, "t45", 200)
    query = "SELECT v, v + 1 AS next FROM t45 WHERE v > 0"
    jobs = views(service, "m45", query, rate=1)
    until_all_read(service, 2)
    generation = service.graph()["generation"]
    service.kill_jvm()
    service.run("INSERT INTO t45 SELECT * FROM generate_series(201, 400)")
    service.until_recovered(generation)
    recovered(service)
    # A machine under load may cost it more.
    assert all(service.detail(job)["job"]["recoveries"] >= 2 for job in jobs.values())
    assert finish(service, jobs, query) == 400


def test_an_early_recovery_tells_the_client_of_a_foreground_create(service: Service) -> None:
    """Scenario 47."""
    service.run("ALTER SYSTEM SET max_concurrent_creating_streaming_jobs = 0")
    table(service, "t47", 10_000)
    create = "CREATE MATERIALIZED VIEW {} WITH (backfill_rate_limit = 1) AS SELECT * FROM t47"
    creating = [service.later(create.format(f"m47_{name}"), **session) for name, session in STRATEGIES.items()]
    until(lambda: len(service.progress()) == 3, what="the jobs are listed")
    until_all_read(service)
    service.run("RECOVER")
    for answer in creating:
        with pytest.raises(ProblemError, match="adhoc recovery"):
            answer.result()
    until(lambda: service.progress() == [] or None, what="the list is empty")


@pytest.mark.soak
def test_a_cancelled_job_is_answered_once_by_its_id_and_leaves_its_name(service: Service) -> None:
    """Scenario 49: also after a recovery, and while no worker lives."""
    table(service, "t49", 500)
    for _ in range(5):
        jobs = views(service, "m49", "SELECT * FROM t49", rate=1)
        ids = ", ".join(map(str, jobs.values()))
        assert sorted(service.sql(f"CANCEL JOBS {ids}")) == sorted([job] for job in jobs.values())
        assert service.sql(f"CANCEL JOBS {ids}") == []
    for disturb in (lambda: service.run("RECOVER"), service.kill_worker):
        jobs = views(service, "m49", "SELECT * FROM t49", rate=1)
        until_all_read(service)
        disturb()
        for job in jobs.values():
            assert service.sql(f"CANCEL JOBS {job}") == [[job]]
        assert service.progress() == []
    jobs = views(service, "m49", "SELECT * FROM t49")
    service.run("WAIT")
    assert equal(service, jobs, "SELECT * FROM t49") == 500


@pytest.mark.soak
def test_a_recovery_does_not_hold_up_a_cancel(service: Service) -> None:
    """Scenario 52 without its join: the barriers of the jobs that are cancelled never come to an end."""
    table(service, "t52", 10_000)
    jobs = views(service, "m52", "SELECT * FROM t52", rate=2)
    until_all_read(service)
    cancelling = service.later(f"CANCEL JOBS {', '.join(map(str, jobs.values()))}")
    service.run("RECOVER")
    assert sorted(cancelling.result()["rows"]) == sorted([job] for job in jobs.values())
    again = views(service, "m52", "SELECT * FROM t52")
    assert set(again.values()).isdisjoint(jobs.values())
    service.run("WAIT")
    assert equal(service, again, "SELECT * FROM t52") == 10_000
