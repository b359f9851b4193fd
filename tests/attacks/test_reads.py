"""Readers who ask for too much, go away or never finish their requests: nobody else waits for them."""

import httpx
import pytest

from tests.support.bystander import Bystander
from tests.support.service import ProblemError, Service
from tests.support.waiting import until

LONG = "select count(*) from generate_series(1, 1000000) a, generate_series(1, 1000000) b"
"""Takes a day, and no more memory or disk than a second of it: only its timeout or a cancel ends it."""


def test_s2_statements_nested_for_exponential_parsing_delay_nobody(service: Service, bystander: Bystander) -> None:
    shapes = [("date(", ")"), ("array[", "]"), ("a::int[", "]"), ("cast(a as decimal(", "))"), ("join a ", "")]
    texts = ["select " + opening * 25 + "1" + closing * 25 for opening, closing in shapes]
    with bystander.unharmed():
        for text in texts:
            refusal = service.refused(text)
            assert refusal.status == 422, refusal


def test_c13_readers_that_take_every_connection_do_not_fail_readiness(service: Service, bystander: Bystander) -> None:
    with bystander.unharmed():
        busy = [service.later(LONG, statement_timeout="15000") for _ in range(16)]
        until(lambda: _running(service) >= 4, what="several queries run")
        assert service.http.get("/readyz").status_code == 200
        for call in busy:
            assert isinstance(call.exception(), ProblemError)


def test_s6_queries_of_clients_that_left_are_cancelled(service: Service, bystander: Bystander) -> None:
    with bystander.unharmed():
        for _ in range(16):
            with httpx.Client(base_url=service.url, headers=service.headers, timeout=0.5) as client:
                body = {"sql": LONG, "session": {"statement_timeout": "600000"}}
                with pytest.raises(httpx.ReadTimeout):
                    client.post("/v1/sql", json=body)
        until(lambda: _running(service) == 0, what="no abandoned query runs")
        assert service.value("SELECT 1") == 1
        assert service.http.get("/readyz").status_code == 200
    refusal = service.refused("SELECT 1", statement_timeout="2147483647")
    assert (refusal.status, "statement_timeout_max_ms" in str(refusal)) == (422, True)


def test_c7_results_of_nulls_and_of_wide_values_delay_nobody(service: Service, bystander: Bystander) -> None:
    with bystander.unharmed():
        assert service.refused("SELECT NULL FROM generate_series(1, 1500000)", row_limit="2000000000").status == 422
        assert len(service.sql("SELECT NULL FROM generate_series(1, 1500000)", row_limit="100000")) == 100_000
        columns = ", ".join(["NULL"] * 500)
        refusal = service.refused(f"SELECT {columns} FROM generate_series(1, 1500000)", row_limit="100000")
        assert (refusal.status, "TIDEFILL_RESULT_BYTES_MAX" in str(refusal)) == (422, True)
        wide = "SELECT repeat('x', 100000000) FROM generate_series(1, 4)"
        assert service.refused(wide).status == 422


def _running(service: Service) -> int:
    ((count,),) = service.stored(
        "select count(*) from pg_stat_activity where application_name = 'tidefill-reader' and state = 'active'"
    )
    return int(count)
