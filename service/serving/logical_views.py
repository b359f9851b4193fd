"""Create logical views in schema `public` with the rights of the reading user.

The query is a user's text. It was first declared under the reader's login. CREATE VIEW is one statement that does not
run the query. Only a SELECT from the view runs it, with the rights of the selecting user (`security_invoker`). The view
therefore shows only rows that this user may read anyway, at the one published epoch of its relations.
"""

from collections.abc import Collection, Sequence
from typing import Final

from psycopg import sql as pg

from service.domain.errors import Invalid
from service.protocol.ids import RelationId
from service.serving import marks
from service.serving.connections import Pool, translated
from service.serving.roles import role_names
from service.serving.user_query import one_statement, refused_as_said

_READ: Final = """
select distinct c.relnamespace::regnamespace::text, c.relname
from pg_depend d
join pg_rewrite r on r.oid = d.objid
join pg_class c on c.oid = d.refobjid
where d.classid = 'pg_rewrite'::regclass and d.refclassid = 'pg_class'::regclass and c.oid <> r.ev_class
  and r.ev_class = (select oid from pg_class where relnamespace = 'public'::regnamespace and relname = %s)
"""


class PostgresViews:
    """`PublicViews` over the pool of the state store's owner."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def create(
        self, view: RelationId, name: str, sql: str, *, reads: Collection[str], columns: Sequence[str] = ()
    ) -> None:
        identifier = pg.Identifier("public", name)
        named = pg.SQL("({}) " if columns else "").format(pg.SQL(", ").join(map(pg.Identifier, columns)))
        head = pg.SQL("create view {} {}with (security_invoker = true) as ").format(identifier, named)
        with translated():
            async with self._pool.connection() as conn, conn.transaction():
                await marks.refuse_foreign(conn, name)
                if not await marks.to_be_made(conn, "public", name, view):
                    return
                await conn.execute("set local search_path = public")
                prefix = head.as_string(conn)
                with refused_as_said(prefix=prefix):
                    await one_statement(conn, (prefix + sql).encode())
                found = {
                    (str(schema), str(read)) for schema, read in await (await conn.execute(_READ, [name])).fetchall()
                }
                if found != {("public", read) for read in reads}:
                    names = ", ".join(sorted(read for _, read in found))
                    raise Invalid(f'what view "{name}" reads could not be told from its text: {names or "nothing"}')
                await marks.mark(conn, "view", identifier, marks.view_mark(view))
                reader = pg.Identifier((await role_names(conn)).reader)
                await conn.execute(pg.SQL("grant select on {} to {}").format(identifier, reader))
