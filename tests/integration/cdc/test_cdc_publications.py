"""What is published changes: a change that the log has not got is never passed over in silence (I1)."""

import pytest

from tests.support.cdc_steps import NUMBERS, SPLIT, Started, add, execute, finish

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(120)]

LOST = "delete from numbers where id = 3"
"""What is not told, or not of the table that it was."""
WHOLE = "alter publication pub set (publish = 'insert, update, delete, truncate')"
ALL, SCHEMA = "for all tables", "for tables in schema public"
VIA_ROOT = "with (publish_via_partition_root = true)"


@pytest.mark.parametrize(
    ("publication", "statements", "reason"),
    [
        (None, ("alter publication pub set table numbers where (id > 2), split", LOST), "leaves out rows of it"),
        (
            None,
            ("alter publication pub set table numbers (id, n), split", LOST),
            'leaves out its column "t"',
        ),
        (
            None,
            ("alter publication pub drop table numbers", LOST, "alter publication pub add table numbers"),
            "taken out of",
        ),
        (
            None,
            ("alter table numbers rename to figures", "delete from figures", "alter table figures rename to numbers"),
            "renamed to public.figures",
        ),
        (ALL, ("drop table numbers",), "dropped or renamed"),
        (ALL, ("drop table numbers", NUMBERS.ddl), "dropped and made again"),
        (SCHEMA, ("create schema other", "alter table numbers set schema other"), "dropped or renamed"),
        (SCHEMA, ("drop table numbers", NUMBERS.ddl), "dropped and made again"),
    ],
)
async def test_what_was_not_told_of_a_table_stops_it_and_no_other(
    started: Started, publication: str | None, statements: tuple[str, ...], reason: str
) -> None:
    async with started(NUMBERS, SPLIT, rows=5, publication=publication) as world:
        await finish(world)
        execute(world, *statements)
        add(world, SPLIT, 100, "goes on")
        # Whoever was away meanwhile finds it out as well.
        await world.recover()
        await world.epoch()
        assert reason in world.broken[NUMBERS.fragment]
        assert "RELOAD reads it again" in world.broken[NUMBERS.fragment]
        assert [row[0] for row in await world.rows(NUMBERS)] == [0, 1, 2, 3, 4]
        assert (world.waiting, list(world.broken)) == (None, [NUMBERS.fragment])
        assert [row[0] for row in await world.rows(SPLIT)] == [0, 1, 2, 3, 4, 100]


@pytest.mark.parametrize(
    ("publication", "statements", "reason"),
    [
        (None, ("alter publication pub set (publish = 'insert, update')", LOST), "publish delete, truncate any more"),
        (None, ("alter publication pub set (publish = 'insert, update')", LOST, WHOLE), "altered or made anew"),
        (ALL, ("drop publication pub", LOST, f"create publication pub {ALL} {VIA_ROOT}"), "altered or made anew"),
        (
            SCHEMA,
            (f"alter publication pub drop {SCHEMA[4:]}", LOST, f"alter publication pub add {SCHEMA[4:]}"),
            "taken out of",
        ),
    ],
)
async def test_what_was_not_told_of_any_table_stops_all(
    started: Started, publication: str | None, statements: tuple[str, ...], reason: str
) -> None:
    async with started(NUMBERS, SPLIT, rows=5, publication=publication) as world:
        await finish(world)
        execute(world, *statements)
        await world.epoch()
        for table in (NUMBERS, SPLIT):
            assert reason in world.broken[table.fragment]
            assert len(await world.rows(table)) == 5


async def test_what_leaves_nothing_out_is_no_matter(started: Started) -> None:
    async with started(NUMBERS, rows=5) as world:
        await finish(world)
        execute(
            world,
            "create table other (id bigint primary key)",
            "alter publication pub add table other",
            "alter publication pub add tables in schema public",
            *(f"vacuum (full, freeze) {one}" for one in ("pg_publication", "pg_publication_rel", "numbers")),
        )
        add(world, NUMBERS, 100, "goes on")
        await world.epoch()
        assert (world.broken, world.waiting) == ({}, None)
        assert len(await world.rows(NUMBERS)) == 6
