"""U3 and U6: people's own tools read the public views and write nothing, not even as the superuser."""

import asyncio
from collections.abc import AsyncGenerator, Generator
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import product
from typing import Any

import psycopg
import pytest
from psycopg import errors

from service.ports.read_logins import ReadLogin
from service.protocol.ids import DATABASE_GRAPH, Epoch, RelationId, Term
from service.serving import layout
from service.serving.connections import url_as
from service.serving.logical_views import PostgresViews
from service.serving.read_logins import PostgresReadLogins
from tests.support.state_store import READ_PASSWORD, Store, prepared_store, relation

pytestmark = pytest.mark.postgres
TERM = Term(7)
ORDERS = relation(1, "orders")
# Named like tables of the meta store and of the catalog.
INTERNAL = ["job", "event", "source", "worker", "request", "relation", "rw_sources", "published"]


@pytest.fixture
async def store(database_url: str) -> AsyncGenerator[Store]:
    async with prepared_store(database_url) as prepared:
        await prepared.fences.claim(TERM)
        await prepared.tables.create(ORDERS, term=TERM)
        await prepared.tables.publish(DATABASE_GRAPH, Epoch(5), term=TERM, created=[ORDERS])
        await PostgresViews(prepared.pool).create(RelationId(2), "few", "SELECT id FROM orders", reads=["orders"])
        columns = ", ".join(f'"{column.name}"' for column in ORDERS.columns)
        await prepared.run(f"insert into state.t_1 (_vnode, {columns}, _from) values (0, 1, 'a', 5)")
        yield prepared


@contextmanager
def psql(url: str) -> Generator[psycopg.Connection]:
    with psycopg.connect(url, autocommit=True, application_name="psql") as connection:
        yield connection


WRITES = [
    "update {} set id = 2",
    "delete from {}",
    "insert into {} (id) values (7)",
    "merge into {} t using (values (1)) s(id) on t.id = s.id when matched then delete",
    "copy {} (id) from program 'echo 8'",
]


async def test_u10_a_public_view_says_which_columns_are_its_key(store: Store) -> None:
    """psql prints no key of a view, but it prints these with `\\d+`."""
    said = (
        "select attname, col_description(attrelid, attnum) from pg_attribute where attrelid = 'public.orders'::regclass"
    )
    found = await store.rows(f"{said} and attnum > 0")
    assert {name for name, text in found if text == "primary key"} == {part.name for part in ORDERS.key}


async def test_u3_a_superuser_cannot_write_through_a_view(store: Store) -> None:
    for view, write in product(["public.orders", "public.few", "live.orders"], WRITES):
        with psql(store.url) as connection, pytest.raises(errors.ObjectNotInPrerequisiteState, match="belong") as error:
            connection.execute(write.format(view).encode())
        assert "POST /v1/sql" in str(error.value.diag.message_hint)
        assert await store.rows("select count(*), min(id) from public.orders") == [(1, 1)], (view, write)


async def test_u3_a_superuser_does_not_change_stored_rows_by_accident(store: Store) -> None:
    for write in (*WRITES[:3], WRITES[4], "truncate {}"):
        with psql(store.url) as connection, pytest.raises(errors.ObjectNotInPrerequisiteState, match="belong"):
            connection.execute(write.format("state.t_1").encode())
        assert await store.rows("select count(*), min(id) from public.orders") == [(1, 1)], write


async def test_u3_views_and_tables_of_an_older_layout_are_protected_at_the_next_start(store: Store) -> None:
    await store.run(
        "drop procedure state.protect; drop function state.refuse_write cascade; update state.layout set version = 1"
    )
    with psql(store.url) as connection:
        connection.execute("update public.orders set id = id")
        async with prepared_store(store.url):
            for place in ("public.orders", "public.few", "live.orders", "state.t_1"):
                with pytest.raises(errors.ObjectNotInPrerequisiteState):
                    connection.execute(f"update {place} set id = id".encode())
    assert await store.rows("select version from state.layout") == [(len(layout._UPGRADES),)]  # pyright: ignore[reportPrivateUsage]


def rows(connection: psycopg.Connection, query: str) -> list[tuple[Any, ...]]:
    return connection.execute(query.encode()).fetchall()


async def test_u6_the_read_login_reads_what_is_and_what_comes(store: Store) -> None:
    with psql(await store.read_url()) as connection:
        assert rows(connection, "select id from orders union all select id from few") == [(1,), (1,)]
        later = relation(3, "later")
        await store.tables.create(later, term=TERM)
        await store.tables.publish(DATABASE_GRAPH, Epoch(6), term=TERM, created=[later])
        assert rows(connection, "select * from later") == []
        assert rows(connection, "select count(*) from rw_catalog.rw_ddl_progress") == [(0,)]
        assert rows(connection, "show transaction_isolation") == [("repeatable read",)]


VISIBLE = "select relname from pg_class c where pg_table_is_visible(oid) and relnamespace <> 'pg_catalog'::regnamespace"


