"""Preparing a state store: as a superuser and as a plain owner, again and again, and where something is in the way."""

import asyncio
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass

import psycopg
import pytest
from psycopg import sql

from service.domain.errors import Conflict, Invalid
from service.protocol.ids import DATABASE_GRAPH, Epoch, Generation, Term
from service.serving.connections import open_pool, url_as
from service.serving.preparation import prepare, prepare_catalog_reader
from service.serving.reader import PostgresReader
from service.serving.roles import Logins
from service.serving.tables import PostgresTables
from service.serving.user_query import open_reader_pool
from tests.support.state_store import Store, prepared_store, relation

pytestmark = pytest.mark.postgres

TERM = Term(7)
ORDERS = relation(1, "orders")
# What each login may do with each of our tables and views, and with the schemas.
RIGHTS = """
select r.kind, n.nspname, string_agg(distinct case when c.relname like 't\\_%' then 't' else c.relname end
       || ':' || p.privilege_type, ' ')
from (values ('reader'), ('writer')) r(kind)
join pg_roles role on role.rolname like 'tidefill\\_' || kind || '%' and right(rolname, 8) = lpad(to_hex(
    (select oid::bigint from pg_database where datname = current_database())), 8, '0')
join pg_class c on relkind in ('r', 'v', 'S') join pg_namespace n on n.oid = c.relnamespace
cross join unnest(array['select','insert','update','delete','truncate','references','trigger']) p(privilege_type)
where nspname in ('public', 'state', 'live', 'stage') and has_schema_privilege(role.oid, n.oid, 'usage')
  and case when relkind = 'S' then false else has_table_privilege(role.oid, c.oid, p.privilege_type) end
group by 1, 2 order by 1, 2
"""


async def _prepare(url: str, reader: str = "r", writer: str = "w") -> Logins:
    return await prepare(url, reader_password=reader, writer_password=writer)


async def _logs_in(url: str) -> bool:
    try:
        conn = await psycopg.AsyncConnection.connect(url)
    except psycopg.OperationalError:
        return False
    await conn.close()
    return True


async def test_rights_are_these_and_no_more(store: Store) -> None:
    await store.tables.create(ORDERS, term=TERM)
    await store.tables.publish(DATABASE_GRAPH, Epoch(5), term=TERM, created=[ORDERS])
    await store.run("create table public.private(a int)")
    assert await store.rows(RIGHTS) == [
        ("reader", "public", "orders:select"),
        ("writer", "live", "orders:select"),
        ("writer", "state", "t:delete t:insert t:select t:update"),
    ]
    functions = await store.rows(
        "select p.proname, bool_or(has_function_privilege(r.rolname, p.oid, 'execute')) from pg_proc p, pg_roles r"
        " where p.pronamespace = 'state'::regnamespace and r.rolname like 'tidefill_reader_%' group by 1 order by 1"
    )
    # A view of a relation of a lake calls one of two for whoever reads it. It only raises an error.
    named = ("attempt", "hold_generation", "protect", "refuse", "refuse_commands", "refuse_write")
    refused = [(name, False) for name in named]
    assert functions == sorted([*refused, ("refuse_read", True), ("refuse_rows", True)])


async def test_passwords_rotate_and_are_not_shown(empty_url: str) -> None:
    before = await _prepare(empty_url, "reader 1", "writer 1")
    after = await _prepare(empty_url, "reader 2", "writer 2")
    assert [await _logs_in(url) for url in (before.reader_url, before.writer_url)] == [False, False]
    assert [await _logs_in(url) for url in (after.reader_url, after.writer_url)] == [True, True]
    assert "reader" not in repr(after)


async def test_services_that_start_together_wait_for_each_other(empty_url: str) -> None:
    """The meta store's own database may be named once more as the state store."""
    catalogs = asyncio.gather(*(prepare_catalog_reader(empty_url, reader_password="reader") for _ in range(4)))
    found = await asyncio.gather(*(_prepare(empty_url) for _ in range(4)))
    assert len({logins.reader_url for logins in found}) == 1
    assert len(set(await catalogs)) == 1


