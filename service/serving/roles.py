"""The two logins that run what users wrote: the reader for SELECT, the writer for DML. Neither owns anything. A third,
for people's own tools, is in `read_role.py`.

A login, because a SET ROLE can be undone from SQL. Names carry the database's oid: roles belong to the whole server,
their grants to one database. Postgres has no negative grants, so what everybody may do and these two must not
(advisory locks, notify, sleep, large objects, ..) is taken from PUBLIC and given back to every other role by name.
"""

from dataclasses import dataclass, field
from typing import Final

from psycopg import errors, sql

from service.domain.errors import Conflict, Invalid
from service.serving.connections import Connection, trusted

READER_CONNECTIONS_MAX: Final = 32
WRITER_CONNECTIONS_MAX: Final = 64
"""Enough for several services and workers, and less than the server's usual 100: users cannot lock the owner out."""

_READER_SETTINGS: Final = (
    ("default_transaction_read_only", "on"),
    ("statement_timeout", "60s"),
    ("idle_in_transaction_session_timeout", "60s"),
    ("search_path", "public, rw_catalog"),
)
_WRITER_SETTINGS: Final = (
    # The worker sets the timeout of each statement; this one ends a session that the worker has forgotten.
    ("statement_timeout", "300s"),
    ("idle_in_transaction_session_timeout", "60s"),
    ("work_mem", "16MB"),
    ("hash_mem_multiplier", "2"),
    ("search_path", "live"),
)
_TEMPORARY_FILES: Final = (("temp_file_limit", "4GB"),)
"""Only a superuser can give it, and neither login can change it: one user's sort must not fill the disk."""

# Functions by name that would act on more than the statement's own result.
_DENIED: Final = (
    r"^(pg_(try_)?advisory_.*|pg_notify|pg_sleep(_for|_until)?|set_config|lo_.*|loread|lowrite"
    r"|pg_cancel_backend|pg_terminate_backend|pg_logical_emit_message|pg_export_snapshot|pg_switch_wal"
    r"|(query|table|schema|database|cursor)_to_xml.*|dblink.*)$"
)
_DENIED_FUNCTIONS: Final = """
select p.oid::regprocedure::text from pg_proc p
where p.proname ~ %(denied)s and p.prokind in ('f', 'p')
  and (p.pronamespace = 'pg_catalog'::regnamespace or p.proname like 'dblink%%')
  and exists (select 1 from unnest(%(roles)s::name[]) r where has_function_privilege(r, p.oid, 'execute'))
order by 1
"""
_OTHER_ROLES: Final = """
select rolname from pg_roles
where rolname !~ '^(pg_|tidefill_(reader|writer|read)(_|$))' and not rolsuper or rolname = current_user order by 1
"""


@dataclass(frozen=True, slots=True)
class RoleNames:
    """The logins of one database."""

    reader: str
    writer: str
    read: str
    """For people's own tools."""


@dataclass(frozen=True, slots=True)
class Logins:
    """How to log in as each, and what could not be taken from them because we do not own it."""

    reader_url: str = field(repr=False)
    writer_url: str = field(repr=False)
    read_url: str = field(repr=False)
    """For people's own tools."""
    warnings: tuple[str, ...] = ()


async def role_names(conn: Connection, *, read: str | None = None) -> RoleNames:
    """Return the names of this database's logins; `read` where the server has no other database of tidefill's."""
    cursor = await conn.execute("select oid::bigint from pg_database where datname = current_database()")
    row = await cursor.fetchone()
    assert row is not None
    number = f"{row[0]:08x}"
    return RoleNames(f"tidefill_reader_{number}", f"tidefill_writer_{number}", read or f"tidefill_read_{number}")


async def make_reader(conn: Connection, name: str, password: str) -> None:
    """Create the reader or give it this password, and grant it what users may see. Raises Invalid, Conflict."""
    await make_login(conn, name, password, READER_CONNECTIONS_MAX)
    await configure(conn, name, _READER_SETTINGS)
    role = sql.Identifier(name)
    await conn.execute(sql.SQL("grant usage on schema public to {}").format(role))
    await grant_catalog(conn, name)


async def grant_catalog(conn: Connection, name: str) -> None:
    """Grant a login the views of rw_catalog, where this database has them."""
    role = sql.Identifier(name)
    cursor = await conn.execute("select to_regnamespace('rw_catalog') is not null")
    if await cursor.fetchone() == (True,):
        await conn.execute(sql.SQL("grant usage on schema rw_catalog to {}").format(role))
        await conn.execute(sql.SQL("grant select on all tables in schema rw_catalog to {}").format(role))


