"""F1: a followed column is replaced, or its values rewritten, without a change of its name and type.

The log has none of this. The table breaks with the true reason, whenever it happens: while the worker follows, while it
is down, and while history is read.
"""

from collections.abc import Iterable
from dataclasses import replace

import pytest

from tests.support.cdc_steps import NUMBERS, PARTED, SPLIT, Started, add, execute, finish
from tests.support.real_cdc import CdcWorld, Followed

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(120)]

TYPED = Followed(
    21,
    "typed",
    (
        ("id", "bigint"),
        ("n", "bigint"),
        ("m", "numeric(10,2)"),
        ("at", "timestamptz"),
        ("mood", "text"),
        ("pair", "text"),
        ("u", "text"),
        ("t", "text"),
    ),
    1,
    there=(("mood", "mood"), ("pair", "pair")),
)
WIDE = Followed(22, "wide", (("id", "bigint"), ("n", "bigint"), ("m", "bigint"), ("u", "text"), ("t", "text")), 1)
PART_OF_WIDE = Followed(
    23,
    "wide",
    (("id", "bigint"), ("n", "bigint"), ("t", "text")),
    1,
    made=WIDE.ddl,
)
TYPES = ("create type mood as enum ('sad', 'ok')", "create type pair as (a int, b mood)")
SET_VALUES = "update typed set m = n, at = '2026-01-01Z', mood = 'ok', pair = (1, 'sad'), u = 'u'"

SWAPPED = "; ".join(
    f"alter table {{{{0}}}} rename column {one} to {other}"
    for one, other in (("{1}", "x"), ("{0}", "{1}"), ("x", "{0}"))
)
NONE = ", and a column of this name has to be there first"
ANOTHER = ", and another column has its name now"
REPLACED = {
    "drop_and_rename": (
        (
            "alter table {0} add column t_new text",
            "update {0} set t_new = upper(t)",
            "begin; alter table {0} drop column t; alter table {0} rename column t_new to t; commit",
        ),
        f'its column "t" was dropped{ANOTHER}',
    ),
    "drop_and_add": (
        ("begin; alter table {0} drop column t; alter table {0} add column t text; commit",),
        f'its column "t" was dropped{ANOTHER}',
    ),
    "drop_and_add_with_a_default": (
        ("begin; alter table {0} drop column t; alter table {0} add column t text default 'd'; commit",),
        f'its column "t" was dropped{ANOTHER}',
    ),
    "swapped": (
        (f"begin; {SWAPPED.format('id', 'n')}; alter table {{0}} replica identity full; commit",),
        f'its column "id" was renamed to "n"{ANOTHER}',
    ),
    "rename_and_add": (
        ("begin; alter table {0} rename column t to was; alter table {0} add column t text; commit",),
        f'its column "t" was renamed to "was"{ANOTHER}',
    ),
    "drop": (("alter table {0} drop column n",), f'its column "n" was dropped{NONE}'),
    "drop_and_a_row": (
        ("alter table {0} drop column n", "insert into {0} (id) values (77)"),
        f'its column "n" was dropped{NONE}',
    ),
    "rename": (("alter table {0} rename column n to m",), f'its column "n" was renamed to "m"{NONE}'),
    "text_using": (
        ("alter table {0} alter t type text using upper(t)",),
        'the values of its column "t" were rewritten by an ALTER TABLE',
    ),
    "number_using": (
        ("alter table {0} alter n type bigint using n * 100",),
        'the values of its column "n" were rewritten by an ALTER TABLE',
    ),
    "using_and_more": (
        (
            "alter table {0} alter t set statistics 5",
            "alter table {0} alter n type bigint using n * 100",
            "update {0} set n = n",
            "vacuum full {0}",
        ),
        'the values of its column "n" were rewritten by an ALTER TABLE',
    ),
}


def _tables(names: Iterable[str]) -> tuple[Followed, ...]:
    return tuple(replace(NUMBERS, number=number, name=name) for number, name in enumerate(names, start=100))