async def test_what_is_stored_stays(store: Store) -> None:
    await store.fences.claim(TERM)
    await store.fences.fence(DATABASE_GRAPH, Generation(3), term=TERM)
    await _prepare(store.url)
    assert await store.rows("select term, generation from state.leader, state.fence") == [(7, 3)]


async def test_a_newer_layout_is_not_touched(store: Store) -> None:
    await store.run("update state.layout set version = 99")
    with pytest.raises(Conflict, match="layout 99"):
        await _prepare(store.url)


async def test_a_schema_of_somebody_else_is_not_taken(empty_url: str) -> None:
    for schema in ("state", "live", "stage"):
        async with await psycopg.AsyncConnection.connect(empty_url, autocommit=True) as conn:
            await conn.execute(sql.SQL("create schema {}").format(sql.Identifier(schema)))
            with pytest.raises(Conflict, match=f"schema {schema} exists and is not tidefill's"):
                await _prepare(empty_url)
            await conn.execute(sql.SQL("drop schema {}").format(sql.Identifier(schema)))


async def test_a_login_that_was_given_more_is_not_used(store: Store) -> None:
    roles = await store.rows("select rolname from pg_roles where rolname like 'tidefill_reader_%' order by oid desc")
    (role,) = roles[0]
    for more in ("createrole", "createdb", "bypassrls", "superuser"):
        await store.run(f"alter role {role} {more}")
        with pytest.raises(Conflict, match="may do more than"):
            await _prepare(store.url)
        await store.run(f"alter role {role} no{more}")
    await store.run(f"grant pg_read_all_data to {role}")
    with pytest.raises(Conflict, match="may do more than"):
        await _prepare(store.url)


async def test_other_applications_keep_what_they_had(empty_url: str, postgres_url: str) -> None:
    """Functions are taken from PUBLIC; another login in the same database must not notice."""
    with psycopg.connect(postgres_url, autocommit=True) as conn:
        conn.execute("create role somebody_else")
    try:
        async with prepared_store(empty_url) as store, store.pool.connection() as conn:
            await conn.execute("set role somebody_else")
            await conn.execute("select pg_try_advisory_lock(1), pg_notify('a', 'b')")
            await conn.execute("select set_config('work_mem', '1MB', true)")
            await conn.execute("create temporary table t(a int)")
            await conn.execute("reset role")
    finally:
        with psycopg.connect(empty_url, autocommit=True) as conn:
            conn.execute("drop owned by somebody_else")
            conn.execute("drop role somebody_else")


@dataclass(frozen=True, slots=True)
class Owner:
    """A login that owns the database and is no superuser."""

    name: str
    url: str


@pytest.fixture
def owner(empty_url: str) -> Iterator[Owner]:
    name = "plain_owner"
    with psycopg.connect(empty_url, autocommit=True) as conn:
        conn.execute(f"create role {name} login createrole password 'p'".encode())
        conn.execute(f"alter database {conn.info.dbname} owner to {name}".encode())
        yield Owner(name, url_as(empty_url, name, "p"))
        # What it made goes with it; grants to and of its logins are the server's, not the database's.
        roles = conn.execute("select rolname from pg_roles where rolname like 'tidefill_%'").fetchall()
        conn.execute(f"alter database {conn.info.dbname} owner to current_user".encode())
        conn.execute(f"drop owned by {name} cascade".encode())
        for (role,) in roles:
            conn.execute(sql.SQL("revoke {} from {} cascade").format(sql.Identifier(role), sql.Identifier(name)))
        conn.execute(f"drop role {name}".encode())


@pytest.fixture
async def plain(owner: Owner) -> AsyncGenerator[Store]:
    async with prepared_store(owner.url) as store:
        yield store


