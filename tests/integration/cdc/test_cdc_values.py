"""Every type, its extremes, exactly as it was; and what a table cannot hold is refused with the key of its row."""

from collections.abc import Sequence
from typing import Any

import pytest

from tests.support.cdc_steps import NUMBERS, STAMPED, Started, add, finish, put, remove
from tests.support.real_cdc import Followed
from workers.cdc import log, pages

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(120)]

VALUES: dict[str, tuple[str, ...]] = {
    "boolean": ("true", "false"),
    "smallint": ("-32768", "32767"),
    "integer": ("-2147483648", "0"),
    "bigint": ("9223372036854775807", "-1"),
    "real": ("1.1754944e-38", "-Infinity", "NaN", "-0"),
    "double precision": ("0.1", "4.9406564584124654e-324", "Infinity", "NaN", "1.7976931348623157e308"),
    "numeric(38,10)": ("9999999999999999999999999999.9999999999", "-0.0000000001", "0"),
    "text": ("", "\\N", "tab\tline\nquote\"'\\", "\U0001f409", "NULL"),
    "bytea": ("", "\\x00ff5c78"),
    "date": ("0001-01-01", "9999-12-31", "2000-02-29"),
    "time": ("00:00:00", "24:00:00", "23:59:59.999999"),
    "timestamp": ("0001-01-01 00:00:00.000001", "9999-12-31 23:59:59.999999"),
    "timestamptz": ("0001-01-01 00:00:01+00", "9999-12-31 23:59:59.999999+00", "2020-06-01 12:00:00+14"),
    "uuid": ("00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff"),
    "jsonb": ('{"a": [1, "x\\n", null]}', "null", '"\\\\"'),
    "interval": ("-1 years -2 mons +3 days -04:05:06.789", "178000000 years"),
    "integer[]": ("{}", "{1,NULL,-5}"),
    "text[]": ('{"a,b","",NULL,"NULL","\\"\\\\"}',),
    "numeric(5,2)[]": ("{1.10,-999.99}",),
}
TYPES = Followed(5, "types", (("id", "bigint"), *((f"c{n}", kind) for n, kind in enumerate(VALUES)), ("t", "text")), 1)
DATED = Followed(6, "dated", (("id", "bigint"), ("d", "date"), ("t", "text")), 1)
KEYED = Followed(
    7,
    "keyed",
    (
        ("a", "numeric(6,2)"),
        ("b", "timestamptz"),
        ("c", "bytea"),
        ("d", "double precision"),
        ("n", "bigint"),
        ("t", "text"),
    ),
    4,
)
NAMED = Followed(8, "named", (("name", "text"), ("t", "text")), 1)


async def test_every_value_arrives_as_it_was(started: Started) -> None:
    """Half of the rows as history, half as changes, and NULL everywhere."""
    async with started(TYPES) as world:
        admin = world.external.admin
        rows = [(None,) * len(VALUES)]
        rows += [tuple(texts[n % len(texts)] for texts in VALUES.values()) for n in range(6)]
        places = ", ".join(f"%s::text::{kind}" for kind in VALUES)
        for number, row in enumerate(rows):
            admin.execute(f"insert into types values ({number}, {places}, null)".encode(), row)
        world.model = False
        await finish(world)
        for number, row in enumerate(rows):
            admin.execute(f"insert into types values ({100 + number}, {places}, null)".encode(), row)
        admin.execute("update types set t = 'touched' where id % 2 = 0")
        await world.epoch()
        assert world.broken == {}
        names = ", ".join(f"{name}::text" for name, _ in TYPES.columns)
        stored = await world.store.rows(f"select {names} from state.t_5 where _to > {world.committed} order by t_5.id")
        assert stored == admin.execute(f"select {names} from types order by types.id".encode()).fetchall()


