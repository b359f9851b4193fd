"""Rows that wait outside any epoch: all of them, in order, exactly as INSERT would take them, or none."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator

import pytest
from psycopg import AsyncCopy

from service.domain.errors import Invalid, Unavailable
from service.domain.uploading import Kept, Spool
from service.protocol.columns import Column, ColumnType
from service.protocol.ids import DATABASE_GRAPH, Epoch, StatementId, Term
from service.serving import staging as staging_module
from service.serving.lingering import Places
from service.serving.staging import CHUNK_BYTES, PostgresStaging
from service.serving.user_query import open_reader_pool
from service.turns import Turns
from tests.support.state_store import Store, filled, relation

pytestmark = pytest.mark.postgres

TERM = Term(7)
ID = StatementId(5)
COLUMNS = relation(1, "x", {"a": "integer", 'b "q"': "text", "n": "numeric(5,2)", "d": "date", "l": "text[]"}).columns


def anything(_: int) -> None:
    """Take rows of any size."""


async def _chunks(*chunks: bytes) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


async def _nothing_left(store: Store) -> bool:
    return await store.rows("select relname from pg_class where relnamespace = 'stage'::regnamespace") == []


async def test_a_query_is_staged_in_its_order(store: Store, staging: PostgresStaging) -> None:
    sql = "select g from generate_series(1, 20000) g order by g desc; "
    assert await filled(staging.from_query(ID, COLUMNS[:1], sql, timeout_ms=20_000, take=anything)) == 20_000
    rows = "select min(_row), max(_row), count(distinct _row), bool_and(a = 20000 - _row) from stage.s_5"
    assert await store.rows(rows) == [(0, 19_999, 20_000, True)]


async def test_i13_a_row_that_the_service_would_have_to_hold_is_refused(
    store: Store, staging: PostgresStaging, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three loads with rows of 260 MB took the service 1.5 GB, and kept half of it."""
    monkeypatch.setattr(staging_module, "_ROW_BYTES_MAX", 1 << 20)
    monkeypatch.setattr(staging_module, "_LARGE_BYTES", 1 << 19)
    text = COLUMNS[1:2]
    fits, not_ = (f"select repeat('x', {size}) from generate_series(1, 3)" for size in (1_000_000, 1_100_000))
    assert await filled(staging.from_query(ID, text, fits, timeout_ms=20_000, take=anything)) == 3
    with pytest.raises(Invalid, match="a row of the query has more than 1 MB"):
        await filled(staging.from_query(ID, text, not_, timeout_ms=20_000, take=anything))
    assert await store.rows("select count(*) from stage.s_5") == [(3,)]


async def test_a_query_reads_what_is_published(store: Store, staging: PostgresStaging) -> None:
    orders = relation(1, "orders")
    await store.tables.create(orders, term=TERM)
    await store.run("insert into state.t_1 values (0, 1, 'seen', 5), (0, 2, 'not yet', 6)")
    await store.tables.publish(DATABASE_GRAPH, Epoch(5), term=TERM, created=[orders])
    assert (
        await filled(staging.from_query(ID, orders.columns, "select * from orders", timeout_ms=20_000, take=anything))
        == 1
    )
    assert await store.rows("select * from stage.s_5") == [(0, 1, "seen")]


async def test_values_are_assigned_as_insert_assigns_them(store: Store, staging: PostgresStaging) -> None:
    sql = """select 2.5, 17, 1.005::float8, '2020-01-01', '{a,NULL,"b c"}' -- literals and casts"""
    assert await filled(staging.from_query(ID, COLUMNS, sql, timeout_ms=20_000, take=anything)) == 1
    await store.run("create table public.t(a int, b text, n numeric(5,2), d date, l text[])")
    await store.run(f"insert into public.t {sql}")
    assert await store.rows('select a, "b ""q""", n, d, l from stage.s_5') == await store.rows("select * from public.t")


async def test_what_insert_would_not_take(store: Store, staging: PostgresStaging) -> None:
    one, all_of_them = COLUMNS[:1], COLUMNS
    bad = (
        (one, "select true", 'column "a" is of type integer but expression is of type boolean', 8),
        (one, "select '1'::text", 'column "a" is of type integer but expression is of type text', 8),
        (all_of_them, "select 1, 2, 3, 4, 5, 6", "INSERT has more expressions than target columns", 23),
        (all_of_them, "select 1", "INSERT has more target columns than expressions", None),
        (all_of_them, "select 'x', '', 1, null, null", 'invalid input syntax for type integer: "x"', 8),
        (one, "select * from nowhere", 'relation "nowhere" does not exist', 15),
    )
    for columns, sql, words, position in bad:
        with pytest.raises(Invalid) as refused:
            await filled(staging.from_query(ID, columns, sql, timeout_ms=20_000, take=anything))
        assert (refused.value.message, refused.value.position) == (words, position)
        assert await _nothing_left(store)


