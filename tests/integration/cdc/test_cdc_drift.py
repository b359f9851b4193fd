"""The external table changes: what can be followed is, the rest stops that table, with the reason, and no other."""

import pytest

from service.protocol.cdc import SourceReport
from tests.support.cdc_steps import Started, add, finish
from tests.support.cdc_tables import NUMBERS, SPLIT

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(120)]


@pytest.mark.parametrize(
    ("ddl", "reason"),
    [
        ("alter table numbers drop column n", 'column "n" was dropped'),
        ("alter table numbers rename column n to m", 'column "n" was renamed to "m"'),
        ("alter table numbers alter n type numeric(20,2)", 'column "n" is now of type numeric(20,2), not bigint'),
        ("alter table numbers replica identity nothing", 'column "id" is not part of the replica identity'),
        ("alter publication pub drop table numbers", 'not in the publication "pub" any more'),
    ],
)
async def test_a_table_that_changed_stops_with_the_reason(started: Started, ddl: str, reason: str) -> None:
    async with started(NUMBERS, SPLIT, rows=5) as world:
        await finish(world)
        admin = world.external.admin
        admin.execute(ddl.encode())
        admin.execute("insert into numbers (id) values (100)")
        add(world, SPLIT, 100, "goes on")
        await world.epoch()
        assert reason in world.broken[NUMBERS.fragment]
        assert "RELOAD reads it again" in world.broken[NUMBERS.fragment]
        assert world.waiting is None
        assert [row[0] for row in await world.rows(NUMBERS)] == [0, 1, 2, 3, 4]
        assert [row[0] for row in await world.rows(SPLIT)] == [0, 1, 2, 3, 4, 100]
        assert world.collected is not None
        # It stays so, also in the next generation.
        await world.recover()
        await world.epoch()
        assert len(await world.rows(NUMBERS)) == 5


async def test_a_column_that_was_added_is_passed_over(started: Started) -> None:
    async with started(NUMBERS, rows=3) as world:
        await finish(world)
        world.external.admin.execute("alter table numbers add column more text default 'x'")
        world.external.admin.execute("insert into numbers (id, n, t) values (9, 9, 'new')")
        world.model = False
        await world.epoch()
        assert world.broken == {}
        assert [row[0] for row in await world.rows(NUMBERS)] == [0, 1, 2, 9]


async def test_a_table_that_was_renamed_stops_at_the_next_look(started: Started) -> None:
    async with started(NUMBERS, rows=3) as world:
        await finish(world)
        world.external.admin.execute("alter table numbers rename to figures")
        await world.epoch()
        assert "not in the publication" in world.broken[NUMBERS.fragment]


async def test_a_publication_that_was_dropped_is_waited_for(started: Started) -> None:
    async with started(NUMBERS, rows=3) as world:
        await finish(world)
        before = world.offset
        world.external.admin.execute("drop publication pub")
        world.external.admin.execute("insert into numbers (id) values (100)")
        await world.epoch()
        assert 'publication "pub"' in str(world.waiting)
        assert world.offset == before
        assert len(await world.rows(NUMBERS)) == 3
        world.external.admin.execute("create publication pub for table numbers")


async def test_a_login_that_may_not_read_waits_for_its_pages(started: Started) -> None:
    async with started(NUMBERS, rows=3) as world:
        admin = world.external.admin
        admin.execute("create role follower login replication password 'hush'")
        url = world.external.url
        world.conninfo = f"{url}?options=-c%20role%3Dfollower"
        world.close()
        await world.recover()
        await world.epoch(world.throttled(None), interval_ms=50)
        assert world.collected is not None
        (source,) = world.collected.of(SourceReport)
        assert "permission denied" in str(source.waiting or source.tables[0].waiting)
        admin.execute("grant select on numbers to follower")
        await finish(world)
        assert len(await world.rows(NUMBERS)) == 3
        admin.execute("drop owned by follower")
        admin.execute("drop role follower")
