"""A user's SELECT tries to get out of its login: first through the service, then with the login's password in hand."""

from collections.abc import AsyncGenerator

import psycopg
import pytest
from psycopg import sql

from service.domain.errors import Invalid
from service.protocol.ids import DATABASE_GRAPH, Epoch, StatementId, Term
from service.serving.connections import Connection
from service.serving.reader import PostgresReader
from service.serving.staging import PostgresStaging
from tests.support.state_store import Store, filled, relation

pytestmark = pytest.mark.postgres

TERM = Term(7)
ORDERS = relation(1, "orders")

# Not one query: none of these gets as far as to be run.
STATEMENTS = (
    "insert into orders values (1, 'x')",
    "with x as (insert into orders values (1, 'x') returning 1) select * from x",
    "with x as (delete from orders returning 1) select * from x",
    "select 1 into temporary stolen",
    "create temporary table t(a int)",
    "select 1; select 2",
    "select 1; commit; drop view orders",
    "commit",
    "set role postgres",
    "reset role",
    "set session authorization postgres",
    "reset session authorization",
    "set transaction read write",
    "copy (select 1) to program 'touch /tmp/broken-out'",
    "copy orders to '/tmp/broken-out'",
    "prepare p as select 1",
    "execute p",
    "deallocate all",
    "discard all",
    "do $$ begin perform 1; end $$",
    "call x()",
    "listen x",
    "notify x",
    "lock table orders",
    "vacuum",
    "explain analyze select 1",
    "declare c cursor for select 1",
    "fetch all from tidefill_query",
    "load 'x'",
    "select * from orders for update",
)
# Queries, and what the login may not do in them.
QUERIES = (
    "select pg_advisory_lock(1)",
    "select pg_try_advisory_xact_lock(1)",
    "select pg_notify('x', 'y')",
    "select pg_sleep(60)",
    "select pg_sleep_for('1 minute')",
    "select set_config('role', 'postgres', false)",
    "select set_config('default_transaction_read_only', 'off', false)",
    "select set_config('statement_timeout', '0', false)",
    "select pg_read_file('/etc/passwd')",
    "select pg_read_binary_file('/etc/passwd')",
    "select pg_ls_dir('/')",
    "select pg_stat_file('/etc/passwd')",
    "select lo_import('/etc/passwd')",
    "select lo_creat(-1)",
    "select lo_from_bytea(0, 'x')",
    "select lo_export(1, '/tmp/broken-out')",
    "select pg_terminate_backend(pid) from pg_stat_activity",
    "select pg_cancel_backend(pid) from pg_stat_activity",
    "select pg_logical_emit_message(false, 'x', 'y')",
    "select pg_export_snapshot()",
    "select pg_create_logical_replication_slot('x', 'pgoutput')",
    "select pg_drop_replication_slot('x')",
    "select pg_switch_wal()",
    "select pg_reload_conf()",
    "select pg_rotate_logfile()",
    "select query_to_xml('select 1', true, true, '')",
    "select dblink('host=/tmp', 'select 1')",
    "select * from pg_authid",
    "select * from pg_shadow",
    "select * from pg_largeobject",
    "select * from pg_statistic",
    "select * from pg_hba_file_rules",
    "select * from pg_user_mapping",
    "select * from state.leader",
    "select * from state.t_1",
    "select * from live.orders",
    "select * from stage.s_1",
    "select * from tidefill.leases",
    "select * from public.private",
    "select state.hold_generation(1, 1)",
    "select state.refuse('a', 'b')",
    "select nextval('public.counter')",
)
# With the read-only mode switched off there are still the rights.
WRITES = (
    "create table public.mine(a int)",
    "create temporary table mine(a int)",
    "create schema mine",
    "create view public.mine as select 1",
    "update orders set v = 'x'",
    "truncate state.t_1",
    "alter role current_user connection limit 1000",
    "alter role current_user superuser",
    "create role mine",
    "copy orders to program 'true'",
    "select lo_create(0)",
)
STAGED = (
    "select 1) as q(c0)) to program 'true'; select (1",
    "select 1) as q(c0)) to stdout; drop view orders; copy (select 1",
    "select 1 /*",
    "select 1; drop view public.orders",
    "select 1 on conflict do nothing",
    "values (1) returning 1",
    "insert into orders values (1, 'x') returning 1",
    "with x as (delete from orders returning 1) select * from x",
    "select pg_advisory_lock(1)",
    "select id from live.orders",
    "default values",
)