async def test_a_bad_row_of_a_query_leaves_nothing(store: Store, staging: PostgresStaging) -> None:
    day = "case when g = 30000 then 'infinity'::date else '2020-01-01' end"
    errors = {
        f"select g, '', 0, {day}, null from generate_series(1, 100000) g":
            'row 30000: value out of range for column "d": a date must be finite and in the years 1 to 9999',
        "select g, '', 1 / (g - 30000), null::date, null from generate_series(1, 100000) g": "division by zero",
        "select g * 100000::bigint, '', 1, null::date, null from generate_series(1, 100000) g": "integer out of range",
    }  # fmt: skip
    for sql, words in errors.items():
        with pytest.raises(Invalid) as refused:
            await filled(staging.from_query(ID, COLUMNS, sql, timeout_ms=20_000, take=anything))
        assert refused.value.message == words
        assert await _nothing_left(store)
    assert await filled(staging.from_query(ID, COLUMNS[:1], "select 1", timeout_ms=20_000, take=anything)) == 1


async def test_a_query_has_its_time(store: Store, staging: PostgresStaging) -> None:
    sql = "select count(*) from generate_series(1, 100000000000)"
    with pytest.raises(Invalid, match="canceling statement due to statement timeout after 200 ms"):
        await filled(staging.from_query(ID, COLUMNS[:1], sql, timeout_ms=200, take=anything))
    assert await _nothing_left(store)


async def test_s9_a_query_is_given_up_when_its_rows_are_too_many(store: Store, staging: PostgresStaging) -> None:
    """It would write to the disk for ten minutes."""
    sql = "select repeat('x', 1000) from generate_series(1, 100000)"
    with Kept(Spool(10 * CHUNK_BYTES), "one") as kept, pytest.raises(Invalid, match="divide them"):
        await filled(staging.from_query(ID, COLUMNS[1:2], sql, timeout_ms=600_000, take=kept.take))
    assert await _nothing_left(store)
    assert await filled(staging.from_query(ID, COLUMNS[:1], "select 1", timeout_ms=20_000, take=anything)) == 1


async def test_csv(store: Store, staging: PostgresStaging) -> None:
    # A chunk may end anywhere.
    text = '1,"a\n""b"" é",1.50,2020-01-01,"{a,NULL}"\r\n,,,,\r\n3,"",-0.004,0001-01-01,{}\r\n'.encode()
    chunks = _chunks(*(text[place : place + 1] for place in range(len(text))))
    assert await filled(staging.from_csv(ID, COLUMNS, chunks)) == 3
    assert await store.rows('select _row, a, "b ""q""", n::text, d::text, l from stage.s_5 order by 1') == [
        (0, 1, 'a\n"b" é', "1.50", "2020-01-01", ["a", None]),
        (1, None, None, None, None, None),
        (2, 3, "", "0.00", "0001-01-01", []),
    ]


async def test_i13_a_row_that_postgres_compresses_counts_as_it_is(staging: PostgresStaging) -> None:
    """A megabyte of one letter counted as 13 kB, so an epoch moved 5 GB of them."""
    long = "select g, repeat('x', 1000000) from generate_series(1, 3) g"
    async with staging.from_query(ID, COLUMNS[:2], long, timeout_ms=20_000, take=anything) as staged:
        assert staged.row_bytes >= 1_000_000
    async with staging.from_csv(ID, COLUMNS[:2], _chunks(b"1,", b"x" * 1_000_000, b"\n2,x\n")) as staged:
        assert staged.row_bytes >= 500_000


async def test_the_first_bad_row_of_csv_is_named(store: Store, staging: PostgresStaging) -> None:
    good = b'1,"line\nbreak",1,2020-01-01,\n'
    bad = {
        b"x,,,,\n": 'row 3, column "a": invalid input syntax for type integer: "x"',
        b"99999999999,,,,\n": 'row 3, column "a": value "99999999999" is out of range for type integer',
        b",,1234,,\n": 'row 3, column "n": numeric field overflow (A field with precision 5, scale 2 must round to an'
        " absolute value less than 10^3.)",
        b",,NaN,,\n": 'row 3: value out of range for column "n": NaN cannot be kept',
        b",,,infinity,\n": 'row 3: value out of range for column "d": a date must be finite and in the years 1 to 9999',
        b",,,2020-02-30,\n": 'row 3, column "d": date/time field value out of range: "2020-02-30"',
        b',,,,"{a"\n': 'row 3, column "l": malformed array literal: "{a" (Unexpected end of input.)',
        b"1,2\n": 'row 3: missing data for column "n"',
        b",,,,,\n": "row 3: extra data after last expected column",
        b",\xff,,,\n": 'row 3: invalid byte sequence for encoding "UTF8": 0xff',
    }
    for row, words in bad.items():
        with pytest.raises(Invalid) as refused:
            await filled(staging.from_csv(ID, COLUMNS, _chunks(good * 2, row, good * 5, row)))
        assert refused.value.message == words
        assert await _nothing_left(store)


async def test_csv_that_ends_within_quotes(staging: PostgresStaging) -> None:
    with pytest.raises(Invalid, match="row 2: unterminated CSV quoted field"):
        await filled(staging.from_csv(ID, COLUMNS, _chunks(b'1,,,,\n2,"open\n')))