async def test_a_change_has_the_time_of_its_commit_and_history_that_of_its_reading(started: Started) -> None:
    """Every change gives a row a new one, also where its long value is not sent."""
    async with started(STAMPED) as world:
        world.model = False
        admin = world.external.admin
        admin.execute("insert into stamped select i, i, repeat('x', 9000) from generate_series(1, 6) i")

        async def stamps() -> dict[Any, Any]:
            return {row[0]: row[3] for row in await world.rows(STAMPED)}

        def committed() -> dict[Any, Any]:
            return dict(admin.execute("select id, pg_xact_commit_timestamp(xmin) from stamped").fetchall())

        await finish(world)
        read, history = await stamps(), committed()
        now = admin.execute("select clock_timestamp()").fetchone()
        assert now is not None
        assert all(history[key] < at < now[0] for key, at in read.items())
        for statement in (
            "insert into stamped values (7, 7, 'new')",
            "update stamped set n = -n where id in (1, 7)",
            "update stamped set id = 10 where id = 2",
            "update stamped set t = null where id = 3",
        ):
            admin.execute(statement.encode())
            await world.epoch()
        told = committed()
        unchanged = {key: read[key] for key in (4, 5, 6)}
        assert await stamps() == {key: unchanged.get(key, at) for key, at in told.items()}
        assert len(told) == 7


async def test_keys_of_any_type_are_read_in_the_order_there(started: Started) -> None:
    async with started(KEYED) as world:
        world.model = False
        admin = world.external.admin
        admin.execute(
            "insert into keyed select i % 7 - 3, timestamptz '2020-01-01' + i * interval '1.5 s',"
            " decode(lpad(to_hex(i % 5), 2, '0'), 'hex'),"
            " case i % 3 when 0 then 'NaN' when 1 then '-0' else i / 7.0 end,"
            " i, repeat('z', 3000) from generate_series(1, 60) i"
        )
        await world.epoch(world.throttled(5_000))
        for n in range(1, 12):
            admin.execute("update keyed set a = -a where n = %s", [n * 5])
            admin.execute("delete from keyed where n = %s", [n * 5 + 1])
            await world.epoch()
        await finish(world)
        text = "select a::text, b::text, c::text, d::text, n, length(t) from"
        stored = await world.store.rows(f"{text} state.t_7 where _to > {world.committed} order by n")
        assert stored == admin.execute(f"{text} keyed order by n".encode()).fetchall()


TEXTED = {
    "date": ("infinity", "-infinity", "0044-03-15 BC", "5874897-12-31", "2020-02-29"),
    "timestamp": ("infinity", "-infinity", "4713-01-01 00:00:00 BC", "294276-12-31 23:59:59.999999"),
    "timestamptz": ("infinity", "0044-03-15 12:00:00+14 BC", "2020-06-01 12:00:00+14"),
    "numeric": ("NaN", "Infinity", "-Infinity", "1.50", "1e40", "-0.000"),
    "numeric(5,2)": ("NaN", "-999.99"),
    "date[]": ('{infinity,NULL,"0044-03-15 BC"}', "[0:1]={2020-01-01,2020-01-02}", "{}"),
    "boolean": ("true", "false"),
    "bytea": ("\\x00ff5c78",),
    "real": ("-Infinity", "0.1"),
}
AS_TEXT = Followed(
    24,
    "as_text",
    (("id", "bigint"), *((f"c{n}", "text") for n in range(len(TEXTED))), ("t", "text")),
    1,
    there=tuple((f"c{n}", kind) for n, kind in enumerate(TEXTED)),
)


async def test_f6_a_column_that_is_declared_as_text_keeps_every_value(started: Started) -> None:
    """As the external server prints it, in a row of history as in a change of it."""
    async with started(AS_TEXT) as world:
        world.model = False
        admin = world.external.admin
        rows = [tuple(texts[n % len(texts)] for texts in TEXTED.values()) for n in range(6)]
        places = ", ".join(f"%s::text::{kind}" for kind in TEXTED)
        for first in (0, 100):
            for number, row in enumerate([*rows, (None,) * len(TEXTED)]):
                admin.execute(f"insert into as_text values ({first + number}, {places}, null)".encode(), row)
            await finish(world)
        admin.execute("update as_text set t = 'touched', id = id + 10 where id % 2 = 0")
        await world.epoch()
        assert world.broken == {}
        names = ", ".join(f"format('%s', {name})" for name, _ in AS_TEXT.columns)
        for setting in ("timezone = 'UTC'", "datestyle = 'ISO, YMD'", "bytea_output = 'hex'"):
            admin.execute(f"set {setting}".encode())
        there = admin.execute(f"select {names} from as_text order by as_text.id".encode()).fetchall()
        found = await world.rows(AS_TEXT)
        assert [tuple("" if value is None else str(value) for value in row) for row in found] == there


