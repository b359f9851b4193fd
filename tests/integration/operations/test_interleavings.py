"""Two transactions in the order in which they once hurt each other."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from service.domain.barrier import Inject
from service.domain.errors import Conflict
from service.domain.job import JobEvent
from service.meta_store.commands import PostgresCommands
from service.operations import jobs, limits, secrets
from service.operations.parameters import alter
from service.protocol.barrier import BarrierKind
from service.protocol.ids import DATABASE_GRAPH, RelationId
from tests.support.http import StillClock
from tests.support.leading import Leader, leading
from tests.support.meta_store import NOW, WORKER, new_table
from tests.support.waiting import until

pytestmark = pytest.mark.postgres


@pytest.fixture
async def leader(database_url: str) -> AsyncGenerator[Leader]:
    async with leading(database_url) as one:
        yield one


async def test_h1_a_limit_waits_for_the_drop_of_its_job_and_neither_fails(leader: Leader, database_url: str) -> None:
    """The drop has the job and takes its fragments; a limit that had the fragments and took the job was a deadlock."""
    (job,), _ = await leader.add_views(1, named="m")
    async with leader.stores.begin() as dropping:
        entry = await dropping.catalog.named("m0")
        assert entry is not None
        assert await dropping.actors.hold(job) is not None
        limiting = asyncio.create_task(limits.throttle_job(leader.world, job, 5, asked_by="a test"))
        await asyncio.to_thread(until, lambda: waiting_for_a_lock(database_url), what="it waits for the job")
        for event in (JobEvent.CANCEL_ASKED, JobEvent.STOPPED):
            await dropping.jobs.move(job, event, now=NOW)
        await dropping.catalog.remove(RelationId(entry.relation.id))
    with pytest.raises(Conflict):
        await limiting


async def test_if_not_exists_finds_the_table_that_another_call_was_quicker_to_create(
    leader: Leader, database_url: str
) -> None:
    async with leader.stores.begin() as other:
        job = await other.jobs.add(new_table("t"), now=NOW)
        create = jobs.create(leader.world, new_table("t"), if_not_exists=True, asked_by="a test")
        creating = asyncio.create_task(create)
        await asyncio.to_thread(until, lambda: waiting_for_a_lock(database_url), what="it waits for the name")
    assert await creating == jobs.Asked(job.id, existed=True)
    with pytest.raises(Conflict, match="still being created"):
        await jobs.create(leader.world, new_table("t"), if_not_exists=False, asked_by="a test")


async def test_if_not_exists_finds_the_secret_that_another_call_was_quicker_to_create(
    leader: Leader, database_url: str
) -> None:
    async with leader.stores.begin() as other:
        await other.secrets.add("s", "first")
        create = secrets.create(leader.world, "s", "second", if_not_exists=True, asked_by="a test")
        creating = asyncio.create_task(create)
        await asyncio.to_thread(until, lambda: waiting_for_a_lock(database_url), what="it waits for the name")
    assert await creating == ('secret "s" already exists, skipping',)
    with pytest.raises(Conflict, match="exists"):
        await secrets.create(leader.world, "s", "second", asked_by="a test")


def waiting_for_a_lock(database_url: str) -> bool:
    query = "select from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
    with psycopg.connect(database_url) as connection:
        return bool(connection.execute(query).fetchall())


async def test_c15_a_flush_that_comes_while_a_barrier_is_made_rides_on_a_checkpoint(
    leader: Leader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I4: the kind is decided by the commands that the barrier carries, not by those of a moment before."""
    await leader.barrier()
    await alter(leader.world, {"checkpoint_frequency": "10"}, asked_by="a test")
    async with leader.stores.begin() as tx:
        await tx.commands.add(DATABASE_GRAPH, None, asked_by="the adaptive limit", now=NOW, hurried=False)
    read = PostgresCommands.waiting

    async def late(self: PostgresCommands, *args: Any) -> Any:
        monkeypatch.setattr(PostgresCommands, "waiting", read)
        async with leader.stores.begin() as other:
            await other.commands.add(DATABASE_GRAPH, None, asked_by="a test", now=NOW)
        return await read(self, *args)

    monkeypatch.setattr(PostgresCommands, "waiting", late)
    leader.world = replace(leader.world, clock=StillClock(NOW + timedelta(seconds=2)))
    assert isinstance(await leader.look(), Inject)
    async with leader.stores.begin() as tx:
        barrier = await tx.barriers.for_worker(WORKER)
    assert barrier is not None
    assert barrier.kind is BarrierKind.CHECKPOINT
