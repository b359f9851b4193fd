"""The external table changes: what can be followed is, the rest stops that table, with the reason, and no other."""

import pytest

from service.protocol.cdc import SourceReport
from tests.support.cdc_steps import NUMBERS, SPLIT, Started, add, finish
from tests.support.real_cdc import CdcWorld, Followed

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


WIDE = Followed(
    41,
    "wide",
    (("k", "text"), ("v", "text"), ("m", "numeric(12,2)"), ("e", "numeric(10,2)"), ("t", "text")),
    1,
    there=(("k", "varchar(5)"), ("v", "varchar(5)"), ("m", "numeric(10,2)"), ("e", "numeric(10,2)")),
    collation='"C"',
)
WIDER = (
    'alter table wide alter k type varchar(9) collate "C", alter v type text collate "C",'
    " alter m type numeric(12,2), alter e type numeric"
)
LONGER = "insert into wide select 'a12345' || n, repeat('v', 9), 1234567890.12, 1.5 from generate_series(10, 29) n"


async def wide_rows(world: CdcWorld) -> None:
    there = world.external.admin.execute("select k, v, m, e, t from wide order by k").fetchall()
    assert await world.rows(WIDE) == there


@pytest.mark.parametrize("history", [False, True])
async def test_f6_a_column_whose_type_gets_wider_is_followed(started: Started, history: bool) -> None:
    """Also while history is read, where the positions are keys that the old type would cut off."""
    async with started(WIDE) as world:
        world.model = False
        world.external.admin.execute("insert into wide select 'a' || n, n, n, n from generate_series(10, 29) n")
        if not history:
            await finish(world)
        world.external.admin.execute(WIDER.encode())
        long = (
            "insert into wide select 'a12345' || n, repeat('v', 9), 1234567890.12, 1.5 from generate_series(10, 29) n"
        )
        world.external.admin.execute(long.encode())
        await finish(world)
        world.external.admin.execute("update wide set v = 'other', e = -2.25 where k in ('a1234512', 'a12')")
        await world.epoch()
        assert world.broken == {}
        await wide_rows(world)
        world.external.admin.execute("update wide set e = 1.005 where k = 'a11'")
        await world.epoch()
        assert "1.005 does not fit numeric(10,2)" in world.broken[WIDE.fragment]
        assert "at (k)=(a11)" in world.broken[WIDE.fragment]


async def test_f6_a_page_does_not_round_a_number_of_a_wider_type(started: Started) -> None:
    async with started(WIDE) as world:
        world.model = False
        world.external.admin.execute(WIDER.encode())
        world.external.admin.execute("insert into wide values ('a', '', 0, 1.005)")
        await world.epoch(world.throttled(None), interval_ms=50)
        assert "1.005 does not fit numeric(10,2)" in world.broken[WIDE.fragment]


@pytest.mark.parametrize(
    ("ddl", "reason"),
    [
        ("alter v type varchar(9) using upper(v)", 'the values of its column "v" were rewritten'),
        ("alter m type numeric(12,2) using m * 100", 'the values of its column "m" were rewritten'),
        ("alter m type numeric(12,3)", 'column "m" is now of type numeric(12,3), not numeric(10,2)'),
        ("alter v type varchar(4)", 'column "v" is now of type character varying(4), not character varying(5)'),
    ],
)
async def test_f6_a_wider_type_with_other_values_breaks(started: Started, ddl: str, reason: str) -> None:
    async with started(WIDE) as world:
        world.model = False
        world.external.admin.execute("insert into wide values ('a', 'b', 1, 1)")
        await finish(world)
        world.external.admin.execute(f"alter table wide {ddl}".encode())
        await world.epoch()
        assert reason in world.broken[WIDE.fragment]


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
