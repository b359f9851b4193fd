"""At most so many statements wait for an epoch (C8)."""

import pytest

from service.domain.backlog import Backlog
from service.domain.errors import Unavailable
from service.operations.rows import dml
from service.operations.world import World
from service.ports.audit import Asker, itself
from service.protocol.dml import Delete, StatementResult
from service.protocol.ids import Epoch
from tests.support.fake_meta_store import FakeStores
from tests.support.http import StillClock, world_of
from tests.support.meta_store import A_TEST, NOW, relation


async def accept(world: World, *, size: int = 1, by: Asker = A_TEST) -> None:
    """Accept a statement and do not wait for its answer."""
    one = Delete(id=await dml.reserve(world), relation=relation("t"), predicate="x" * size)
    with pytest.raises(Unavailable, match="stays queued"):
        await dml.run(world, one, asked_by=by)


async def waiting(world: World) -> int:
    async with world.stores.begin() as tx:
        return sum(queued.number for queued in (await tx.statements.backlog()).values())


async def test_c8_only_so_many_statements_wait() -> None:
    world = world_of(FakeStores(lambda: NOW), backlog=Backlog(statements_max=3))
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
    world = world_of(FakeStores(lambda: NOW), backlog=Backlog(bytes_max=20_000))
    await accept(world, size=10_000)
    with pytest.raises(Unavailable, match="TIDEFILL_DML_WAITING_BYTES_MAX"):
        await dml.run(world, Delete(id=await dml.reserve(world), relation=relation("t")), asked_by=A_TEST)
    assert await waiting(world) == 1


@pytest.mark.parametrize("backlog", [Backlog(statements_max=8), Backlog(bytes_max=80_000)])
async def test_a16_statements_of_one_caller_leave_room_for_those_of_others(backlog: Backlog) -> None:
    """One caller filled the whole backlog, and the statements of all others were refused until an epoch took some."""
    world = world_of(FakeStores(lambda: NOW), backlog=backlog)
    clock = world.clock
    assert isinstance(clock, StillClock)
    for number in range(4):
        clock.seconds += number % 2  # Counted anew, and added to what was counted.
        await accept(world, size=10_000)
    with pytest.raises(Unavailable, match="of this caller wait for an epoch"):
        await dml.run(world, Delete(id=await dml.reserve(world), relation=relation("t")), asked_by=A_TEST)
    for name in ("one", "another"):
        await accept(world, size=10_000, by=itself(name))
    assert await waiting(world) == 6
