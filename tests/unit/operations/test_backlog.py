"""At most so many statements wait for an epoch (C8)."""

import pytest

from service.domain.backlog import Backlog
from service.domain.errors import Unavailable
from service.operations.rows import dml
from service.operations.world import World
from service.protocol.dml import Delete, StatementResult
from service.protocol.ids import Epoch
from tests.support.fake_meta_store import FakeStores
from tests.support.http import StillClock, world_of
from tests.support.meta_store import A_TEST, NOW, relation


async def accept(world: World, *, size: int = 1) -> None:
    """Accept a statement and do not wait for its answer."""
    one = Delete(id=await dml.reserve(world), relation=relation("t"), predicate="x" * size)
    with pytest.raises(Unavailable, match="stays queued"):
        await dml.run(world, one, asked_by=A_TEST)


async def waiting(world: World) -> int:
    async with world.stores.begin() as tx:
        return (await tx.statements.backlog())[0]


async def test_c8_only_so_many_statements_wait() -> None:
    world = world_of(FakeStores(lambda: NOW), backlog=Backlog(statements_max=2))
    for _ in range(2):
        await accept(world)
    one = Delete(id=await dml.reserve(world), relation=relation("t"))
    with pytest.raises(Unavailable, match="TIDEFILL_DML_WAITING_MAX"):
        await dml.run(world, one, asked_by=A_TEST)
    assert await waiting(world) == 2
    async with world.stores.begin() as tx:
        (oldest, _) = await tx.statements.waiting(limit=2)
        await tx.statements.finish([StatementResult(id=oldest.id, affected=1)], epoch=Epoch(1), now=NOW)
    clock = world.clock
    assert isinstance(clock, StillClock)
    clock.seconds += 1
    await accept(world)
    assert await waiting(world) == 2


async def test_c8_only_so_many_bytes_of_statements_wait() -> None:
    world = world_of(FakeStores(lambda: NOW), backlog=Backlog(bytes_max=10_000))
    await accept(world, size=10_000)
    with pytest.raises(Unavailable, match="TIDEFILL_DML_WAITING_BYTES_MAX"):
        await dml.run(world, Delete(id=await dml.reserve(world), relation=relation("t")), asked_by=A_TEST)
    assert await waiting(world) == 1
