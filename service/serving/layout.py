"""Create the internal tables and functions of the state store: leader term, published epochs, fences, horizons, pins.

`lay_out` may run at every start and in several services concurrently.
"""

from typing import Final

from psycopg import sql

from service.domain.errors import Conflict, Invalid
from service.serving.connections import Connection
from service.serving.marks import MARK

SERVER_VERSION_MIN: Final = 150_000
"""Postgres 15 has NULLS NOT DISTINCT. Without it, rows with NULL in the key would not be unique."""

_SCHEMAS: Final = ("state", "live", "stage")

_VERSION_1: Final = """
create table state.leader(one boolean primary key default true check (one), term bigint not null);
insert into state.leader(term) values (0);
create table state.published(graph bigint primary key, epoch bigint not null, term bigint not null);
create sequence state.row_ids;
create table state.fence(graph bigint primary key, generation bigint not null);
create table state.horizon(graph bigint primary key, epoch bigint not null);
create table state.pin(
    graph bigint, epoch bigint, holder text, expires_at timestamptz not null, primary key (graph, holder, epoch)
);

-- The last statement of a worker's writing transaction (I7). The lock makes a new generation wait for the commit;
-- last, so that a writer in the middle of its rows holds nobody up.
create function state.hold_generation(of_graph bigint, of_generation bigint) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    perform 1 from state.fence where graph = of_graph and generation = of_generation for share;
    if not found then
        raise exception 'generation % of graph % is over', of_generation, of_graph using errcode = 'TF001';
    end if;
    return true;
end $$;

-- Called by the checks of tables for a value that is refused, so that the error names the column and the reason.
-- Volatile, or the planner would call it to fold a constant.
create function state.refuse(column_name text, reason text) returns boolean
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
begin
    raise exception 'value out of range for column "%": %', column_name, reason
        using errcode = 'check_violation', column = column_name;
end $$;

revoke execute on function state.hold_generation, state.refuse from public;
"""

_VERSION_2: Final = f"""
-- Called when a session that is not tidefill's writes to a view or a table: that would change rows behind the epochs.
create function state.refuse_write() returns trigger
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
    raise exception 'cannot change "%": its rows belong to tidefill', tg_table_name
        using errcode = 'object_not_in_prerequisite_state',
            hint = 'Change rows through tidefill: POST /v1/sql, or tidefill sql.';
end $$;
revoke execute on function state.refuse_write from public;

create procedure state.protect(relation regclass) language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
    if (select relkind = 'v' from pg_class where oid = relation) then
        -- A view with such a trigger is no longer updatable by itself.
        execute format('create trigger tidefill_read_only instead of insert or update or delete on %s'
            ' for each row execute function state.refuse_write()', relation);
    else
        -- The condition costs no call: tidefill's sessions pass it.
        execute format('create trigger tidefill_only before insert or update or delete or truncate on %s'
            ' for each statement when (current_setting(''application_name'') not like ''tidefill%%'')'
            ' execute function state.refuse_write()', relation);
    end if;
end $$;
revoke execute on procedure state.protect from public;

do $$
declare relation regclass;
begin
    for relation in
        select c.oid::regclass from pg_class c
        where c.relkind in ('r', 'v') and c.relnamespace in ('public'::regnamespace, 'live'::regnamespace,
            'state'::regnamespace) and obj_description(c.oid, 'pg_class') like '{MARK}%'
    loop
        call state.protect(relation);
    end loop;
end $$;
"""

_VERSION_3: Final = """
-- In place of the rows of a relation that does not lie here. Volatile, or the planner would call it.
create or replace function state.refuse_read(name text, reason text) returns setof boolean
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
begin
    raise exception 'cannot read "%": %', name, reason using errcode = 'feature_not_supported';
end $$;
"""

IN_LAKE: Final = "TF002"
"""The SQLSTATE of a query that reads rows which do not lie in the state store."""
_VERSION_4: Final = f"""
-- The planner takes a constant in place of its text for known, and need not call it where a condition excludes that.
create or replace function state.refuse_rows(name text, reason text) returns setof text
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
begin
    raise exception 'cannot read "%": %', name, reason using errcode = '{IN_LAKE}';
end $$;
"""

_VERSION_5: Final = """
-- Runs one statement of a user. An error is data, and cut: it may quote a value of a gigabyte, which a client of
-- Postgres keeps in memory several times. A cancelled statement is none of the others.
create or replace function state.attempt(
    command text, out affected bigint, out ended bigint, out made bigint, out lost bigint, out error text, out code text
) language plpgsql as $$
begin
    execute command into affected, ended, made, lost;
exception when others then
    error := left(sqlerrm, 2000);
    code := sqlstate;
end $$;
revoke execute on function state.attempt from public;
"""

_UPGRADES: Final = (_VERSION_1, _VERSION_2, _VERSION_3, _VERSION_4, _VERSION_5)
"""Entry n upgrades version n to n + 1. Entries are only appended."""


async def lay_out(conn: Connection) -> None:
    """Upgrade schemas, tables and functions to the present version, inside the caller's transaction.

    Raises Invalid if the server or the login is unsuitable. Raises Conflict if a needed schema exists and is not
    tidefill's, or if the layout is newer than this release.
    """
    await _check_server(conn)
    version = await _version(conn)
    if version > len(_UPGRADES):
        raise Conflict(f"the state store has layout {version}; this release knows {len(_UPGRADES)}: use a newer one")
    for upgrade in _UPGRADES[version:]:
        await conn.execute(upgrade)
    await conn.execute("update state.layout set version = %s where version <> %s", [len(_UPGRADES)] * 2)


async def _check_server(conn: Connection) -> None:
    if conn.info.server_version < SERVER_VERSION_MIN:
        raise Invalid(f"the state store needs Postgres 15 or later, not {conn.info.server_version // 10_000}")
    if conn.info.parameter_status("server_encoding") != "UTF8":
        raise Invalid("the state store's database must have the encoding UTF8")
    cursor = await conn.execute(
        "select current_user, current_database(), has_database_privilege(current_database(), 'create'),"
        " has_schema_privilege('public', 'create')"
    )
    row = await cursor.fetchone()
    assert row is not None
    user, database, may_create, may_publish = row
    if not may_create:
        raise Invalid(f'"{user}" may not create schemas: grant create on database "{database}" to "{user}"')
    if not may_publish:
        raise Invalid(f'"{user}" may not create views in schema public: grant create on schema public to "{user}"')


async def _version(conn: Connection) -> int:
    """Return the present version, or create the schemas and return 0."""
    cursor = await conn.execute("select to_regclass('state.layout') is not null")
    if await cursor.fetchone() == (True,):
        row = await (await conn.execute("select version from state.layout")).fetchone()
        assert row is not None
        return int(row[0])
    cursor = await conn.execute("select nspname from pg_namespace where nspname = any(%s)", [list(_SCHEMAS)])
    taken = sorted(str(name) for (name,) in await cursor.fetchall())
    if taken:
        raise Conflict(f"schema {', '.join(taken)} exists and is not tidefill's: use a database of its own")
    for schema in _SCHEMAS:
        await conn.execute(sql.SQL("create schema {}").format(sql.Identifier(schema)))
    await conn.execute("create table state.layout(version int not null)")
    await conn.execute("insert into state.layout values (0)")
    return 0