REFUSED = {
    "date": ("infinity", "0044-03-15 BC", "2020-02-29", None),
    "timestamp": ("-infinity", "10000-01-01 00:00:00", "9999-12-31 23:59:59.999999", None),
    "timestamptz": ("infinity", "0001-01-01 00:00:00+14", "2020-06-01 12:00:00+00", None),
    "numeric(8,2)": ("NaN", "NaN", "1.50", None),
    "numeric(9,3)": ("Infinity", "-Infinity", "1.500", None),
    "date[]": ("{infinity}", "[0:1]={2020-01-01,2020-01-02}", "{NULL,2020-01-01}", None),
}
NULLED = Followed(
    25,
    "nulled",
    (("id", "bigint"), *((f"c{n}", kind) for n, kind in enumerate(REFUSED)), ("t", "text")),
    1,
    there=(("c4", "numeric"),),
    unkeepable="null",
)
DAYS = Followed(26, "days", (("d", "date"), ("t", "text")), 1, unkeepable="null")
PRICES = Followed(27, "prices", (("d", "numeric(6,2)"), ("t", "text")), 1, unkeepable="null")


async def test_f6_values_that_cannot_be_kept_are_stored_as_null_and_counted(started: Started) -> None:
    """The same from a page, from the log, from a row that is requested, and from a reload."""
    async with started(NULLED) as world:
        world.model = False
        admin = world.external.admin
        places = ", ".join(f"%s::text::{dict(NULLED.there).get(f'c{n}', kind)}" for n, kind in enumerate(REFUSED))
        rows = list(zip(*REFUSED.values(), strict=True))
        insert = f"insert into nulled select %s::int, {places}, repeat('x', 9000)".encode()

        async def check(count: int, *stored: Sequence[str | None]) -> None:
            assert world.broken == {}
            assert world.nulled.get(NULLED.fragment, 0) == count
            names = ", ".join(f"c{n}::text" for n in range(len(REFUSED)))
            found = f"select {names} from state.t_25 t where _to > {world.committed} order by t.id"
            assert await world.store.rows(found) == list(stored)

        none, kept = (None,) * len(REFUSED), rows[2]
        for number, row in enumerate(rows):
            admin.execute(insert, [number, *row])
        await finish(world)
        await check(12, none, none, kept, none)
        for number, row in enumerate(rows):
            admin.execute(insert, [10 + number, *row])
        await world.epoch()
        await check(24, none, none, kept, none, none, none, kept, none)
        await world.recover()
        # The log omits the long values.
        admin.execute("update nulled set id = 20 where id = 2")
        admin.execute("update nulled set c0 = 'infinity' where id = 12")
        await world.epoch()
        nulled = (none, none, none, none, none, (None, *kept[1:]), none, kept)
        await check(25, *nulled)
        before = world.committed
        await world.epoch(world.reload(NULLED))
        for _ in range(10):
            await world.epoch(interval_ms=50)
        assert NULLED.fragment in world.finished
        await check(25, *nulled)
        assert await world.store.rows(f"select from state.t_25 where _from > {before}") == []


async def test_f6_a_value_of_the_key_is_not_stored_as_null(started: Started) -> None:
    async with started(DAYS) as world:
        world.model = False
        world.external.admin.execute("insert into days values ('infinity', 'x')")
        await world.epoch(world.throttled(None), interval_ms=50)
        assert "at (d)=(infinity)" in world.broken[DAYS.fragment]