async def test_u6_a_user_s_relation_is_not_shadowed_by_an_internal_one(store: Store) -> None:
    for number, name in enumerate(INTERNAL, start=10):
        made = relation(number, name)
        await store.tables.create(made, term=TERM)
        await store.tables.publish(DATABASE_GRAPH, Epoch(number), term=TERM, created=[made])
    with psql(await store.read_url()) as connection:
        for name in INTERNAL:
            assert rows(connection, f"select id, count(*) from {name} group by id") == []
        assert sorted(name for (name,) in rows(connection, VISIBLE)) == sorted(["orders", "few", *INTERNAL])


REFUSED = [
    "set default_transaction_read_only = off; delete from public.orders",
    "set default_transaction_read_only = off; create table public.mine (id int)",
    "set default_transaction_read_only = off; create temporary table mine (id int)",
    "select * from state.t_1",
    "select * from state.published",
    "select * from live.orders",
    "select * from tidefill.secret",
    "select * from pg_authid",
    "select pg_read_file('/etc/passwd')",
    "copy (select 1) to program 'true'",
    "select pg_advisory_lock(1)",
    "select pg_blocking_pids(1)",
    "select count(*) from pg_locks",
    "select pg_sleep(1)",
    "select pg_terminate_backend(1)",
    "set session authorization postgres",
    "set role tidefill",
    "set role tidefill_read_{group}",
    "set default_transaction_read_only = off; alter role current_user valid until 'infinity'",
    "set default_transaction_read_only = off; alter role current_user connection limit 100",
    "set temp_file_limit = -1",
    "set default_transaction_read_only = off; alter role current_user set temp_file_limit = -1",
    "set default_transaction_read_only = off; alter role tidefill_read_{group} set statement_timeout = 1",
    "set default_transaction_read_only = off; alter role tidefill_read_{group}_other password 'x'",
    "set default_transaction_read_only = off; grant tidefill_read_{group} to tidefill_read_{group}_other",
]


@pytest.mark.parametrize(
    "command",
    [
        "create rule r as on insert to orders do also select 1",
        "create rule r as on insert to pg_catalog.pg_class do also select 1",
        "create trigger t before insert on state.leader execute function state.refuse_write()",
        "comment on view orders is 'mine'",
    ],
)
async def test_i13_a_command_takes_no_lock_before_it_is_refused(store: Store, command: str) -> None:
    """One that took long had `pg_class` to itself, and one that waited for a reader held up all behind it."""
    async with (
        await psycopg.AsyncConnection.connect(store.logins.reader_url) as reading,
        await psycopg.AsyncConnection.connect(await store.read_url(), autocommit=True) as conn,
    ):
        await reading.execute("select from orders, pg_class")
        await conn.execute("set default_transaction_read_only = off")
        await conn.execute("set lock_timeout = '2s'")
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="this login reads"):
            await conn.execute(command.encode())


async def test_u6_the_read_login_can_neither_write_nor_read_what_is_internal(
    store: Store, subtests: pytest.Subtests
) -> None:
    await store.read_url("other")
    url = await store.read_url()
    for statement in REFUSED:
        *before, last = statement.replace("{group}", store.logins.read.removeprefix("tidefill_read_")).split("; ")
        with subtests.test(statement), psql(url) as connection:
            for one in before:
                connection.execute(one.encode())
            with pytest.raises((errors.InsufficientPrivilege, errors.InvalidParameterValue)):
                connection.execute(last.encode())


SPOILS = [
    "alter role current_user password 'x'",
    "alter role current_user set statement_timeout = 1",
    "alter role current_user set search_path = nowhere",
    "alter role current_user set transaction_timeout = 1",
    "alter role current_user in database {database} set statement_timeout = 1",
]


async def test_s3_a_caller_spoils_only_its_own_login_until_it_is_shown_again(store: Store) -> None:
    others = await store.read_url("t2")
    for number, spoil in enumerate(SPOILS):
        mine = await store.read_url(name := f"own{number}")
        with psql(mine) as connection:
            connection.execute("set default_transaction_read_only = off")
            connection.execute(spoil.format(database=f'"{connection.info.dbname}"').encode())
        for url in (others, await store.read_url(name)):
            with psql(url) as connection:
                assert rows(connection, "select id from orders") == [(1,)], spoil
                assert rows(connection, "show statement_timeout") == [("10min",)], spoil
                assert rows(connection, "show client_connection_check_interval") == [("5s",)], spoil
                assert rows(connection, "show transaction_timeout") == [("0",)], spoil


async def test_s3_a_login_sees_and_ends_no_session_of_another(store: Store) -> None:
    with psql(await store.read_url("t1")) as one, psql(await store.read_url("t2")) as other:
        other.execute("select 'a value of the other'")
        pid = other.info.backend_pid
        ((seen,),) = rows(one, f"select query from pg_stat_activity where pid = {pid}")
        assert "value" not in seen
        for function in ("pg_cancel_backend", "pg_terminate_backend"):
            with pytest.raises(errors.InsufficientPrivilege):
                one.execute(f"select {function}({pid})".encode())


