"""An epoch is lent to a login: it stays readable, in the columns that users see, until nobody renews it."""

import asyncio

import psycopg
import pytest
from psycopg import errors

from service.domain.errors import Conflict
from service.domain.lending import LOANS_MAX, Loan
from service.ports.read_logins import ReadLogin
from service.protocol.ids import DATABASE_GRAPH, Epoch, RelationId, Term
from service.protocol.relation import Relation
from service.serving import lending as lending_module
from service.serving.connections import url_as
from service.serving.lending import PostgresLending
from service.serving.read_logins import PostgresReadLogins
from tests.support.meta_store import NOW
from tests.support.state_store import READ_PASSWORD, Store, relation
from tests.support.waiting import until

pytestmark = pytest.mark.postgres

TERM = Term(7)
WHOLE = relation(1, "orders")
ORDERS: Relation = WHOLE.model_copy(
    update={
        "columns": tuple(one.model_copy(update={"hidden": one.name == "v"}) for one in WHOLE.columns),
    }
)
LOAN = Loan("t7", NOW, "abc")
_WAITING = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"


@pytest.fixture
async def lending(store: Store) -> PostgresLending:
    await store.tables.create(ORDERS, term=TERM)
    await store.run("insert into state.t_1 select 0, 1, e::text, e, e + 1 from generate_series(1, 40) e")
    await store.tables.publish(DATABASE_GRAPH, Epoch(40), term=TERM, created=[ORDERS])
    await PostgresReadLogins(store.pool, store.logins.read).open(ReadLogin("t7"), READ_PASSWORD)
    return PostgresLending(store.pool, store.logins.read)


def read(store: Store, query: str) -> list[tuple[object, ...]]:
    with psycopg.connect(url_as(store.url, f"{store.logins.read}_t7", READ_PASSWORD), autocommit=True) as connection:
        return connection.execute(query.encode()).fetchall()


async def lend(lending: PostgresLending, epoch: int, loan: Loan = LOAN) -> None:
    await lending.lend([ORDERS], {DATABASE_GRAPH: Epoch(epoch)}, loan=loan)


async def vacuum(store: Store, epoch: int) -> int:
    return await store.tables.vacuum([RelationId(1)], DATABASE_GRAPH, Epoch(epoch), term=TERM)


async def test_what_is_lent_is_read_by_vnodes_and_nothing_else_is(store: Store, lending: PostgresLending) -> None:
    at = "from state.t_1 where _vnode = 0 and _from <= 20 and _to > 20"
    with pytest.raises(errors.InsufficientPrivilege):
        read(store, f"select id {at}")
    await lend(lending, 20)
    await vacuum(store, 40)
    assert read(store, f"select id, _from, _to {at}") == [(1, 20, 21)]
    # A hidden column may be what the author of a view did not want to show.
    for query in (f"select v {at}", f"select * {at}", "select * from state.fence", "table state.pin"):
        with pytest.raises(errors.InsufficientPrivilege):
            read(store, query)
    with pytest.raises(errors.InsufficientPrivilege):
        read(store, "begin; lock table state.t_1 in share mode")


async def test_i13_a_loan_that_nobody_renews_keeps_nothing(
    store: Store, lending: PostgresLending, monkeypatch: pytest.MonkeyPatch
) -> None:
    await lend(lending, 20)
    assert await lending.renew(str(LOAN))
    monkeypatch.setattr(lending_module, "LOAN_SECONDS", 0)
    assert await lending.renew(str(LOAN))
    assert not await lending.renew(str(LOAN))
    assert await vacuum(store, 40) == 39
    with pytest.raises(Conflict, match="epoch 20 can no longer be read"):
        await lend(lending, 20)


async def test_a_loan_that_ended_keeps_nothing(store: Store, lending: PostgresLending) -> None:
    await lend(lending, 20)
    await lending.end("loan.t7.1.other")
    assert await vacuum(store, 40) == 19
    await lending.end(str(LOAN))
    assert await vacuum(store, 40) == 20


async def test_a15_a_borrower_has_so_many_loans_however_many_calls_come_at_once(
    store: Store, lending: PostgresLending
) -> None:
    """Calls at once all found room, because each took its loan after it had counted those of the caller."""
    for number in range(LOANS_MAX - 1):
        await lend(lending, 20, Loan("t7", NOW, str(number)))
    await lend(lending, 20, Loan("t70", NOW, "0"))
    with psycopg.connect(store.url) as holding, psycopg.connect(store.url, autocommit=True) as looking:
        holding.execute("select from state.horizon for update")
        calls = [asyncio.create_task(lend(lending, 20, Loan("t7", NOW, f"late{number}"))) for number in range(3)]
        await asyncio.to_thread(until, lambda: looking.execute(_WAITING).fetchone() == (3,), what="all calls wait")
    ended = await asyncio.gather(*calls, return_exceptions=True)
    assert sorted("reads 8 epochs already" in str(one) for one in ended) == [False, True, True]
    with pytest.raises(Conflict, match="reads 8 epochs already"):
        await lend(lending, 20)
    await lending.end(str(Loan("t7", NOW, "0")))
    await lend(lending, 20)