async def test_a_missing_key_is_named(store: Store, staging: PostgresStaging) -> None:
    columns = (Column(name="id", type=ColumnType.parse("bigint"), nullable=False), *COLUMNS[1:])
    with pytest.raises(Invalid, match='row 2: null value in column "id" violates not-null constraint'):
        await filled(staging.from_csv(ID, columns, _chunks(b"1,,,,\n,,,,\n")))


async def test_an_upload_that_breaks_off_leaves_nothing(store: Store, staging: PostgresStaging) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b"1,,,,\n" * 10_000
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        await filled(staging.from_csv(ID, COLUMNS, broken()))
    assert await _nothing_left(store)


async def test_staging_again_begins_anew_and_drop_is_repeatable(store: Store, staging: PostgresStaging) -> None:
    for text in (b"1\n2\n3\n", b"7\n"):
        await filled(staging.from_csv(ID, COLUMNS[:1], _chunks(text)))
    assert await store.rows("select _row, a from stage.s_5") == [(0, 7)]
    await staging.drop(ID)
    await staging.drop(ID)
    assert await _nothing_left(store)


async def test_a_table_is_held_while_it_is_filled_and_until_its_block_ends(staging: PostgresStaging) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        yield b"1\n"
        assert await staging.unheld() == [other]
        yield b"2\n"

    other = StatementId(6)
    await filled(staging.from_csv(other, COLUMNS[:1], _chunks(b"1\n")))
    async with staging.from_csv(ID, COLUMNS[:1], chunks()):
        assert await staging.unheld() == [other]
    assert sorted(await staging.unheld()) == [ID, other]
    with pytest.raises(Invalid):
        await filled(staging.from_csv(ID, COLUMNS[:1], _chunks(b"x\n")))
    await staging.drop(other)
    assert await staging.unheld() == [ID]


async def test_a_session_that_is_killed_holds_nothing(store: Store, staging: PostgresStaging) -> None:
    async with staging.from_csv(ID, COLUMNS[:1], _chunks(b"1\n")):
        killed = "select pg_terminate_backend(pid, 10000) from pg_locks where locktype = 'advisory' and granted"
        assert await store.rows(killed) == [(True,)]
        assert await staging.unheld() == [ID]


async def test_the_writer_can_read_what_is_staged(store: Store, staging: PostgresStaging) -> None:
    await filled(staging.from_csv(ID, COLUMNS[:1], _chunks(b"1\n")))
    rights = (
        "select has_table_privilege(rolname, 'stage.s_5', 'select'),"
        " has_table_privilege(rolname, 'stage.s_5', 'insert, update, delete, truncate')"
        " from pg_roles join pg_database d on datname = current_database()"
        " where rolname = 'tidefill_{}_' || lpad(to_hex(d.oid::bigint), 8, '0')"
    )
    assert await store.rows(rights.format("writer")) == [(True, False)]
    assert await store.rows(rights.format("reader")) == [(False, False)]


async def test_memory_is_that_of_a_portion(staging: PostgresStaging, monkeypatch: pytest.MonkeyPatch) -> None:
    """I8: however many rows there are, what is held is a portion and the row that filled it."""
    portions: list[int] = []
    write = AsyncCopy.write

    async def watched(copy: AsyncCopy, portion: bytes) -> None:
        portions.append(len(portion))
        await write(copy, portion)

    monkeypatch.setattr(AsyncCopy, "write", watched)
    sql = "select g, repeat('x', 1000) from generate_series(1, 20000) g"
    assert await filled(staging.from_query(ID, COLUMNS[:2], sql, timeout_ms=20_000, take=anything)) == 20_000
    assert sum(portions) > 20_000_000
    assert max(portions) < CHUNK_BYTES + 2000


async def test_i13_a_query_that_postgres_does_not_stop_keeps_its_place(store: Store) -> None:
    """Its caller left, and had the next place at once: soon the login's 32 sessions were taken, also from SELECTs."""
    long = "select count(*) from generate_series(1, 1000000) a, generate_series(1, 1000000) b"
    # Before, it may hold locks that everybody needs.
    running = (
        "select pid::text from pg_stat_activity where application_name = 'tidefill-reader' and state = 'active'"
        " and clock_timestamp() - query_start > interval '1 s'"
    )
    async with open_reader_pool(store.logins.reader_url, size=2) as pool:
        staging = PostgresStaging(store.pool, store.pool, pool)
        staging.places = Places(Turns("loads", running=1, waiting=1, seconds=0.2))

        async def load(query: str) -> int:
            return await filled(staging.from_query(ID, COLUMNS[:1], query, timeout_ms=600_000, take=anything))

        left = asyncio.create_task(load(long))
        while not (found := await store.rows(running)):
            assert not left.done()
        pid = int(str(found[0][0]))
        os.kill(pid, signal.SIGSTOP)
        try:
            left.cancel()
            with pytest.raises(asyncio.CancelledError):
                await left
            with pytest.raises(Unavailable, match="1 loads of this caller run"):
                await load("select 1")
        finally:
            os.kill(pid, signal.SIGCONT)
        await asyncio.gather(*staging.places.lingering)
        assert await load("select 1") == 1
