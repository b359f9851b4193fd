"""INSERTs, UPDATEs and DELETEs that try to stop the statements of others (C4, C8, S1, S7)."""

import pytest

from tests.support.bystander import Bystander
from tests.support.service import Service

pytestmark = pytest.mark.e2e
ENDLESS = "(SELECT count(*) FROM generate_series(1, 100000000000) g)::text"
FAULTY = (
    "pg_last_committed_xact()::text",
    "state.hold_generation(1, 999999)::text",
    "pg_sleep(60)::text",
    "nextval('state.row_ids')::text",
)


@pytest.fixture
def table(service: Service) -> str:
    service.run("CREATE TABLE attacked (id int PRIMARY KEY, s text)")
    service.run("INSERT INTO attacked VALUES (1, 'a')")
    return "attacked"


def test_s1_a_statement_that_calls_what_it_must_not_is_refused(
    service: Service, bystander: Bystander, table: str
) -> None:
    with bystander.unharmed():
        for expression in FAULTY:
            refused = service.refused(f"UPDATE {table} SET s = {expression} WHERE id = 1")
            assert "is not allowed here" in refused.problem["detail"]
        for bad in ("1 / 0", "repeat('x', 1073741823)::int", "('x' || s)::int"):
            service.refused(f"UPDATE {table} SET s = ({bad})::text WHERE id = 1")
    assert service.value(f"SELECT s FROM {table}") == "a"


def test_s7_and_c4_endless_statements_fail_and_others_go_on(service: Service, bystander: Bystander, table: str) -> None:
    service.run("ALTER SYSTEM SET dml_epoch_budget_ms = 400")
    service.run("ALTER SYSTEM SET dml_statement_timeout_ms = 500")
    with bystander.unharmed():
        endless = [service.later(f"UPDATE {table} SET s = {ENDLESS} WHERE id = 1") for _ in range(4)]
        failures = [str(one.exception(timeout=120)) for one in endless]
    assert all("dml_statement_timeout_ms" in failure for failure in failures), failures
    assert service.value(f"SELECT s FROM {table}") == "a"


def test_c8_statements_of_many_bytes_do_not_end_in_one_barrier(
    service: Service, bystander: Bystander, table: str
) -> None:
    with bystander.unharmed():
        large = [service.later(f"INSERT INTO {table} VALUES ({n}, '{'x' * 900_000}')") for n in range(100, 124)]
        for one in large:
            assert one.result(timeout=120)
    assert service.value(f"SELECT count(*) FROM {table} WHERE length(s) = 900000") == len(large)