@pytest.fixture(autouse=True)
async def _created(store: Store) -> None:
    await store.tables.create(ORDERS, term=TERM)
    await store.run("insert into state.t_1 values (0, 1, 'seen', 5)")
    await store.tables.publish(DATABASE_GRAPH, Epoch(5), term=TERM, created=[ORDERS])
    await store.run("create table tidefill.leases(holder text)")
    await store.run("create table public.private as select 'secret' as v")
    await store.run("create sequence public.counter")
    await store.run("create table stage.s_1(_row bigint)")


@pytest.fixture
async def login(store: Store) -> AsyncGenerator[Connection]:
    """The reader's own login in autocommit, with nothing of the service in between."""
    async with await psycopg.AsyncConnection.connect(store.logins.reader_url, autocommit=True) as conn:
        yield conn


async def test_the_service_runs_nothing_but_one_query(store: Store, reader: PostgresReader) -> None:
    assert store.logins.warnings == ()
    let_through = [sql for sql in STATEMENTS + QUERIES if await _runs(reader, sql)]
    assert let_through == []
    assert (await reader.query("select v from orders", row_limit=2, timeout_ms=1000)).rows == (("seen",),)


async def test_the_login_alone_can_do_no_more(login: Connection) -> None:
    """Should the first fence ever fall: what has no effect but on its own session is all that passes."""
    harmless = {
        "select 1; select 2",
        "select 1; commit; drop view orders",
        "commit",
        "reset role",
        "reset session authorization",
        "set transaction read write",
        "prepare p as select 1",
        "execute p",
        "deallocate all",
        "discard all",
        "do $$ begin perform 1; end $$",
        "listen x",
        "vacuum",
        "explain analyze select 1",
        "declare c cursor for select 1",
    }
    await login.execute("set default_transaction_read_only = off")
    await login.execute("set statement_timeout = '2s'")
    let_through: list[str] = []
    for text in STATEMENTS + QUERIES:
        try:
            await login.execute(text.encode())
        except psycopg.Error:
            await login.rollback()
        else:
            let_through.append(text)
    assert set(let_through) - harmless == {"notify x"}  # a privilege Postgres does not have


async def test_the_login_cannot_become_anybody(login: Connection, store: Store) -> None:
    others = await store.rows("select rolname from pg_roles where rolname not like 'tidefill_reader%'")
    await login.execute("set default_transaction_read_only = off")
    for (role,) in others:
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            await login.execute(sql.SQL("set role {}").format(sql.Identifier(str(role))))


async def test_the_login_cannot_write_even_in_a_writing_transaction(login: Connection) -> None:
    await login.execute("set default_transaction_read_only = off")
    for statement in WRITES:
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            await login.execute(statement.encode())


async def test_a_query_leaves_nothing_for_the_next(store: Store, reader: PostgresReader) -> None:
    """The right to change settings is given back for this test: what `DISCARD ALL` does must be seen to be needed."""
    await store.run("grant execute on function set_config to public")
    for setting, value in (("work_mem", "1MB"), ("DateStyle", "German"), ("search_path", "pg_catalog")):
        changed = await reader.query(f"select set_config('{setting}', '{value}', false)", row_limit=1, timeout_ms=1000)
        assert changed.rows[0][0] is not None
        after = await reader.query(f"select current_setting('{setting}')", row_limit=1, timeout_ms=1000)
        assert after.rows[0][0] not in (value, "German, DMY")
    mode = await reader.query("select current_setting('transaction_read_only')", row_limit=1, timeout_ms=1000)
    assert mode.rows == (("on",),)
    left = "select (select count(*) from pg_prepared_statements) + (select count(*) from pg_cursors)"
    assert (await reader.query(left, row_limit=1, timeout_ms=1000)).rows == ((1,),)


async def test_a_query_cannot_turn_writing_on(store: Store, reader: PostgresReader) -> None:
    await store.run("grant execute on function set_config to public")
    for setting in ("transaction_read_only", "role", "session_authorization"):
        value = "off" if setting == "transaction_read_only" else "postgres"
        with pytest.raises(Invalid):
            await reader.query(f"select set_config('{setting}', '{value}', false)", row_limit=1, timeout_ms=1000)


async def test_a_query_to_be_staged_gets_no_further(store: Store, staging: PostgresStaging) -> None:
    columns = relation(2, "x", {"a": "bigint"}).columns
    for text in STAGED:
        with pytest.raises(Invalid):
            await filled(staging.from_query(StatementId(5), columns, text, timeout_ms=5000, take=[].append))
        assert await store.rows("select to_regclass('stage.s_5'), count(*) from public.orders") == [(None, 1)]


async def _runs(reader: PostgresReader, sql: str) -> bool:
    try:
        await reader.query(sql, row_limit=10, timeout_ms=2000)
    except Invalid:
        return False
    return True