async def _begin(world: CdcWorld, when: str) -> None:
    """Read all history, or a part of it, and stop the worker if it is to be down."""
    if when == "history":
        await world.epoch(world.throttled(5_000))
        stored = [len(await world.rows(table)) for table in world.external.tables.values()]
        assert 0 < sum(stored) < 12 * len(stored)
    else:
        await finish(world)
    if when == "down":
        world.close()


@pytest.mark.parametrize("when", ["following", "down", "history"])
async def test_f1_a_replaced_or_rewritten_column_breaks_its_table(started: Started, when: str) -> None:
    tables = _tables(REPLACED)
    async with started(*tables, SPLIT, rows=12) as world:
        await _begin(world, when)
        for name, (statements, _) in REPLACED.items():
            execute(world, *(statement.format(name) for statement in statements))
        add(world, SPLIT, 100, "goes on")
        if when == "down":
            await world.recover()
        await world.epoch()
        found = {table.name: world.broken.get(table.fragment, "").rpartition(":")[0] for table in tables}
        assert found == {name: reason for name, (_, reason) in REPLACED.items()}
        assert SPLIT.fragment not in world.broken
        assert world.waiting is None


@pytest.mark.parametrize(
    ("statements", "reason"),
    [
        (("alter table typed alter m type numeric(10,2) using m * 100",), 'values of its column "m" were rewritten'),
        (("alter table typed alter at type timestamptz using at + interval '1 hour'",), 'of its column "at" were'),
        (("alter type mood rename value 'ok' to 'fine'",), 'the value "ok" of the type of its column "mood" is now'),
        (("alter type mood rename value 'sad' to 'low'",), 'the value "sad" of the type of its column "mood" is now'),
        (("alter type pair add attribute c int",), 'the type of its column "pair" was altered'),
    ],
)
async def test_f1_values_that_read_otherwise_break_the_table(
    started: Started, statements: tuple[str, ...], reason: str
) -> None:
    async with started(TYPED, rows=5, before=TYPES) as world:
        execute(world, SET_VALUES)
        world.model = False
        await finish(world)
        await world.epoch()
        execute(world, *statements)
        await world.epoch()
        assert reason in world.broken[TYPED.fragment]


async def test_f1_a_partitioned_table_that_is_rewritten_breaks(started: Started) -> None:
    async with started(PARTED, rows=12) as world:
        await finish(world)
        execute(world, "alter table parted alter t type text using upper(t)")
        await world.epoch()
        assert 'the values of its column "t" were rewritten' in world.broken[PARTED.fragment]


async def test_f1_a_partition_that_came_later_and_went_while_the_worker_was_down(started: Started) -> None:
    async with started(PARTED, rows=3) as world:
        await finish(world)
        execute(world, "create table apart partition of parted for values from (5000) to (6000)")
        add(world, PARTED, 5001, "new")
        await world.epoch()
        await world.epoch()
        world.close()
        execute(world, "alter table parted detach partition apart")
        await world.recover()
        await world.epoch()
        assert "detached or dropped" in world.broken[PARTED.fragment]


SAME = {
    "vacuumed": ("vacuum full {0}",),
    "clustered": ("cluster {0} using {0}_pkey",),
    "renamed": ("begin; alter table {0} rename column t to x; alter table {0} rename column x to t; commit",),
    "renamed_and_vacuumed": (
        "begin; alter table {0} rename column t to x; alter table {0} rename column x to t; commit",
        "vacuum full {0}",
    ),
    "settings": ("alter table {0} alter t set statistics 10", "cluster {0} using {0}_pkey"),
    "added": ("alter table {0} add column extra text default 'x'", "vacuum full {0}"),
    "added_volatile": ("alter table {0} add column extra uuid default gen_random_uuid()",),
    "another": (
        "alter table {0} add column x int",
        "alter table {0} rename column x to y",
        "alter table {0} drop column y",
    ),
    "using_nothing": ("alter table {0} alter t type text using t",),
    "maintenance": ("analyze {0}", "vacuum (freeze) {0}"),
    "indexes": ("reindex table {0}", "create index on {0} (n)"),
    "logged": ("alter table {0} set logged",),
    "defaults": ("alter table {0} alter n set default 5, alter n drop default",),
}


