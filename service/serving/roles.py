"""Create the two logins that run users' statements: the reader for SELECT, the writer for DML.

Neither owns any object. They are logins, because SQL can undo a SET ROLE. Their names contain the database's oid,
because roles belong to the whole server and their grants to one database. The logins for users' own tools are in
`read_logins.py`.

Postgres has no negative grants. PUBLIC has privileges that these logins must not have, such as advisory locks, notify,
sleep and large objects. They are revoked from PUBLIC and granted to every other role by name.
"""

import re
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, LiteralString

from psycopg import errors, sql

from service.domain.errors import Conflict, Invalid
from service.serving.connections import Connection, trusted
from service.serving.marks import MARK

READER_CONNECTIONS_MAX: Final = 32
WRITER_CONNECTIONS_MAX: Final = 64
"""Enough for several services and workers, but below the server's usual 100, so that the owner can always connect."""

_READER_SETTINGS: Final = (
    ("default_transaction_read_only", "on"),
    ("statement_timeout", "60s"),
    ("idle_in_transaction_session_timeout", "60s"),
    ("search_path", "public, rw_catalog"),
)
_WRITER_SETTINGS: Final = (
    # The worker sets the timeout of each statement. This one ends sessions that the worker has abandoned.
    ("statement_timeout", "300s"),
    ("idle_in_transaction_session_timeout", "60s"),
    ("work_mem", "16MB"),
    ("hash_mem_multiplier", "2"),
    ("search_path", "live"),
)
_BY_SUPERUSER: Final = (
    # Prevents that one user's sort fills the disk.
    ("temp_file_limit", "4GB"),
    # Errors of users' statements are answered. The server's log would show their values to whoever reads it, and grow
    # with each RAISE LOG.
    ("log_min_messages", "fatal"),
    ("log_min_error_statement", "panic"),
)
"""Only a superuser can set these, and the logins cannot change them."""

# Names of functions with effects beyond the statement's own result.
_DENIED: Final = (
    r"^(pg_(try_)?advisory_.*|pg_notify|pg_sleep(_for|_until)?|set_config|lo_.*|loread|lowrite"
    r"|pg_cancel_backend|pg_terminate_backend|pg_logical_emit_message|pg_export_snapshot|pg_switch_wal"
    # They take all partitions of Postgres's lock table at once, so loops of them delay everybody's transactions.
    r"|pg_(safe_snapshot_)?blocking_pids|pg_isolation_test_session_is_blocked|pg_lock_status"
    r"|(query|table|schema|database|cursor)_to_xml.*|dblink.*)$"
)
_DENIED_FUNCTIONS: Final = """
select p.oid::regprocedure::text from pg_proc p
where p.proname ~ %(denied)s and p.prokind in ('f', 'p')
  and (p.pronamespace = 'pg_catalog'::regnamespace or p.proname like 'dblink%%')
  and exists (select 1 from unnest(%(roles)s::name[]) r where has_function_privilege(r, p.oid, 'execute'))
order by 1
"""
_LACKING: Final = """
select c.relname from pg_class c
where c.relnamespace = to_regnamespace(%s) and c.relkind in ('r', 'v')
    and obj_description(c.oid, 'pg_class') like %s
    and exists (select from unnest(%s::text[]) privilege where not has_table_privilege(%s, c.oid, privilege))
"""
_OTHER_ROLES: Final = """
select rolname from pg_roles
where rolname !~ '^(pg_|tidefill_(reader|writer|read)(_|$))' and not rolsuper or rolname = current_user order by 1
"""


_REFUSE_COMMANDS: Final = """
create or replace function state.refuse_commands() returns event_trigger
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
    if session_user ~ {} then
        raise exception 'permission denied for %: this login reads', tg_tag using errcode = 'insufficient_privilege';
    end if;
end $$;
revoke execute on function state.refuse_commands from public
"""
"""Postgres takes the lock of a CREATE RULE before it asks whose the relation is: a session of a login that reads had
`pg_class` to itself for two minutes (I13).
"""
_GUARD: Final = "tidefill_reads"
"""The event trigger that calls it."""
_HAS_GUARD: Final = "select exists (select from pg_event_trigger where evtname = %s)"
_IS_GUARDED: Final = """
select exists (
    select from pg_event_trigger join pg_proc on pg_proc.oid = evtfoid
    where evtname = %s and evtenabled in ('O', 'A') and strpos(prosrc, %s) > 0
)
"""
"""Whether it refuses these logins: that of a restored database has the names of another one's."""


@dataclass(frozen=True, slots=True)
class RoleNames:
    """The names of one database's logins."""

    reader: str
    writer: str
    read: str
    """The group of the logins for people's own tools."""


@dataclass(frozen=True, slots=True)
class Logins:
    """The URLs of the logins, and warnings about privileges that the state store's owner could not revoke."""

    reader_url: str = field(repr=False)
    writer_url: str = field(repr=False)
    read: str = ""
    """The group of the logins for people's own tools."""
    warnings: tuple[str, ...] = ()


