"""The statements of an epoch share a budget of time (C4, S7): the rest waits, and a slow one is set aside."""

from collections.abc import AsyncGenerator
from contextlib import suppress

import psycopg
import pytest

from service.protocol.dml import DmlLimits, InsertValues, Statement, Unfinished, Update
from service.protocol.ids import DATABASE_GRAPH, Epoch, Generation, StatementId, Term
from service.serving import fencing
from tests.support.state_store import Store, relation, store_of
from workers.state_store import dml as dml_module
from workers.state_store.dml import DmlStore
from workers.state_store.port import DmlOutcome, StatementBrokeError

pytestmark = pytest.mark.postgres

GENERATION = Generation(5)
PAIRS = relation(1, "t", {"id": "bigint", "v": "text"})
ENDLESS = "(select count(*) from generate_series(1, 100000000000) g)::text"
SHORT = DmlLimits(epoch_ms=400, statement_ms=300)


@pytest.fixture
async def store(database_url: str) -> AsyncGenerator[Store]:
    async with store_of(database_url, PAIRS, GENERATION) as prepared:
        yield prepared


def inserting(number: int) -> Statement:
    return InsertValues(
        id=StatementId(number), relation=PAIRS, columns=("id", "v"), source=f"values ({number}, 'a'::text)"
    )


def setting(number: int, value: str = ENDLESS) -> Statement:
    return Update(id=StatementId(number), relation=PAIRS, assignments=(("v", value),))


def dml(store: Store) -> DmlStore:
    return DmlStore(store.logins.writer_url, DATABASE_GRAPH, GENERATION)


def ids(*numbers: int) -> tuple[StatementId, ...]:
    return tuple(map(StatementId, numbers))


async def test_s7_a_slow_statement_is_set_aside_and_the_others_go_on(store: Store) -> None:
    outcome = dml(store).run([inserting(1), setting(2), inserting(3)], Epoch(9), DmlLimits(epoch_ms=4_000))
    assert [(one.id, one.affected, one.error) for one in outcome.results] == [(1, 1, None), (3, 1, None)]
    assert outcome.unfinished == Unfinished(set_aside=ids(2))
    assert outcome.relations == (PAIRS.id, PAIRS.id)
    assert outcome.key_count_deltas == {PAIRS.id: 2}
    assert await store.rows("select id, v from state.t_1 order by id") == [(1, "a"), (3, "a")]


def test_c4_what_the_budget_does_not_reach_waits(store: Store) -> None:
    outcome = dml(store).run([inserting(1), *map(setting, range(2, 8)), inserting(8)], Epoch(9), SHORT)
    aside, left = outcome.unfinished.set_aside, outcome.unfinished.not_reached
    assert (outcome.results[0].id, outcome.results[0].error) == (1, None)
    assert aside
    assert left[-1] == 8
    assert (*aside, *left) == ids(2, 3, 4, 5, 6, 7, 8), "each statement is in one of the three"


def test_a_statement_that_was_begun_late_is_not_set_aside(store: Store) -> None:
    began = iter([0.0, 0.0, 0.39, 0.39])
    late = DmlStore(store.logins.writer_url, DATABASE_GRAPH, GENERATION, lambda: next(began, 1.0))
    outcome = late.run([inserting(1), setting(2), inserting(3)], Epoch(9), SHORT)
    assert outcome.unfinished == Unfinished(not_reached=ids(2, 3))


def test_s7_a_statement_that_is_alone_fails_after_its_timeout_and_names_the_way_out(store: Store) -> None:
    dml(store).run([inserting(1)], Epoch(8))
    (refused,) = dml(store).run([setting(1)], Epoch(9), SHORT).results
    assert (refused.affected, refused.sqlstate) == (0, "57014")
    assert refused.error is not None
    assert "300 ms" in refused.error
    assert "dml_statement_timeout_ms" in refused.error


def test_c4_a_statement_that_is_alone_may_take_longer_than_an_epochs_share(store: Store) -> None:
    slow = "(select count(*) from generate_series(1, 400000) g)::text"
    dml(store).run([inserting(1)], Epoch(8))
    outcome = dml(store).run([setting(1, slow)], Epoch(9), DmlLimits(epoch_ms=1, statement_ms=60_000))
    assert [(one.affected, one.error) for one in outcome.results] == [(1, None)]
    assert outcome.unfinished == Unfinished()


def test_c4_the_statement_in_which_the_connection_was_lost_is_named(store: Store) -> None:
    end = "(select pg_terminate_backend(pg_backend_pid()))::text"
    with psycopg.connect(store.url, autocommit=True) as owner:
        # Users' statements cannot call it; a crash in the middle of one looks the same.
        owner.execute("grant execute on function pg_terminate_backend(int, bigint) to public")
    with pytest.raises(StatementBrokeError) as lost:
        dml(store).run([inserting(1), inserting(2), setting(3, end), inserting(4)], Epoch(9))
    assert lost.value.statement == 3


def test_s7_a_statement_that_is_alone_is_set_aside_while_slow_statements_rest(store: Store) -> None:
    dml(store).run([inserting(1)], Epoch(8))
    outcome = dml(store).run([setting(1)], Epoch(9), DmlLimits(epoch_ms=400, patient=False))
    assert outcome.unfinished == Unfinished(set_aside=ids(1))


UNSTOPPABLE = "length(normalize(repeat(chr(769), 7000) || repeat(chr(807), 7000)))::text"
"""Seconds of one function of Postgres that heeds no timeout."""


async def test_a7_a_statement_that_postgres_cannot_stop_is_given_up(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It broke all barriers until it ended, which takes hours for a longer text."""
    monkeypatch.setattr(dml_module, "GRACE_SECONDS", 0.1)
    with pytest.raises(StatementBrokeError) as given_up:
        dml(store).run([inserting(1), setting(2, UNSTOPPABLE)], Epoch(9), SHORT)
    assert (given_up.value.statement, given_up.value.too_slow) == (2, True)
    assert await store.rows("select count(*) from pg_stat_activity where query like '%normalize%chr(807)%'") == [(2,)]
    # Its session may not commit, and nobody waits for it.
    monkeypatch.setattr(fencing, "END_SECONDS", 0.1)
    await store.fences.fence(DATABASE_GRAPH, Generation(6), term=Term(7))
    later = DmlStore(store.logins.writer_url, DATABASE_GRAPH, Generation(6))
    assert later.run([inserting(1)], Epoch(12)).key_count_deltas == {PAIRS.id: 1}


def test_a13_a_timeout_that_ends_a_command_around_a_statement_fails_no_other(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a millisecond left, it ended a RELEASE now and then, and the statement behind it was refused."""

    def late(epoch: int) -> DmlOutcome:
        began = iter([0.0, 0.0])
        dml = DmlStore(store.logins.writer_url, DATABASE_GRAPH, GENERATION, lambda: next(began, 0.3992))
        return dml.run([inserting(number) for number in range(400)], Epoch(epoch), SHORT)

    assert late(9).unfinished == Unfinished(not_reached=ids(*range(1, 400)))
    monkeypatch.setattr(dml_module, "_LEAST_MS", 0)
    for epoch in range(10, 30):
        with suppress(psycopg.errors.InFailedSqlTransaction):
            assert not [one.error for one in late(epoch).results if one.error]
