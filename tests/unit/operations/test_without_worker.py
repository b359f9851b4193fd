"""What is said of a statement that needs a worker where none is alive (H4)."""

from collections.abc import Collection
from datetime import timedelta

import pytest

from service.domain.errors import Invalid, Unavailable
from service.operations.statements import dispatch
from service.operations.statements.targets import PURGE_WAIT, release
from service.operations.verify import worker_rpc
from service.protocol.connector import Connector
from service.protocol.ids import RequestId
from service.protocol.request import ReleaseTarget
from tests.support.fake_meta_store import FakeStores
from tests.support.fake_state_store import FakePins, StateStore
from tests.support.http import StillClock, changed, world_of
from tests.support.meta_store import A_TEST, add_created, new_table, stores_on, table_and_view


@pytest.mark.postgres
async def test_h4_without_a_worker_and_a_launcher_it_is_refused_at_once(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_rpc, "VERIFY_WAIT", timedelta(seconds=30))
    async with stores_on(database_url) as (stores, _):
        _, view = await table_and_view(stores)
        pins = FakePins(StateStore())
        alone, launching = world_of(stores, pins=pins), world_of(stores, pins=pins, startable=True)
        with pytest.raises(Unavailable, match="no worker is alive, and this service starts none"):
            await worker_rpc.verify(alone, view.id, asked_by=A_TEST)
        assert alone.clock.monotonic() == 0
        with pytest.raises(Unavailable, match="no worker is alive: try again when one is"):
            await worker_rpc.verify(launching, view.id, asked_by=A_TEST)
    assert launching.clock.monotonic() == 30


@pytest.mark.postgres
async def test_files_that_no_worker_removes_are_told_of_and_waited_for_once(database_url: str) -> None:
    tables = [new_table(name).relation for name in ("one", "two")]
    connector = Connector(name="deltalake")
    targets = [ReleaseTarget(id=RequestId(0), connector=connector, relation=one, purge=True) for one in tables]
    async with stores_on(database_url) as (stores, _):
        world = world_of(stores, startable=True)
        left = await release(world, targets, asked_by=A_TEST)
    assert [one.split(" is dropped, and not all files")[0] for one in left] == ["one", "two"]
    assert world.clock.monotonic() == PURGE_WAIT.total_seconds()


async def test_h4_what_needs_no_worker_is_refused_before_one_is_asked() -> None:
    stores = FakeStores(StillClock().now)
    async with stores.begin() as tx:
        await add_created(tx, new_table("t"))
    text = "create materialized view m with (cloud.serverless_backfill_enabled = true) as select * from t"
    alone = world_of(stores)
    with pytest.raises(Invalid, match="Serverless Backfill is disabled"):
        await dispatch.run(alone, text, session={}, asked_by=A_TEST)
    assert alone.clock.monotonic() == 0


async def test_a_resource_group_is_a_profile_of_the_worker_of_one_job() -> None:
    stores = FakeStores(StillClock().now)
    async with stores.begin() as tx:
        await add_created(tx, new_table("t"))
    text = "create materialized view m with ({}resource_group = 'huge') as select * from t"
    shared, own = text.format(""), text.format("cloud.serverless_backfill_enabled = true, ")

    async def listed() -> Collection[str]:
        return {"serverless", "big"}

    processes = world_of(stores, startable=True)
    pods = changed(processes, profiles=listed)
    with pytest.raises(Invalid, match="SET enable_serverless_backfill = true, or leave the option out"):
        await dispatch.run(pods, shared, session={}, asked_by=A_TEST)
    with pytest.raises(Invalid, match="this service starts workers as processes"):
        await dispatch.run(processes, own, session={}, asked_by=A_TEST)
    with pytest.raises(Invalid, match=r'"huge" does not exist\. The profiles of workers are: big, serverless'):
        await dispatch.run(pods, own, session={}, asked_by=A_TEST)
