"""A call that is repeated after its service died gets the outcome of the first one, or runs; never twice (I3)."""

import httpx
import pytest

from tests.support.service import ProblemError, Service
from tests.support.waiting import until

pytestmark = pytest.mark.e2e

KEY = {"Idempotency-Key": "ledger"}
INSERT = {"sql": "INSERT INTO ledger VALUES (1), (2)"}
WAITING = "select from tidefill.statement where finished_at is null"


def test_a_statement_that_was_accepted_before_the_kill_runs_once(killable: Service) -> None:
    killable.run("CREATE TABLE ledger (n bigint)")
    with killable.store() as connection, connection.transaction():
        connection.execute("select from state.fence where graph = 1 for update")  # no epoch can end
        call = killable.calls.submit(killable.post, "/v1/sql", INSERT, headers=KEY)
        until(lambda: killable.stored(WAITING) or None, what="the statement is accepted")
        killable.kill()
    with pytest.raises(httpx.TransportError):
        call.result()
    killable.restart()
    answer = until(lambda: answered(killable), what="the repetition is answered")
    assert answer["tag"] == "INSERT 0 2"
    assert killable.sql("SELECT n FROM ledger ORDER BY n") == [[1], [2]]
    assert answered(killable) == answer


def answered(service: Service) -> dict[str, object] | None:
    """Repeat the call; None while the dead one's claim has not lapsed."""
    try:
        return service.post("/v1/sql", INSERT, headers=KEY)
    except ProblemError as error:
        if "has not been answered yet" not in error.problem["detail"]:
            raise
        return None
