"""A partitioned table is followed as one; what comes or goes with a partition is in no log, and never passed over."""

import pytest

from tests.support.cdc_steps import NUMBERS, PARTED, Started, finish, move, put, remove

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(120)]


async def test_rows_move_between_partitions_of_different_identities(started: Started) -> None:
    """Read, half read and not read; the long value of a row that moves is sent."""
    async with started(PARTED) as world:
        external, writer = world.external, world.external.writer()
        external.admin.execute("alter table low replica identity full")
        for key in (-5, -4, 2, 3, 20, 21):
            put(external, writer, PARTED, key, "x" * 9000)
        external.commit(writer)
        await world.epoch(world.throttled(5_000))
        for old, new in ((-5, 30), (20, -9), (2, 3000), (3, -30)):
            move(external, writer, PARTED, old, new)
            external.commit(writer)
            await world.epoch()
        remove(external, writer, PARTED, -4)
        external.commit(writer)
        await finish(world)
        move(external, writer, PARTED, -9, 9)
        external.commit(writer)
        await world.epoch()
        assert [row[0] for row in await world.rows(PARTED)] == [-30, 9, 21, 30, 3000]
        external.empty(writer, "parted")
        put(external, writer, PARTED, 1, "after")
        external.commit(writer)
        await world.epoch()
        assert [row[0] for row in await world.rows(PARTED)] == [1]


@pytest.mark.parametrize(
    ("statements", "reason"),
    [
        (("alter table parted detach partition low",), "detached or dropped"),
        (("drop table low",), "detached or dropped"),
        (
            (
                "alter table parted detach partition low",
                "alter table parted attach partition low for values from (minvalue) to (0)",
            ),
            "detached or dropped",
        ),
        (
            (
                "create table later (like parted including all)",
                "insert into later values (4001, 1, 'x')",
                "alter table parted attach partition later for values from (4000) to (5000)",
            ),
            "partition public.later was attached with rows",
        ),
    ],
)
async def test_rows_that_come_and_go_with_partitions_stop_the_table(
    started: Started, statements: tuple[str, ...], reason: str
) -> None:
    async with started(PARTED, NUMBERS, rows=12) as world:
        await finish(world)
        for statement in statements:
            world.external.admin.execute(statement.encode())
        await world.recover()
        await world.epoch()
        assert list(world.broken) == [PARTED.fragment]
        assert reason in world.broken[PARTED.fragment]


async def test_partitions_that_come_without_rows_are_followed(started: Started) -> None:
    """Made in one step or in two, filled afterwards; one that came later and goes is noticed as well."""
    async with started(PARTED, NUMBERS, rows=3) as world:
        await finish(world)
        external, writer = world.external, world.external.writer()
        for statement in (
            "create table whole partition of parted for values from (4000) to (5000)",
            "create table apart (like parted including all)",
            "alter table parted attach partition apart for values from (5000) to (6000)",
        ):
            external.admin.execute(statement.encode())
        for key in (4001, 5001):
            put(external, writer, PARTED, key, "new")
        external.commit(writer)
        await world.epoch()
        assert world.broken == {}
        assert len(await world.rows(PARTED)) == 5
        external.admin.execute("drop table apart")
        await world.epoch()
        assert "detached or dropped" in world.broken[PARTED.fragment]
