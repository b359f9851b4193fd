"""Calls of one caller leave the service to others (I13)."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, cast

import pytest
from sqlalchemy import text

from service.domain.errors import Conflict, Unavailable
from service.domain.lending import LOAN_LIFE
from service.domain.roles import Role
from service.meta_store import stores as meta_stores
from service.meta_store.engine import CALLS_AT_ONCE
from service.meta_store.stores import PostgresStores
from service.operations.jobs import lifecycle
from service.operations.rows import lending
from service.operations.world import Logins
from service.ports.audit import Asker
from service.protocol.epoch import SEQUENCE_BITS
from service.protocol.ids import DATABASE_GRAPH, Epoch
from service.turns import CALLER
from tests.support.http import WORKER_TOKEN, StillClock, doors, refused, world_of
from tests.support.meta_store import NOW, stores_on, table_and_view

pytestmark = pytest.mark.postgres
WORKER = {"Authorization": f"Bearer {WORKER_TOKEN}"}


@pytest.fixture
async def stores(database_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[PostgresStores]:
    monkeypatch.setattr(meta_stores, "POOL_TIMEOUT_SECONDS", 0.05)
    async with stores_on(database_url) as (opened, _):
        yield opened


async def taken(stack: AsyncExitStack, stores: PostgresStores, caller: str | None) -> int:
    """Begin transactions as long as a caller may, and return how many there were."""
    CALLER.set(caller)
    for number in range(CALLS_AT_ONCE):
        try:
            await stack.enter_async_context(stores.begin())
        except Unavailable:
            return number
    return CALLS_AT_ONCE


async def test_i13_transactions_of_one_caller_leave_connections_to_others(stores: PostgresStores) -> None:
    """Hundreds of calls of one caller took all connections, and everybody else waited for theirs, barriers, too."""
    async with AsyncExitStack() as stack:
        assert await taken(stack, stores, "one") == CALLS_AT_ONCE // 2
        assert await taken(stack, stores, "other") == CALLS_AT_ONCE // 4
        CALLER.set(None)
        async with stores.begin() as tx:
            await tx.graphs.state(DATABASE_GRAPH)


async def test_i13_a_call_runs_for_its_caller_and_a_workers_for_nobody(database_url: str) -> None:
    seen: list[str | None] = []

    class Seeing(PostgresStores):
        def begin(self, *given: Any, **named: Any) -> Any:
            seen.append(CALLER.get())
            return super().begin(*given, **named)

    async with stores_on(database_url) as (_, engine), doors(Seeing(engine)) as http:
        await asyncio.create_task(http.get("/v1/jobs"))
        assert set(seen) == {"http 127.0.0.1"}
        seen.clear()
        await asyncio.create_task(http.get("/internal/v1/secrets?name=none", headers=WORKER))
        assert set(seen) == {None}


async def test_i13_a_statement_of_very_many_names_is_refused(database_url: str) -> None:
    """Each column was stored, and each relation looked up, in a transaction that held up the service."""
    columns = ", ".join(f"c{number} int" for number in range(1_601))
    names = ", ".join(f"t{number}" for number in range(1_001))
    async with stores_on(database_url) as (stores, _), doors(stores) as http:
        for statement, detail in (
            (f"CREATE TABLE wide ({columns}, PRIMARY KEY (c1))", "tables can have at most 1600 columns"),
            (f"SELECT 1 FROM {names}", "a query can name at most 1000 relations"),
        ):
            # Nobody leads: a statement that is accepted would wait for ever.
            async with asyncio.timeout(60):
                answer = await http.post("/v1/sql", json={"sql": statement})
            assert detail in refused(answer, 422, "invalid")["detail"]


def made_at(instant: datetime) -> Epoch:
    return Epoch(int(instant.timestamp() * 1000) << SEQUENCE_BITS)


@dataclass
class Lent:
    """Keeps the epochs that are lent."""

    epochs: list[int] = field(default_factory=list[int])

    async def lend(self, _: object, epochs: dict[int, Epoch], **__: object) -> None:
        self.epochs += epochs.values()


async def test_i13_an_epoch_is_lent_no_longer_by_one_loan_after_the_other(database_url: str) -> None:
    """A caller who lent one epoch again before each loan ended kept all later versions of everybody's rows."""
    async with stores_on(database_url) as (stores, engine):
        await table_and_view(stores)
        clock, kept = StillClock(), Lent()
        world = world_of(stores, clock=clock, logins=Logins(lending=cast("Any", kept)))
        newest, asker = made_at(NOW), Asker("token 7 (x)", Role.VIEWER)
        async with engine.begin() as connection:
            reached = "update tidefill.graph set newest = :of, committed = :of, published = :of"
            await connection.execute(text(reached), {"of": newest})
            await connection.execute(text("update tidefill.relation set shown = true"))
        for age in (timedelta(0), LOAN_LIFE, LOAN_LIFE + timedelta(seconds=1)):
            lent = made_at(clock.wall - age)
            if age <= LOAN_LIFE:
                await lending.lend(world, ["t"], lent, asked_by=asker)
                assert kept.epochs.pop() == lent
            else:
                with pytest.raises(Conflict, match="can no longer be read: it is older than"):
                    await lending.lend(world, ["t"], lent, asked_by=asker)
        # The newest one may be as old as it is: nothing was written meanwhile.
        later = replace(world, clock=StillClock(wall=clock.wall + 3 * LOAN_LIFE))
        await lending.lend(later, ["t"], newest, asked_by=asker)


@dataclass
class Lends:
    """Counts the calls that are in progress."""

    now: int = 0
    most: int = 0

    async def lend(self, *_: object, **__: object) -> None:
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(0)  # noqa: TID251 - the others run
        self.now -= 1


async def test_i13_loans_take_turns(database_url: str) -> None:
    """Loans of one caller wait for each other: 120 of them held all connections for the answers of others."""
    async with stores_on(database_url) as (stores, engine):
        await table_and_view(stores)
        async with engine.begin() as connection:
            await connection.execute(text("update tidefill.relation set shown = true"))
        lends = Lends()
        world = world_of(stores, logins=Logins(lending=cast("Any", lends)))
        asker = Asker("token 7 (x)", Role.VIEWER)
        await asyncio.gather(*(lending.lend(world, ["t"], None, asked_by=asker) for _ in range(20)))
        assert lends.most <= 2


async def test_i13_a_cancel_holds_no_job_that_is_not_being_created(database_url: str) -> None:
    """A CANCEL with 38,000 ids held all jobs for a minute."""
    async with stores_on(database_url) as (stores, _):
        table, _ = await table_and_view(stores)
        async with stores.begin() as tx, asyncio.timeout(30):
            await tx.jobs.hold_all([table.id])
            await lifecycle.give_up(world_of(stores), table.id, "it is not being created")