@pytest.mark.parametrize("when", ["following", "down", "history"])
async def test_f1_what_leaves_the_values_alone_breaks_nothing(started: Started, when: str) -> None:
    tables = _tables(SAME)
    async with started(*tables, rows=12) as world:
        await _begin(world, when)
        world.model = False
        for number in range(3):
            for table in tables:
                execute(world, *(statement.format(table.name) for statement in SAME[table.name][number : number + 1]))
                execute(world, f"insert into {table.name} (id, n, t) values ({50 + number}, 1, 'between')")
            if when == "following":
                await world.epoch()
        if when == "down":
            await world.recover()
        await finish(world)
        assert world.broken == {}
        for table in tables:
            assert len(await world.rows(table)) == 12 + 3


async def test_f1_a_column_whose_default_was_never_written_survives_vacuum_full(started: Started) -> None:
    """VACUUM FULL writes the default into the rows, which changes the storage and the column's catalog row."""
    async with started(NUMBERS, rows=3) as world:
        execute(world, "alter table numbers drop column n", "alter table numbers add column n bigint default 7")
        world.model = False
        world.places = world.external.places()
        world.close()
        await world.recover()
        await finish(world)
        assert [row[1] for row in await world.rows(NUMBERS)] == [7, 7, 7]
        execute(world, "vacuum full numbers")
        await world.epoch()
        assert world.broken == {}


async def test_f1_a_value_is_added_to_an_enum(started: Started) -> None:
    async with started(TYPED, rows=5, before=TYPES) as world:
        execute(world, SET_VALUES)
        world.model = False
        await finish(world)
        execute(world, "alter type mood add value 'better' before 'sad'")
        execute(world, "update typed set mood = 'better', pair = (2, 'better') where id = 1")
        await world.epoch()
        assert world.broken == {}
        assert [row[4] for row in await world.rows(TYPED)] == ["ok", "better", "ok", "ok", "ok"]


@pytest.mark.parametrize(
    "statements",
    [
        pytest.param(
            (
                "alter table wide rename column t to was; alter table wide rename column u to t",
                "update wide set t = 'of u' where id = 1",
                "alter table wide rename column t to u; alter table wide rename column was to t",
            ),
            id="another-has-its-name",
        ),
        pytest.param(
            (
                f"begin; {SWAPPED.format('n', 'm').format('wide')}; commit",
                "update wide set n = 1000, m = 2000 where id = 1",
                f"begin; {SWAPPED.format('n', 'm').format('wide')}; commit",
            ),
            id="swapped",
        ),
    ],
)
async def test_f1_names_that_were_others_for_some_time_break_the_table(
    started: Started, statements: tuple[str, ...]
) -> None:
    """Rows were changed meanwhile, so the log has their values under other names."""
    async with started(WIDE, rows=3) as world:
        world.model = False
        await finish(world)
        execute(world, *statements)
        await world.epoch()
        assert "its columns had other names when a row was changed" in world.broken[WIDE.fragment]


@pytest.mark.parametrize(
    "statements", [("alter table wide drop column u",), ("alter table wide rename column u to v",)]
)
async def test_f1_columns_that_are_not_followed_may_come_and_go(started: Started, statements: tuple[str, ...]) -> None:
    async with started(PART_OF_WIDE, rows=3) as world:
        world.model = False
        await finish(world)
        for statement in ("update wide set m = 1", *statements, "update wide set m = 2", "update wide set t = 'after'"):
            execute(world, statement)
        await world.epoch()
        assert world.broken == {}
        assert [row[2] for row in await world.rows(PART_OF_WIDE)] == ["after"] * 3
