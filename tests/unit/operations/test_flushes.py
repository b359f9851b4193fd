"""FLUSH: how many checkpoints a caller's calls force."""

import asyncio

import pytest

from service.operations.commands import mutations
from service.operations.world import Context
from service.protocol.ids import DATABASE_GRAPH, CommandId, Epoch
from tests.support.fake_meta_store import FakeStores
from tests.support.http import world_of
from tests.support.meta_store import A_TEST, NOW


async def test_i13_flushes_of_a_caller_that_come_together_share_a_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    """300 connections with a FLUSH each looked at every change of the meta store, and INSERTs of others took 15 s."""
    world, published, asked = world_of(FakeStores(lambda: NOW)), asyncio.Event(), asyncio.Event()

    async def applied(_: Context, command: CommandId) -> Epoch:
        asked.set()
        await published.wait()
        return Epoch(command)

    monkeypatch.setattr(mutations, "applied", applied)
    first = asyncio.create_task(mutations.flush(world, asked_by=A_TEST))
    await asked.wait()
    others = [asyncio.create_task(mutations.flush(world, asked_by=A_TEST)) for _ in range(20)]
    # An epoch that began before a call may lack what the caller wrote just before it.
    await asyncio.sleep(0)  # noqa: TID251 - they begin
    published.set()
    epochs = {await one for one in others}
    async with world.stores.begin() as tx:
        commands = [command.id for command in await tx.commands.waiting(DATABASE_GRAPH)]
    assert [{await first}, epochs] == [{one} for one in commands]
    assert len(world.calls.flushes) <= 1
