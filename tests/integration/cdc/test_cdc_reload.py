"""F6: ALTER TABLE .. RELOAD reads a followed table again over its stored rows. Only rows that differ are written."""

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from service.protocol.plan import PositionState
from service.protocol.relation import state_table
from service.protocol.report import ActorReport
from tests.support.cdc_steps import ENTIRE, NUMBERS, SPLIT, STAMPED, Started, add, execute, finish, move, put, remove
from tests.support.real_cdc import CdcWorld, Followed

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(120)]

LOCAL = Followed(31, "local", (("a", "text"), ("n", "bigint"), ("t", "text")), 1, collation='"C"')


async def outside(world: CdcWorld, table: Followed) -> list[Any]:
    names = ", ".join(name for name, _ in table.columns)
    return sorted(world.external.admin.execute(f"select {names} from {table.name}".encode()).fetchall(), key=str)


async def inside(world: CdcWorld, table: Followed) -> list[Any]:
    return sorted((row[: len(table.columns)] for row in await world.rows(table)), key=str)


async def reload(world: CdcWorld, *tables: Followed, kills: bool = False) -> int:
    """Reload to the end, and return the number of epochs."""
    for table in tables:
        await world.epoch(world.reload(table), interval_ms=50)
    for number in range(60):
        if all(table.fragment in world.finished for table in tables):
            return number
        await world.epoch(kill=kills and number % 2 == 0, interval_ms=50)
    raise AssertionError(f"the reload does not end: {world.collected!r}")


@pytest.mark.parametrize("kills", [False, True])
async def test_f6_a_broken_table_is_mended_in_place(started: Started, kills: bool) -> None:
    async with started(SPLIT, NUMBERS, rows=12) as world:
        await finish(world)
        await world.epoch()
        execute(world, "alter table split alter t type text using case when id < 3 then upper(t) else t end")
        await world.epoch()
        assert "RELOAD reads it again" in world.broken[SPLIT.fragment]
        execute(
            world,
            "delete from split where id in (5, 11)",
            "insert into split values (-20, 1, 'new'), (500, 2, 'new')",
            "update split set n = 77 where id = 7",
        )
        world.model = False
        await world.epoch()
        before = world.committed
        assert await inside(world, SPLIT) != await outside(world, SPLIT)
        await reload(world, SPLIT, kills=kills)
        assert world.broken == {}
        assert await inside(world, SPLIT) == await outside(world, SPLIT)
        made = await world.store.rows(
            f"select id from {state_table(SPLIT.relation.id)} where _from > {before} and _to = 9223372036854775807"
        )
        assert sorted(int(str(row[0])) for row in made) == [-20, 0, 1, 2, 7, 500]
        ended = await world.store.rows(
            f"select id from {state_table(SPLIT.relation.id)} where _to > {before} and _to < 9223372036854775807"
        )
        assert sorted(int(str(row[0])) for row in ended) == [0, 1, 2, 5, 7, 11]
        add(world, SPLIT, 600, "after")
        await world.epoch()
        assert await inside(world, SPLIT) == await outside(world, SPLIT)
        assert world.keys[SPLIT.relation.id] == len(await world.rows(SPLIT))


async def test_f6_a_row_that_ends_after_the_sweep_and_before_its_page_does_not_stay(started: Started) -> None:
    """The page shows the end, so the fold skips it. The page itself removes no row."""
    async with started(NUMBERS, rows=12) as world:
        await finish(world)
        await world.epoch(world.reload(NUMBERS), interval_ms=50)
        external, writer = world.external, world.external.writer()
        remove(external, writer, NUMBERS, 0)
        remove(external, writer, NUMBERS, 1)
        move(external, writer, NUMBERS, 2, 99)
        external.commit(writer)
        put(external, writer, NUMBERS, 1, "again")
        external.commit(writer)
        await world.epoch(interval_ms=50)
        assert world.collected is not None
        assert sum(report.snapshot_rows for report in world.collected.of(ActorReport)) > 0
        for _ in range(10):
            await world.epoch(interval_ms=50)
        assert NUMBERS.fragment in world.finished
        assert await inside(world, NUMBERS) == await outside(world, NUMBERS)