async def test_an_owner_without_superuser_is_told_what_stays_open(plain: Store) -> None:
    functions, locks = plain.logins.warnings
    assert "pg_sleep(double precision)" in functions
    assert "only a superuser can revoke it" in functions
    assert "such as CREATE RULE" in locks
    again = await _prepare(plain.url)
    assert again.warnings == plain.logins.warnings


async def test_a_guard_that_guards_nothing_is_none(store: Store) -> None:
    assert (await _prepare(store.url)).warnings == ()
    await store.run("alter event trigger tidefill_reads disable")
    (warning,) = (await _prepare(store.url)).warnings
    assert "such as CREATE RULE" in warning


async def test_an_owner_without_superuser_can_do_the_rest(plain: Store) -> None:
    await plain.fences.claim(TERM)
    await plain.tables.create(ORDERS, term=TERM)
    await plain.run("insert into state.t_1 values (0, 1, 'seen', 5)")
    await plain.tables.publish(DATABASE_GRAPH, Epoch(5), term=TERM, created=[ORDERS])
    async with open_reader_pool(plain.logins.reader_url) as pool:
        found = await PostgresReader(pool).query("select v from orders", row_limit=5, timeout_ms=5000)
        assert found.rows == (("seen",),)
        # The read-only transaction holds where the function could not be taken away.
        with pytest.raises(Invalid, match="read-only transaction"):
            await PostgresReader(pool).query("select lo_create(0)", row_limit=5, timeout_ms=5000)
    async with await psycopg.AsyncConnection.connect(plain.logins.writer_url, application_name="tidefill:1:2") as conn:
        await conn.execute("insert into state.t_1 values (0, 2, 'zombie', 6)")
        await plain.fences.fence(DATABASE_GRAPH, Generation(3), term=TERM)
        with pytest.raises(psycopg.OperationalError):
            await conn.commit()
    await plain.tables.drop(ORDERS.id, ORDERS.name, term=TERM)


@pytest.mark.parametrize(
    ("missing", "words"),
    [
        ("alter role plain_owner nocreaterole", 'alter role "plain_owner" createrole'),
        ("revoke all on schema public from pg_database_owner, public", "grant create on schema public"),
    ],
)
async def test_a_missing_right_is_named(owner: Owner, empty_url: str, missing: str, words: str) -> None:
    async with await psycopg.AsyncConnection.connect(empty_url, autocommit=True) as conn:
        await conn.execute(missing.encode())
    with pytest.raises(Invalid) as refused:
        await _prepare(owner.url)
    assert words in refused.value.message
    async with open_pool(owner.url, name="test") as pool, pool.connection() as conn:
        cursor = await conn.execute("select to_regnamespace('state')")
        assert await cursor.fetchone() == (None,)


async def test_nobodys_database(empty_url: str, postgres_url: str) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as conn:
        conn.execute("create role visitor login createrole password 'p'")
    try:
        with pytest.raises(Invalid, match='"visitor" may not create schemas: grant create on database'):
            await _prepare(url_as(empty_url, "visitor", "p"))
    finally:
        with psycopg.connect(postgres_url, autocommit=True) as conn:
            conn.execute("drop role visitor")


async def test_dependents_of_a_dropped_view_are_not_destroyed(store: Store) -> None:
    tables = PostgresTables(store.pool)
    await store.fences.claim(TERM)
    await tables.create(ORDERS, term=TERM)
    await tables.publish(DATABASE_GRAPH, Epoch(5), term=TERM, created=[ORDERS])
    await store.run("create view public.mine as select * from public.orders")
    with pytest.raises(Conflict, match=r"view public\.mine depends on view public\.orders"):
        await tables.drop(ORDERS.id, ORDERS.name, term=TERM)
    await store.run("drop view public.mine")
    await tables.drop(ORDERS.id, ORDERS.name, term=TERM)