@pytest.mark.parametrize("when", ["history", "change"])
async def test_f6_the_reason_for_a_value_of_the_key_has_no_advice_for_other_columns(
    started: Started, when: str
) -> None:
    async with started(PRICES) as world:
        world.model = False
        if when == "change":
            await finish(world)
        world.external.admin.execute("insert into prices values ('NaN', 'x')")
        await world.epoch(world.throttled(None), interval_ms=50)
        reason = world.broken[PRICES.fragment]
        assert "at (d)=(NaN); change the value there: ALTER TABLE prices RELOAD" in reason


@pytest.mark.parametrize("when", ["history", "change"])
async def test_a_value_that_cannot_be_kept_stops_its_table_and_no_other(started: Started, when: str) -> None:
    async with started(DATED, NUMBERS) as world:
        world.model = False
        admin = world.external.admin
        bad = "insert into dated values (23, 'infinity', 'x')"
        admin.execute("insert into dated select i, '2020-01-01', 'x' from generate_series(1, 40) i where i <> 23")
        if when == "history":
            admin.execute(bad)
        # Long enough for all of its history, however busy the machine is.
        await world.epoch(world.throttled(None), interval_ms=60_000)
        if when == "change":
            admin.execute("update dated set t = 'y' where id in (4, 5)")
            admin.execute(bad)
            await world.epoch()
        reason = world.broken[DATED.fragment]
        assert "(id)=(23)" in reason
        assert 'column "d"' in reason
        assert "CREATE the table with this column as text" in reason
        assert "RELOAD reads it again" in reason
        # It stays at the last epoch that was whole.
        assert {row[2] for row in await world.rows(DATED)} <= {"x"}
        world.model = True
        add(world, NUMBERS, 1, "goes on")
        await finish(world)
        assert len(await world.rows(NUMBERS)) == 1


@pytest.mark.parametrize("when", ["history", "change"])
async def test_a_row_that_is_too_large_is_named(started: Started, monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    monkeypatch.setattr(log, "ROW_BYTES_MAX", 100_000)
    monkeypatch.setattr(pages, "ROW_BYTES_MAX", 100_000)
    async with started(NUMBERS, rows=5) as world:
        writer = world.external.writer()
        if when == "change":
            await finish(world)
        put(world.external, writer, NUMBERS, 77, "x" * 200_000)
        world.external.commit(writer)
        await finish(world)
        assert "a row of more than" in world.broken[NUMBERS.fragment]
        assert "(id)=(77)" in world.broken[NUMBERS.fragment]


async def test_a_row_that_only_the_store_refuses_is_named_among_many_pages(started: Started) -> None:
    async with started(NAMED, NUMBERS) as world:
        world.model = False
        admin = world.external.admin
        admin.execute("insert into named select i, 'x' from generate_series(1000, 1400) i")
        # A key as long as an index takes there: ours has vnode and epoch besides.
        long = "select left('1023' || string_agg(md5(i::text), ''), 2691), 'x' from generate_series(1, 90) i"
        admin.execute(f"insert into named {long}".encode())
        # All of its history is one epoch's, many pages behind the one that is refused.
        await world.epoch(world.throttled(None), interval_ms=60_000)
        reason = world.broken[NAMED.fragment]
        assert "index row size" in reason
        assert "at (name)=(1023c4ca4238" in reason
        world.model = True
        add(world, NUMBERS, 1, "goes on")
        await finish(world)
        assert len(await world.rows(NUMBERS)) == 1


async def test_a_large_transaction_comes_in_parts(started: Started, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts that are cut inside a transaction, keys in more than one of them."""
    monkeypatch.setattr(log, "PART_CHANGES", 50)
    async with started(NUMBERS) as world:
        await finish(world)
        writer = world.external.writer()
        for number in range(200):
            put(world.external, writer, NUMBERS, number, "x" * 3000)
        for number in range(0, 200, 3):
            remove(world.external, writer, NUMBERS, number)
        for number in range(0, 200, 6):
            put(world.external, writer, NUMBERS, number, "again")
        world.external.commit(writer)
        await world.epoch()
        assert len(await world.rows(NUMBERS)) == 200 - 67 + 34