async def role_names(conn: Connection, *, read: str | None = None) -> RoleNames:
    """Return the names of this database's logins. `read` overrides the name of the login for users' own tools."""
    cursor = await conn.execute("select oid::bigint from pg_database where datname = current_database()")
    row = await cursor.fetchone()
    assert row is not None
    number = f"{row[0]:08x}"
    return RoleNames(f"tidefill_reader_{number}", f"tidefill_writer_{number}", read or f"tidefill_read_{number}")


async def make_reader(conn: Connection, name: str, password: str) -> None:
    """Create the reader or set its password, and grant it schema public and the catalog. Raises Invalid, Conflict."""
    await make_login(conn, name, password, READER_CONNECTIONS_MAX)
    await configure(conn, name, _READER_SETTINGS)
    role = sql.Identifier(name)
    await conn.execute(sql.SQL("grant usage on schema public to {}").format(role))
    await grant_existing(conn, name, "public", "select")
    await grant_catalog(conn, name)


async def grant_catalog(conn: Connection, name: str) -> None:
    """Grant a login the views of rw_catalog if this database has that schema."""
    role = sql.Identifier(name)
    cursor = await conn.execute("select to_regnamespace('rw_catalog') is not null")
    if await cursor.fetchone() == (True,):
        await conn.execute(sql.SQL("grant usage on schema rw_catalog to {}").format(role))
        await conn.execute(sql.SQL("grant select on all tables in schema rw_catalog to {}").format(role))


async def grant_existing(conn: Connection, name: str, schema: str, *privileges: LiteralString) -> None:
    """Grant a login privileges on everything of tidefill in a schema, where it lacks them.

    New relations are granted when they are created. Restored ones have the logins of the database they were saved from.
    """
    lacking = await (await conn.execute(_LACKING, [schema, f"{MARK}%", list(privileges), name])).fetchall()
    if lacking:
        found = sql.SQL(", ").join([sql.Identifier(schema, str(relation)) for (relation,) in lacking])
        granted = sql.SQL(", ").join([sql.SQL(one) for one in privileges])
        await conn.execute(sql.SQL("grant {} on {} to {}").format(granted, found, sql.Identifier(name)))


async def make_writer(conn: Connection, name: str, password: str) -> None:
    """Create the writer or set its password. Tables are granted when they are created. Raises Invalid, Conflict."""
    await make_login(conn, name, password, WRITER_CONNECTIONS_MAX)
    await configure(conn, name, _WRITER_SETTINGS)
    role = sql.Identifier(name)
    await conn.execute(sql.SQL("grant usage on schema state, live, stage to {}").format(role))
    granted = sql.SQL("grant execute on function state.hold_generation, state.refuse, state.attempt to {}")
    await conn.execute(granted.format(role))
    await conn.execute(sql.SQL("grant usage on sequence state.row_ids to {}").format(role))
    await grant_existing(conn, name, "state", "select", "insert", "update", "delete")
    await grant_existing(conn, name, "live", "select")


async def take_from_public(conn: Connection, names: RoleNames) -> tuple[str, ...]:
    """Revoke dangerous privileges from PUBLIC and grant them to all other roles. Return warnings about what is left.

    The writer keeps temporary tables, because the worker sorts a statement's rows in one.
    """
    others = [sql.Identifier(str(name)) for (name,) in await (await conn.execute(_OTHER_ROLES)).fetchall()]
    everybody_else = sql.SQL(", ").join(others)
    for function in await _denied_functions(conn, names):
        # Postgres quotes the text of a regprocedure.
        signature = trusted(function)
        await _try(conn, sql.SQL("grant execute on function {} to {}").format(signature, everybody_else))
        await _try(conn, sql.SQL("revoke execute on function {} from public").format(signature))
    if await _is_superuser(conn):
        await _refuse_commands(conn, names)
    database = sql.Identifier(conn.info.dbname)
    await _try(conn, sql.SQL("grant temporary on database {} to {}").format(database, sql.Identifier(names.writer)))
    if await _may_make_temporary_tables(conn, names.reader, names.read):
        await _try(conn, sql.SQL("grant temporary on database {} to {}").format(database, everybody_else))
        await _try(conn, sql.SQL("revoke temporary on database {} from public").format(database))
    return await _left_open(conn, names)


async def _refuse_commands(conn: Connection, names: RoleNames) -> None:
    """Have commands of the logins that read refused before they take a lock."""
    await conn.execute(sql.SQL(_REFUSE_COMMANDS).format(sql.Literal(_guarded(names))))
    if await (await conn.execute(_HAS_GUARD, [_GUARD])).fetchone() != (True,):
        create = "create event trigger {} on ddl_command_start execute function state.refuse_commands()"
        await conn.execute(sql.SQL(create).format(sql.Identifier(_GUARD)))


