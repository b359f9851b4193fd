"""Bugs that others had with history that is read while changes stream (reference 2.5 and 2.6), each as it happens."""

import pytest

from service.protocol.plan import PositionState, VnodePosition
from tests.support.cdc_steps import NUMBERS, SPLIT, Started, finish, put, remove
from tests.support.real_cdc import CdcWorld, Followed

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(120)]

FIRST, SECOND, LAST = 1, 2, 3
"""Splits of `SPLIT`: keys below 20, 20 alone, and those above."""


def position(world: CdcWorld, split: int) -> VnodePosition | None:
    return world.stored.get(SPLIT.fragment, {}).get(split)


def removed(world: CdcWorld, table: Followed, *keys: int) -> None:
    """Delete rows in one transaction."""
    writer = world.external.writer()
    for key in keys:
        remove(world.external, writer, table, key)
    world.external.commit(writer)


async def keys(world: CdcWorld, table: Followed) -> list[int]:
    return [row[0] for row in await world.rows(table)]


async def test_changes_until_a_new_reader_is_there_are_kept(started: Started) -> None:
    """#27026: of keys that were read, while the reader is made and while it waits for its first barrier."""
    async with started(NUMBERS, rows=30) as world:
        await world.epoch(world.throttled(5_000))
        assert 0 < len(await world.rows(NUMBERS)) < 30
        good, world.conninfo = world.conninfo, "host=127.0.0.1 port=1 user=nobody password=hush"
        removed(world, NUMBERS, 0)
        await world.recover()
        removed(world, NUMBERS, 1)
        # It cannot be reached at first; barriers go on.
        await world.epoch()
        removed(world, NUMBERS, 2)
        world.conninfo = good
        writer = world.external.writer()
        put(world.external, writer, NUMBERS, 0, "again")
        world.external.commit(writer)
        await finish(world)
        assert await keys(world, NUMBERS) == [0, *range(3, 30)]


async def test_deletes_at_a_scale_in_are_kept(started: Started) -> None:
    """#27022: of splits that are read, that are being read, and that go to another actor half read."""
    async with started(SPLIT, rows=60) as world:
        await world.epoch(world.rescaled(3))
        await world.epoch(world.throttled(5_000))
        while not all(position(world, split) for split in (FIRST, SECOND, LAST)):
            await world.epoch()
        first, second, last = (position(world, split) for split in (FIRST, SECOND, LAST))
        assert first is not None
        assert second is not None
        assert last is not None
        assert [one.state for one in (first, second, last)].count(PositionState.IN_PROGRESS) >= 1
        assert second.state is PositionState.COMPLETED
        removed(world, SPLIT, 0, 20, 21, 59)
        await world.epoch(world.rescaled(1))
        removed(world, SPLIT, 1, 22, 58)
        await finish(world)
        assert await keys(world, SPLIT) == [key for key in range(60) if key not in {0, 1, 20, 21, 22, 58, 59}]


async def test_deletes_of_an_epoch_that_never_committed_are_kept(started: Started) -> None:
    """#27027: they were applied, and then rolled back with the epoch."""
    async with started(SPLIT, rows=60) as world:
        await world.epoch(world.throttled(5_000))
        while position(world, FIRST) is None:
            await world.epoch()
        removed(world, SPLIT, 0, 1)
        await world.epoch(kill=True)
        await finish(world)
        assert await keys(world, SPLIT) == list(range(2, 60))


async def test_deletes_of_a_split_that_is_half_read_are_kept_across_a_recovery(started: Started) -> None:
    """#27028: before and behind the position; the split is read on by somebody else."""
    async with started(SPLIT, rows=60) as world:
        await world.epoch(world.rescaled(2))
        await world.epoch(world.throttled(5_000))
        while (last := position(world, LAST)) is None:
            await world.epoch()
        assert last.state is PositionState.IN_PROGRESS
        assert last.key is not None
        reached = int(last.key[0] or "")
        await world.epoch(kill=True)
        removed(world, SPLIT, 21, reached, reached + 1, 59)
        world.actors = 1
        await world.recover()
        removed(world, SPLIT, 22)
        await finish(world)
        assert await keys(world, SPLIT) == [key for key in range(60) if key not in {21, 22, reached, reached + 1, 59}]
