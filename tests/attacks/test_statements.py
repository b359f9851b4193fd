"""Small statements that once stopped every barrier."""

from contextlib import suppress

import pytest

from tests.support.bystander import Bystander
from tests.support.service import ProblemError, Service

pytestmark = pytest.mark.e2e


def test_c1_s4_a_table_with_a_system_columns_name_stops_nobody(service: Service, bystander: Bystander) -> None:
    with bystander.unharmed():
        for name in ("ctid", "xmin", "tableoid"):
            with pytest.raises(ProblemError, match=name):
                service.run(f"CREATE TABLE t (id bigint PRIMARY KEY, {name} text)")


@pytest.mark.soak
def test_c1_a_view_with_a_system_columns_name_stops_nobody(service: Service, bystander: Bystander) -> None:
    service.run("CREATE TABLE a (id bigint PRIMARY KEY)")
    with bystander.unharmed(), pytest.raises(ProblemError, match="xmin"):
        service.run("CREATE MATERIALIZED VIEW v AS SELECT id, id AS xmin FROM a")


def test_s1_an_update_that_calls_an_internal_function_fails_alone(service: Service, bystander: Bystander) -> None:
    service.run("CREATE TABLE t (id bigint PRIMARY KEY, s text)")
    service.run("INSERT INTO t VALUES (1, 'a')")
    for value in ("pg_last_committed_xact()::text", "state.hold_generation(1,999999)::text", "pg_sleep(1)::text"):
        with bystander.unharmed(), pytest.raises(ProblemError):
            service.run(f"UPDATE t SET s = {value} WHERE id = 1")
        assert service.value("SELECT s FROM t") == "a", value


def test_c2_a_second_stop_of_a_job_stops_nobody(service: Service, bystander: Bystander) -> None:
    service.run("CREATE TABLE dropped (id bigint PRIMARY KEY)")
    job = service.job("dropped")
    with bystander.unharmed():
        drop = service.later("DROP TABLE dropped")
        while not drop.done():
            with suppress(ProblemError):
                service.post("/v1/mutations", {"type": "stop", "jobs": [job]})
        drop.result()