def _guarded(names: RoleNames) -> str:
    """Return the pattern of the logins whose commands are refused."""
    return f"^({re.escape(names.reader)}$|{re.escape(names.read)}(_|$))"


async def make_login(
    conn: Connection,
    name: str,
    password: str,
    connections: int,
    *,
    group: str | None = None,
    until: datetime | None = None,
) -> None:
    """Create a login without objects, or set its password. It has the privileges of `group`, and ends with `until`.

    Raises Invalid if the owner may not create logins, and Conflict if the role exists and has too many privileges.
    """
    cursor = await conn.execute("select rolsuper or rolcreaterole from pg_roles where rolname = current_user")
    if await cursor.fetchone() != (True,):
        user = conn.info.user
        raise Invalid(f'"{user}" may not create the logins for users\' statements: alter role "{user}" createrole')
    cursor = await conn.execute(
        "select rolsuper or rolcreaterole or rolcreatedb or rolreplication or rolbypassrls or exists"
        " (select 1 from pg_auth_members where member = pg_roles.oid and roleid::regrole::text <> %s)"
        " from pg_roles where rolname = %s",
        ["" if group is None else group, name],
    )
    found = await cursor.fetchone()
    if found == (True,):
        raise Conflict(f'role "{name}" exists and may do more than a login for users\' statements should: drop it')
    role = sql.Identifier(name)
    if found is None:
        await make_role(conn, name)
    # Only a verifier is sent, so the server neither stores nor logs the password.
    verifier = conn.pgconn.encrypt_password(password.encode(), name.encode(), b"scram-sha-256").decode()
    await conn.execute(
        sql.SQL("alter role {} login {} connection limit {} password {} valid until {}").format(
            role,
            sql.SQL("noinherit" if group is None else "inherit"),
            sql.Literal(connections),
            sql.Literal(verifier),
            sql.Literal("infinity" if until is None else until.isoformat()),
        )
    )


async def make_role(conn: Connection, name: str) -> None:
    """Create a role without a login, whose sessions the owner may end."""
    await conn.execute(sql.SQL("create role {}").format(sql.Identifier(name)))
    await _become_member(conn, sql.Identifier(name))


async def _become_member(conn: Connection, role: sql.Identifier) -> None:
    """Make the owner a member of the login's role, because without it only a superuser may end the login's sessions."""
    if not await _is_superuser(conn):
        inherit = sql.SQL(" with inherit true" if conn.info.server_version >= 160_000 else "")
        await conn.execute(sql.SQL("grant {} to current_user{}").format(role, inherit))


async def _is_superuser(conn: Connection) -> bool:
    cursor = await conn.execute("select rolsuper from pg_roles where rolname = current_user")
    return await cursor.fetchone() == (True,)


async def configure(conn: Connection, name: str, settings: tuple[tuple[str, str], ...]) -> None:
    """Set the initial settings of a login's sessions."""
    if await _is_superuser(conn):
        settings = (*settings, *_BY_SUPERUSER)
    role = sql.Identifier(name)
    statement = sql.SQL("alter role {} in database {} set {} to {}")
    for key, value in settings:
        # A search path is a list of identifiers, not one text.
        text = sql.SQL(", ").join([sql.Literal(part.strip()) for part in value.split(",")])
        await conn.execute(statement.format(role, sql.Identifier(conn.info.dbname), sql.Identifier(key), text))


async def _denied_functions(conn: Connection, names: RoleNames) -> list[str]:
    cursor = await conn.execute(
        _DENIED_FUNCTIONS, {"denied": _DENIED, "roles": [names.reader, names.writer, names.read]}
    )
    return [str(signature) for (signature,) in await cursor.fetchall()]


async def _may_make_temporary_tables(conn: Connection, *roles: str) -> bool:
    query = "select bool_or(has_database_privilege(r, current_database(), 'temporary')) from unnest(%s::name[]) r"
    cursor = await conn.execute(query, [list(roles)])
    return await cursor.fetchone() == (True,)


async def _left_open(conn: Connection, names: RoleNames) -> tuple[str, ...]:
    functions = await _denied_functions(conn, names)
    left = [f"users' statements can call {', '.join(functions)}: only a superuser can revoke it"] if functions else []
    if await _may_make_temporary_tables(conn, names.reader, names.read):
        left.append("users' statements can make temporary tables: only the database's owner can revoke it")
    if await (await conn.execute(_IS_GUARDED, [_GUARD, _guarded(names)])).fetchone() != (True,):
        left.append("users' own tools can take locks by commands such as CREATE RULE: only a superuser can refuse them")
    return tuple(left)


async def _try(conn: Connection, statement: sql.Composed) -> None:
    """Run a statement that may need a superuser or owner. If it is refused, the transaction continues without it."""
    try:
        async with conn.transaction():
            await conn.execute(statement)
    except errors.InsufficientPrivilege:
        return