async def test_s3_a_login_that_ends_leaves_no_session_and_no_role(store: Store) -> None:
    reads = PostgresReadLogins(store.pool, store.logins.read)
    url = await store.read_url("t1")
    await store.read_url("t2")
    assert [one.suffix for one in await reads.all()] == ["t1", "t2"]
    with psql(url) as connection:
        connection.execute("set statement_timeout = 0")
        assert await reads.end("t1")
        with pytest.raises(psycopg.OperationalError):
            connection.execute("select 1")
    with pytest.raises(psycopg.OperationalError), psql(url):
        pass
    assert await reads.end("t1")
    assert [one.suffix for one in await reads.all()] == ["t2"]


@contextmanager
def locking_itself(url: str) -> Generator[psycopg.Connection]:
    """A session that holds the lock on its login's row."""
    connection = psycopg.connect(url)
    try:
        connection.execute("set transaction read write")
        connection.execute("alter role current_user password 'y'")
        yield connection
    finally:
        connection.close()


async def test_n2_a_login_that_locks_itself_ends(store: Store) -> None:
    url = await store.read_url("t1")
    with psql(url) as reading, locking_itself(url):
        assert await PostgresReadLogins(store.pool, store.logins.read).end("t1")
        with pytest.raises(psycopg.OperationalError):
            reading.execute("select 1")


async def test_n2_a_login_that_locks_itself_is_opened_again(store: Store) -> None:
    with locking_itself(await store.read_url("t1")), psql(await store.read_url("t1")) as connection:
        assert rows(connection, "select id from orders") == [(1,)]


async def test_n2_a_login_that_is_being_opened_holds_up_no_other(store: Store) -> None:
    await store.read_url("t1")
    async with await psycopg.AsyncConnection.connect(store.url) as owner:
        await owner.execute(f"alter role {store.logins.read}_t1 connection limit 5".encode())
        opening = asyncio.create_task(store.read_url("t1"))
        waits = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
        while await store.rows(waits) != [(1,)]:
            pass
        with psql(await store.read_url("t2")) as connection:
            assert rows(connection, "select id from orders") == [(1,)]
        assert not opening.done()
        await owner.rollback()
        await opening


LIFTS = [
    "set log_min_messages = log",
    "set log_min_error_statement = log",
    "set log_statement = 'all'",
    "set log_duration = on",
    "set log_min_duration_statement = 0",
    "set log_transaction_sample_rate = 1",
    "set log_statement_stats = on",
    "set log_temp_files = 0",
    "set log_lock_waits = on",
    "alter role current_user set log_min_messages = log",
    "alter role current_user in database {database} set log_min_messages = log",
    "alter role current_user in database {database} reset log_min_messages",
]
RESETS = ["alter role current_user reset all", "alter role current_user in database {database} reset all"]


def says(text: str) -> str:
    return f"do $$ begin raise log '{text}'; raise warning '{text}'; end $$"


async def test_n3_no_session_writes_to_the_server_s_log(store: Store) -> None:
    url = await store.read_url()
    with psql(url) as connection:
        connection.execute("set default_transaction_read_only = off")
        database = f'"{connection.info.dbname}"'
        for lift in LIFTS:
            with pytest.raises(errors.InsufficientPrivilege):
                connection.execute(lift.format(database=database).encode())
        for reset in RESETS:
            connection.execute(reset.format(database=database).encode())
    with pytest.raises(psycopg.OperationalError, match="permission denied"):
        psycopg.connect(url, options="-c log_min_messages=log")
    with psql(url) as connection:
        # Each statement of such a session is a LOG message.
        connection.execute("set debug_print_parse = on")
        connection.execute(says("nobody wants this").encode())
    await store.run(says("the owner may"))
    while not await store.rows(f"{LOG} where line ~ 'LOG:  the owner may'"):
        pass
    assert await store.rows(f"{LOG} where line ~ 'nobody wants'") == []


LOG = "select line from string_to_table(pg_read_file(pg_current_logfile()), chr(10)) line"


async def test_s3_a_login_ends_by_itself(store: Store) -> None:
    reads = PostgresReadLogins(store.pool, store.logins.read)
    url = await store.read_url("o1")
    await reads.open(ReadLogin("o1", datetime(2020, 1, 1, tzinfo=UTC)), READ_PASSWORD)
    with pytest.raises(psycopg.OperationalError), psql(url):
        pass
    assert [(one.suffix, one.until) for one in await reads.all()] == [("o1", datetime(2020, 1, 1, tzinfo=UTC))]


async def test_s3_the_login_that_all_callers_shared_is_locked(store: Store) -> None:
    """An earlier release had it. Its name is that of the group now."""
    await store.run(f"alter role {store.logins.read} login password 'known to many'")
    url = url_as(store.url, store.logins.read, "known to many")
    with psql(url) as connection:
        async with prepared_store(store.url):
            with pytest.raises(psycopg.OperationalError):
                connection.execute("select 1")
    with pytest.raises(psycopg.OperationalError), psql(url):
        pass