async def make_writer(conn: Connection, name: str, password: str) -> None:
    """Create the writer or give it this password; tables are granted as they are made. Raises Invalid, Conflict."""
    await make_login(conn, name, password, WRITER_CONNECTIONS_MAX)
    await configure(conn, name, _WRITER_SETTINGS)
    role = sql.Identifier(name)
    await conn.execute(sql.SQL("grant usage on schema state, live, stage to {}").format(role))
    await conn.execute(sql.SQL("grant execute on function state.hold_generation, state.refuse to {}").format(role))
    await conn.execute(sql.SQL("grant usage on sequence state.row_ids to {}").format(role))


async def take_from_public(conn: Connection, names: RoleNames) -> tuple[str, ...]:
    """Take from everybody what the logins must not do and give it back to all others; return what they can still do.

    The writer keeps temporary tables: the worker sorts a statement's rows in one.
    """
    others = [sql.Identifier(str(name)) for (name,) in await (await conn.execute(_OTHER_ROLES)).fetchall()]
    everybody_else = sql.SQL(", ").join(others)
    for function in await _denied_functions(conn, names):
        # regprocedure's text is quoted by Postgres.
        signature = trusted(function)
        await _try(conn, sql.SQL("grant execute on function {} to {}").format(signature, everybody_else))
        await _try(conn, sql.SQL("revoke execute on function {} from public").format(signature))
    database = sql.Identifier(conn.info.dbname)
    await _try(conn, sql.SQL("grant temporary on database {} to {}").format(database, sql.Identifier(names.writer)))
    if await _may_make_temporary_tables(conn, names.reader, names.read):
        await _try(conn, sql.SQL("grant temporary on database {} to {}").format(database, everybody_else))
        await _try(conn, sql.SQL("revoke temporary on database {} from public").format(database))
    return await _left_open(conn, names)


async def make_login(conn: Connection, name: str, password: str, connections: int) -> None:
    """Create a login that owns nothing, or give it this password. Raises Invalid, Conflict."""
    cursor = await conn.execute("select rolsuper or rolcreaterole from pg_roles where rolname = current_user")
    if await cursor.fetchone() != (True,):
        user = conn.info.user
        raise Invalid(f'"{user}" may not create the logins for users\' statements: alter role "{user}" createrole')
    cursor = await conn.execute(
        "select rolsuper or rolcreaterole or rolcreatedb or rolreplication or rolbypassrls or exists"
        " (select 1 from pg_auth_members where member = pg_roles.oid) from pg_roles where rolname = %s",
        [name],
    )
    found = await cursor.fetchone()
    if found == (True,):
        raise Conflict(f'role "{name}" exists and may do more than a login for users\' statements should: drop it')
    role = sql.Identifier(name)
    if found is None:
        await conn.execute(sql.SQL("create role {}").format(role))
        await _become_member(conn, role)
    # The server keeps and logs a verifier; the password itself stays here.
    verifier = conn.pgconn.encrypt_password(password.encode(), name.encode(), b"scram-sha-256").decode()
    await conn.execute(
        sql.SQL("alter role {} login noinherit connection limit {} password {}").format(
            role, sql.Literal(connections), sql.Literal(verifier)
        )
    )


async def _become_member(conn: Connection, role: sql.Identifier) -> None:
    """An owner who is no superuser may end the login's sessions only as its member."""
    if not await _is_superuser(conn):
        inherit = sql.SQL(" with inherit true" if conn.info.server_version >= 160_000 else "")
        await conn.execute(sql.SQL("grant {} to current_user{}").format(role, inherit))


async def _is_superuser(conn: Connection) -> bool:
    cursor = await conn.execute("select rolsuper from pg_roles where rolname = current_user")
    return await cursor.fetchone() == (True,)


async def configure(conn: Connection, name: str, settings: tuple[tuple[str, str], ...]) -> None:
    """Set what a login's sessions begin with."""
    if await _is_superuser(conn):
        settings = (*settings, *_TEMPORARY_FILES)
    role = sql.Identifier(name)
    statement = sql.SQL("alter role {} in database {} set {} to {}")
    for key, value in settings:
        # A list of schemas is a list of identifiers, not one text.
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
    return tuple(left)


async def _try(conn: Connection, statement: sql.Composed) -> None:
    """Run what only a superuser or an owner may; refused, it leaves the transaction as it was."""
    try:
        async with conn.transaction():
            await conn.execute(statement)
    except errors.InsufficientPrivilege:
        return
