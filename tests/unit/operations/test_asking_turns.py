"""Callers take turns with what they ask workers (I13)."""

import asyncio
from collections.abc import Awaitable, Callable
from itertools import islice

import pytest

from service.domain.errors import Unavailable
from service.operations import asking
from service.operations.sources.claiming import claimed
from service.operations.sources.lake import create_lake_table
from service.operations.world import World
from service.ports.audit import Asker
from service.protocol.connector import Connector
from service.protocol.request import Done
from service.sql.parse import parse
from service.sql.statements.lake import CreateLakeTable
from tests.support.fake_meta_store import FakeStores
from tests.support.http import StillClock, world_of
from tests.support.meta_store import A_TEST, new_table

LAKE = "create table t (a int, primary key (a)) with (connector = 'deltalake', location = '/srv/lake/t')"


async def _describes(world: World) -> None:
    statement = parse(LAKE)
    assert isinstance(statement, CreateLakeTable)
    await create_lake_table(world, statement, LAKE, {}, asked_by=A_TEST)


async def _claims(world: World) -> None:
    connector = Connector(name="deltalake", options={"location": "/srv/lake/t"}, secrets={})
    await claimed(world, connector, new_table("t").relation, asked_by=A_TEST)


@pytest.mark.parametrize("ask", [_describes, _claims])
async def test_i13_one_caller_asks_workers_a_few_things_at_once(
    ask: Callable[[World], Awaitable[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """200 CREATE TABLE of one caller asked the worker at once: the INSERTs of others waited for 4 s."""
    asked, answer = [0], asyncio.Event()

    async def counted(*_: object, **__: object) -> Done:
        asked[0] += 1
        await answer.wait()
        raise Unavailable("no worker")

    monkeypatch.setattr(asking, "_ask", counted)
    world = world_of(FakeStores(StillClock().now))
    tasks = [asyncio.ensure_future(ask(world)) for _ in range(200)]
    for each in islice(asyncio.as_completed(tasks), 148):
        with pytest.raises(Unavailable, match="2 looks of workers at tables in a lake of this caller run"):
            await each
    assert asked == [2]
    async with asyncio.timeout(10), asking.looking(world, Asker("another", A_TEST.role)):
        pass
    answer.set()
    said = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(one, Unavailable) for one in said)
    assert asked == [52]
