"""Readers who ask for too much, go away or never finish their requests: nobody else waits for them."""

from tests.support.bystander import Bystander
from tests.support.service import ProblemError, Service
from tests.support.waiting import until

LONG = "select count(*) from generate_series(1, 9000000000) g"
"""Postgres first writes the series to a file, so that its own limit of temporary files may end the query."""


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


def _running(service: Service) -> int:
    ((count,),) = service.stored(
        "select count(*) from pg_stat_activity where application_name = 'tidefill-reader' and state = 'active'"
    )
    return int(count)