async def test_f6_an_old_value_does_not_move_to_where_it_would_stay(started: Started) -> None:
    """The log omits the long value of a row that moves from a key that is not read again to one that is."""
    async with started(NUMBERS) as world:
        world.model = False
        execute(world, "insert into numbers select id, id, repeat('old', 3000) from generate_series(0, 29) id")
        await finish(world)
        execute(world, "alter table numbers alter t type text using upper(t), alter t set storage external")
        await world.epoch(world.throttled(20))
        await world.epoch(world.reload(NUMBERS))
        while not world.stored[NUMBERS.fragment]:
            await world.epoch()
        assert world.stored[NUMBERS.fragment][0].state is PositionState.IN_PROGRESS
        execute(world, "update numbers set id = -5 where id = 29")
        await world.epoch(world.throttled(0))
        await finish(world)
        assert await inside(world, NUMBERS) == await outside(world, NUMBERS)


@pytest.mark.parametrize("seed", range(3))
async def test_f6_a_healthy_table_is_right_while_it_is_reloaded(started: Started, seed: int) -> None:
    """Writers go on, and every second epoch is lost. Changes count before their key is read again."""
    random = Random(seed)
    async with started(SPLIT, ENTIRE, rows=12) as world:
        await finish(world)
        await world.epoch()
        for table in (SPLIT, ENTIRE):
            await world.epoch(world.reload(table))
        for number in range(30):
            for _ in range(random.randrange(4)):
                world.external.change(random)
            await world.epoch(kill=number % 3 == 0, interval_ms=20)
        world.external.rest()
        for _ in range(10):
            await world.epoch(interval_ms=50)
        assert {SPLIT.fragment, ENTIRE.fragment} <= world.finished
        for table in (SPLIT, ENTIRE):
            assert await inside(world, table) == await outside(world, table)


async def test_f6_an_equal_table_has_no_new_version(started: Started) -> None:
    async with started(STAMPED, rows=12) as world:
        await finish(world)
        await world.epoch()
        before = world.committed
        await reload(world, STAMPED)
        changed = f"_from > {before} or _to < 9223372036854775807"
        assert await world.store.rows(f"select id from {state_table(STAMPED.relation.id)} where {changed}") == []


async def test_f6_keys_that_are_texts(started: Started) -> None:
    async with started(LOCAL) as world:
        world.model = False
        execute(
            world, "insert into local values ('a', 1, 'x'), ('B', 2, 'x'), ('é', 3, 'x'), ('z', 4, 'x'), ('', 5, 'x')"
        )
        await finish(world)
        execute(world, "alter table local alter t type text using upper(t)")
        await world.epoch()
        execute(world, "delete from local where a in ('B', 'z')", "insert into local values ('Ö', 6, 'y')")
        await world.epoch()
        await reload(world, LOCAL)
        assert await inside(world, LOCAL) == await outside(world, LOCAL)


async def test_f6_a_reload_stops_for_a_pause_and_keeps_its_limit(started: Started) -> None:
    async with started(replace(NUMBERS, number=33, name="limited"), rows=12) as world:
        (table,) = world.external.tables.values()
        await finish(world)
        await world.epoch()
        await world.epoch(world.throttled(0))
        execute(world, "alter table limited alter n type bigint using n + 1")
        world.model = False
        await world.epoch()
        await world.epoch(world.reload(table))
        for _ in range(4):
            await world.epoch(interval_ms=50)
        assert table.fragment not in world.finished
        assert await inside(world, table) != await outside(world, table)
        await world.epoch(world.throttled(None))
        for _ in range(20):
            await world.epoch(interval_ms=50)
        assert table.fragment in world.finished
        assert await inside(world, table) == await outside(world, table)
