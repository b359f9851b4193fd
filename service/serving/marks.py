"""Mark the tables and views of the state store with their relation, in their comments.

A late clean-up therefore removes neither an object of a later relation nor a user's object.
"""

from collections.abc import Collection
from typing import Final

from psycopg import errors, sql

from service.domain.errors import Conflict, InUse
from service.protocol.ids import RelationId
from service.serving import sessions
from service.serving.connections import Connection

MARK: Final = "tidefill relation "

_OWNER: Final = """
select obj_description(c.oid, 'pg_class') from pg_class c
where c.relnamespace = %s::regnamespace and c.relname = %s
"""
_STANDING_ON: Final = """
select distinct v.relname, obj_description(v.oid, 'pg_class')
from pg_depend d
join pg_rewrite r on r.oid = d.objid
join pg_class v on v.oid = r.ev_class
join pg_class c on c.oid = d.refobjid
where d.classid = 'pg_rewrite'::regclass and d.refclassid = 'pg_class'::regclass and v.oid <> c.oid
  and v.relnamespace = 'public'::regnamespace and c.relnamespace = %s::regnamespace and c.relname = %s
"""
_FOREIGN: Final = """
select distinct quote_ident(n.nspname) || '.' || quote_ident(v.relname)
from pg_depend d
join pg_rewrite r on r.oid = d.objid
join pg_class v on v.oid = r.ev_class
join pg_namespace n on n.oid = v.relnamespace
join pg_class c on c.oid = d.refobjid
where d.classid = 'pg_rewrite'::regclass and d.refclassid = 'pg_class'::regclass and v.oid <> c.oid
  and c.relnamespace = 'public'::regnamespace and c.relname = any (%s)
  and coalesce(obj_description(v.oid, 'pg_class'), '') not like %s
order by 1
"""

_GRANTED: Final = """
select distinct r.rolname::text
from pg_class c, aclexplode(c.relacl) a left join pg_roles r on r.oid = a.grantee
where c.relnamespace = 'public'::regnamespace and c.relname = %s and a.grantee <> c.relowner
"""


def view_mark(relation: RelationId) -> str:
    """Return the mark of a relation's views."""
    return f"{MARK}{relation}"


async def owner(conn: Connection, schema: str, name: str) -> str | None:
    """Return the mark of the object with this name, or None if there is none."""
    row = await (await conn.execute(_OWNER, [schema, name])).fetchone()
    return None if row is None else str(row[0])


async def foreign_readers(conn: Connection, names: Collection[str]) -> list[str]:
    """Return the users' objects that depend on the public views with these names, as schema.name."""
    cursor = await conn.execute(_FOREIGN, [list(names), f"{MARK}%"])
    return [str(name) for (name,) in await cursor.fetchall()]


async def mark(conn: Connection, kind: str, name: sql.Identifier, text: str) -> None:
    """Mark a table or a view, and refuse writes to it by sessions that are not tidefill's."""
    statement = sql.SQL("comment on table {} is {}" if kind == "table" else "comment on view {} is {}")
    await conn.execute(statement.format(name, sql.Literal(text)))
    await conn.execute("call state.protect(%s::regclass)", [name.as_string(conn)])


async def refuse_foreign(conn: Connection, name: str) -> None:
    """Raise Conflict if a user's object has the name in schema public."""
    found = await owner(conn, "public", name)
    if found is not None and not found.startswith(MARK):
        raise Conflict(f'relation "{name}" already exists in schema public and is not tidefill\'s')


async def to_be_made(conn: Connection, schema: str, name: str, relation: RelationId) -> bool:
    """Whether a relation's view has to be created. Drop a view of the same name whose relation was dropped before."""
    found = await owner(conn, schema, name)
    if found is not None and found != view_mark(relation):
        await _free(conn, schema, name)
    return found != view_mark(relation)


async def hide_view(conn: Connection, name: str) -> None:
    """Revoke a public view from everybody who may read it, which waits for no reader."""
    for (role,) in await (await conn.execute(_GRANTED, [name])).fetchall():
        whose = sql.SQL("public") if role is None else sql.Identifier(str(role))
        await conn.execute(sql.SQL("revoke all on {} from {}").format(sql.Identifier("public", name), whose))


async def _free(conn: Connection, schema: str, name: str) -> None:
    """Drop a view of a dropped relation whose name is wanted, and end the readers' sessions that still use it.

    Raises InUse if another session does.
    """
    view = sql.Identifier(schema, name).as_string(conn)
    if found := await sessions.unending(conn, [view]):
        # With one session on 16 names, jobs of others waited for half a minute.
        raise InUse("; ".join(found))
    for last in (False, True):
        try:
            async with conn.transaction():
                await conn.execute("set local lock_timeout = '200ms'")
                await drop_view(conn, schema, name)
        except errors.LockNotAvailable as error:
            if last:
                raise InUse("; ".join(await sessions.users(conn, [view])) or "another session") from error
            await sessions.end_readers(conn, [view])
        else:
            return


async def drop_view(conn: Connection, schema: str, name: str) -> None:
    """Drop a view and tidefill's views that depend on it. Their relations are dropped and wait for clean-up."""
    for above, marked in await (await conn.execute(_STANDING_ON, [schema, name])).fetchall():
        if str(marked).startswith(MARK):
            await drop_view(conn, "public", str(above))
    await conn.execute(sql.SQL("drop view if exists {}").format(sql.Identifier(schema, name)))
