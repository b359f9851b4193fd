"""A row that a view's query cannot transform: that job fails and names the row, and everything else goes on."""

import pytest

from tests.support.service import ARRANGEMENT, Service
from tests.support.waiting import until

pytestmark = pytest.mark.e2e

QUOTIENT = "SELECT id, k, 10 / v AS q FROM t"


def test_a_row_of_history_fails_its_job_and_is_named(service: Service) -> None:
    service.run("CREATE TABLE t (id int, k text, v int, PRIMARY KEY (k DESC, id))")
    service.run("INSERT INTO t SELECT g, 'k' || g % 3, 1 FROM generate_series(1, 3000) g")
    service.run("UPDATE t SET v = 0 WHERE id = 777")
    service.run("CREATE MATERIALIZED VIEW sound AS SELECT id, v FROM t")
    refused = str(service.refused(f"CREATE MATERIALIZED VIEW broken AS {QUOTIENT}"))
    assert 'reading \\"t\\" at (k, id) = (k0, 777): the state store refused a value: division by zero' in refused
    service.run("UPDATE t SET v = 7 WHERE id = 777")
    assert service.assert_equal("sound", "SELECT id, v FROM t") == 3000
    # Nothing is left of the failed one, not even its name.
    service.run(f"CREATE MATERIALIZED VIEW broken AS {QUOTIENT}")
    assert service.assert_equal("broken", QUOTIENT) == 3000


@pytest.mark.soak
def test_what_fails_one_job_cancels_no_other_and_is_told_to_its_own_client(service: Service) -> None:
    """The first 30 s of a foreground CREATE end with a recovery, but not with one that another job is to blame for."""
    service.run("ALTER SYSTEM SET max_concurrent_creating_streaming_jobs = 0")
    service.run("CREATE TABLE t (id int PRIMARY KEY, k text, v int)")
    service.run("INSERT INTO t SELECT g, 'k', 1 FROM generate_series(1, 2000) g")
    service.run(f"CREATE MATERIALIZED VIEW broken AS {QUOTIENT}")
    job = service.job("broken")
    sound = {
        name: service.later(
            f"CREATE MATERIALIZED VIEW {name} WITH (backfill_rate_limit = 100) AS SELECT id, v FROM t", **session
        )
        for name, session in (("sound_snapshot", {}), ("sound_arrangement", ARRANGEMENT))
    }
    until(lambda: [bool(one["rows"]) for one in service.progress()] == [True, True], what=service.progress)
    service.run("UPDATE t SET v = 0 WHERE id = 42")
    until(lambda: service.state(job) == "Failed", what=lambda: service.detail(job))
    refused = service.refused(f"CREATE MATERIALIZED VIEW broken_too AS {QUOTIENT}", **ARRANGEMENT)
    assert refused.status == 422
    assert "could not be created" in str(refused)
    # In the shared graph the row is named only if it is found in time.
    assert "the state store refused a value: division by zero" in str(refused)
    for one in service.progress():
        service.limit(one["ddl_id"], None)
    for name, creating in sound.items():
        creating.result()
        assert service.assert_equal(name, "SELECT id, v FROM t") == 2000


@pytest.mark.soak
def test_a_row_that_several_views_cannot_compute_costs_one_recovery(service: Service) -> None:
    """I13: nobody waits for one recovery after the other."""
    service.run("CREATE TABLE t (id int PRIMARY KEY, k text, v int)")
    service.run("INSERT INTO t VALUES (1, 'k', 1)")
    service.run("CREATE MATERIALIZED VIEW sound AS SELECT id, v FROM t")
    for n in range(4):
        service.run(f"CREATE MATERIALIZED VIEW broken{n} AS SELECT id, {n} / v AS q FROM t")
    service.run("CREATE MATERIALIZED VIEW reader AS SELECT id, q FROM broken0")
    jobs = [service.job(f"broken{n}") for n in range(4)]
    generation = service.graph()["generation"]
    service.run("INSERT INTO t VALUES (2, 'k', 0)")
    until(
        lambda: {service.state(job) for job in jobs} == {"Failed"}, what=lambda: [service.detail(job) for job in jobs]
    )
    for job in jobs:
        assert "at (id) = (2): the state store refused a value: division by zero" in service.detail(job)["job"]["error"]
    assert service.assert_equal("sound", "SELECT id, v FROM t") == 2
    assert service.graph()["generation"] == generation + 1
    assert service.state(service.job("reader")) == "Created"


@pytest.mark.soak
def test_a_live_change_fails_a_created_view_that_stays_readable(service: Service) -> None:
    service.run("CREATE TABLE t (id int PRIMARY KEY, k text, v int)")
    service.run("INSERT INTO t SELECT g, 'k', 1 FROM generate_series(1, 100) g")
    service.run(f"CREATE MATERIALIZED VIEW broken AS {QUOTIENT}")
    job = service.job("broken")
    service.run("UPDATE t SET v = 0 WHERE id = 42")
    until(lambda: service.state(job) == "Failed", what=lambda: service.detail(job))
    assert "at (id) = (42): the state store refused a value: division by zero" in service.detail(job)["job"]["error"]
    # As it was before the change that it could not follow.
    assert service.sql("SELECT q FROM broken WHERE id = 42") == [[10]]
    assert service.value("SELECT v FROM t WHERE id = 42") == 0
    service.run("DROP MATERIALIZED VIEW broken")
