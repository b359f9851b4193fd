"""Create, publish, roll back, vacuum and drop versioned tables in Postgres under a leader's term (I2, I3, I7, I9).

Next: `service.serving.relation_ddl` for the DDL, `fencing.py` for the fence of every write.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Final

import psycopg
from psycopg import errors, sql

from service.domain.errors import Conflict, InUse, Invalid, MetaError
from service.protocol.columns import ColumnType
from service.protocol.ids import DATABASE_GRAPH, Epoch, GraphId, RelationId, Term
from service.protocol.relation import ALIVE, VERSION, Relation, kept_of
from service.protocol.stage import LookupIndex
from service.serving import marks, relation_ddl, sessions
from service.serving.connections import Connection, Pool, is_answered, is_away, is_locked, said, translated
from service.serving.fencing import writing
from service.serving.lookups import create as create_lookup
from service.serving.pins import advance, locked
from service.serving.roles import role_names
from service.telemetry.log import logger

VACUUM_BATCH: Final = 10_000
"""The number of row versions deleted per transaction. It is small enough that other transactions do not wait long for
the locks.
"""
INDEX_MEMORY: Final = "256MB"
"""The memory in which Postgres sorts while it builds an index. It is enough for a few million keys."""
BUILDERS_MAX: Final = 2
"""The number of concurrent index builds. Each occupies a connection for long, and barriers need connections too (I10).
"""
ASKED_TOGETHER: Final = 100
"""The number of tables per statement. Beyond a few hundred, planning costs more than the saved round trips."""
_IMPATIENT: Final = "set local lock_timeout = '200ms'"
"""A long statement on one relation must not delay the leader, which tries again later."""
_TYPE: Final = """
select format_type(atttypid, atttypmod) from pg_attribute
where attrelid = %s::regclass and attname = %s and attnum > 0 and not attisdropped
"""
_WITH_COLUMN: Final = """
select id from unnest(%s::bigint[]) id join pg_attribute on attrelid = to_regclass(format('state.t_%%s', id))
where attname = %s and not attisdropped
"""
_LOGS: Final[Mapping[str, Callable[[RelationId], sql.Identifier]]] = {
    "p": relation_ddl.partials,
    "l": relation_ddl.changes_log,
}
"""What a relation may have beside its table: appended rows with the epoch of each, and no versions."""
LONG: Final = "300ms"
"""Whoever has used a relation for so long is not asked for it by waiting for a lock."""

log = logger("tables")


class PostgresTables:
    """`VersionedTables` over the pool of the state store's owner."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._building = asyncio.Semaphore(BUILDERS_MAX)
        # Users' statements wait for locks with it, and barriers need connections too (I10).
        self._altering = asyncio.Semaphore(1)

    async def create(
        self,
        relation: Relation,
        *,
        term: Term,
        loading: bool = False,
        lookups: Collection[LookupIndex] = (),
        sums: Sequence[str] = (),
        logged: bool = False,
    ) -> None:
        try:
            async with writing(self._pool, term) as conn:
                await _create(conn, relation, loading=loading)
                if logged:
                    await _create_changes_log(conn, relation)
                if sums:
                    await _create_partials(conn, relation, sums)
                for one in lookups:
                    await conn.execute(create_lookup(one))
        except psycopg.Error as error:
            # Postgres has refused this relation. A retry would not help, and must not delay other relations.
            raise Invalid(said(error)) from error

    async def end_load(self, relation: Relation, *, term: Term) -> None:
        try:
            async with self._building, writing(self._pool, term) as conn:
                # The login may have a statement timeout, which a large index would always exceed.
                await conn.execute("set local statement_timeout = 0")
                await conn.execute(sql.SQL("set local maintenance_work_mem = {}").format(INDEX_MEMORY))
                await conn.execute(relation_ddl.create_storage_index(kept_of(relation)))
                await _drop_table(conn, relation_ddl.partials(relation.id))
        except psycopg.Error as error:
            raise Invalid(said(error)) from error

    async def publish(
        self, graph: GraphId, epoch: Epoch, *, term: Term, created: Sequence[Relation]
    ) -> Mapping[RelationId, str]:
        refused: dict[RelationId, str] = {}
        async with writing(self._pool, term) as conn:
            for relation in created:
                try:
                    async with conn.transaction():
                        await _show(conn, relation, graph)
                except (Conflict, psycopg.Error) as error:
                    if isinstance(error, psycopg.Error) and is_away(error) and not is_locked(error):
                        raise
                    refused[relation.id] = error.message if isinstance(error, Conflict) else said(error)
                    if graph != DATABASE_GRAPH and isinstance(error, psycopg.Error) and is_locked(error):
                        # It stood still for as long as somebody's transaction was open. The next try comes soon.
                        await sessions.end_tools(conn, sql.Identifier("public", relation.name).as_string(conn))
            await conn.execute(
                "insert into state.published as p values (%s, %s, %s) on conflict (graph) do update"
                " set epoch = excluded.epoch, term = excluded.term where p.epoch < excluded.epoch",
                [graph, epoch, term],
            )
        return refused

    async def roll_back(self, relations: Collection[RelationId], graph: GraphId, epoch: Epoch, *, term: Term) -> None:
        async with writing(self._pool, term) as conn:
            horizon = await locked(conn, graph)
        if horizon > epoch:
            # No crash leads here, because the horizon is at most a published epoch. A restored meta store does.
            raise Conflict(
                f"the state store keeps versions since epoch {horizon}, and the meta store's epoch is {epoch}:"
                " restore both as of the same moment"
            )
        logged = {kept: set(await self._stored(relations, kept=kept)) for kept in _LOGS}
        for relation in await self._stored(relations):
            async with writing(self._pool, term) as conn:
                await _roll_back(
                    conn, relation, epoch, [log(relation) for kept, log in _LOGS.items() if relation in logged[kept]]
                )

    async def vacuum(self, relations: Collection[RelationId], graph: GraphId, epoch: Epoch, *, term: Term) -> int:
        async with writing(self._pool, term) as conn:
            horizon = await advance(conn, graph, epoch)
        deleted = 0
        for relation in await self._dead(await self._stored(relations), horizon):
            try:
                while batch := await self._vacuum_batch(relation, horizon, term):
                    deleted += batch
            except (MetaError, psycopg.Error) as error:
                if not is_answered(error):
                    raise
                log.warning("relation.not_vacuumed", relation=relation, error=str(error))
        return deleted

    async def drop(self, relation: RelationId, name: str, *, term: Term) -> None:
        async with writing(self._pool, term) as conn:
            await conn.execute(_IMPATIENT)
            views = [schema for schema in ("public", "live") if await _is_its_view(conn, schema, name, relation)]
            tables = (relation_ddl.table(relation), *(log(relation) for log in _LOGS.values()))
            used = [*(sql.Identifier(schema, name) for schema in views), *tables]
            # A lock that is only waited for already makes others wait.
            if held := await sessions.users(conn, [one.as_string(conn) for one in used], older=LONG):
                raise InUse(held[0])
            for schema in views:
                await marks.drop_view(conn, schema, name)
            for table in tables:
                await _drop_table(conn, table)

    async def hide(self, relation: RelationId, name: str, *, term: Term) -> None:
        async with writing(self._pool, term) as conn:
            await conn.execute(_IMPATIENT)
            if await _is_its_view(conn, "public", name, relation):
                await marks.hide_view(conn, name)

    async def add_column(self, relation: Relation) -> None:
        with translated():
            try:
                async with self._altering, self._pool.connection() as conn, conn.transaction():
                    await conn.execute(_IMPATIENT)
                    await _add_column(conn, relation)
            except errors.LockNotAvailable as error:
                raise InUse(await self._users(relation)) from error
            except psycopg.Error as error:
                if is_away(error):
                    raise
                raise Invalid(said(error)) from error

    async def _users(self, relation: Relation) -> str:
        views = [sql.Identifier(schema, relation.name) for schema in ("public", "live")]
        async with self._pool.connection() as conn:
            names = [one.as_string(conn) for one in (relation_ddl.table(relation.id), *views)]
            return "; ".join(await sessions.users(conn, names)) or "another session"

    async def foreign_readers(self, names: Collection[str]) -> Sequence[str]:
        with translated():
            async with self._pool.connection() as conn:
                return await marks.foreign_readers(conn, names)

    async def lake_versions(self, relations: Collection[RelationId]) -> Mapping[RelationId, tuple[int, Epoch]]:
        # A relation that is dropped meanwhile leaves the answer to the next look.
        with translated(), suppress(errors.UndefinedTable):
            async with self._pool.connection() as conn, conn.transaction():
                await conn.execute(_IMPATIENT)
                found = await (await conn.execute(_WITH_COLUMN, [list(relations), VERSION])).fetchall()
                ask = sql.SQL("select {0}, {1}, _from from {2} where _to = {3}")
                asks = [
                    ask.format(one, sql.Identifier(VERSION), relation_ddl.table(RelationId(one)), ALIVE)
                    for (one,) in found
                ]
                rows = await (await conn.execute(sql.SQL(" union all ").join(asks))).fetchall() if asks else ()
            return {RelationId(one): (version, Epoch(since)) for one, version, since in rows}
        return {}

    async def _stored(self, relations: Collection[RelationId], *, kept: str = "t") -> list[RelationId]:
        """Return the relations that have a table, or a log (`_LOGS`), in order of id.

        A relation may be gone or not created yet.
        """
        with translated():
            async with self._pool.connection() as conn:
                cursor = await conn.execute(
                    "select id from unnest(%s::bigint[]) id"
                    " where to_regclass(format('state.%%s_%%s', %s::text, id)) is not null order by 1",
                    [list(relations), kept],
                )
                return [RelationId(found) for (found,) in await cursor.fetchall()]

    async def _dead(self, relations: Sequence[RelationId], horizon: Epoch) -> list[RelationId]:
        """Return the relations that have, or may have, versions to delete.

        One statement checks many relations, because most of a thousand views are idle. If it fails, all of its
        relations are returned, and the caller tries each by itself.
        """
        ask = sql.SQL("select {0} where exists (select from {1} where _to <= {2} and _to <> {3})")
        found: list[RelationId] = []
        with translated():
            async with self._pool.connection() as conn, conn.transaction():
                await conn.execute(_IMPATIENT)
                await conn.execute("set local enable_seqscan = off")
                for first in range(0, len(relations), ASKED_TOGETHER):
                    portion = relations[first : first + ASKED_TOGETHER]
                    asks = [ask.format(number, relation_ddl.table(number), horizon, ALIVE) for number in portion]
                    try:
                        async with conn.transaction():
                            cursor = await conn.execute(sql.SQL(" union all ").join(asks))
                            found += [RelationId(number) for (number,) in await cursor.fetchall()]
                    except psycopg.Error as error:
                        if not is_answered(error):
                            raise
                        found += portion
        return found

    async def _vacuum_batch(self, relation: RelationId, horizon: Epoch, term: Term) -> int:
        async with writing(self._pool, term) as conn:
            await conn.execute(_IMPATIENT)
            await conn.execute("set local enable_seqscan = off")
            # The condition of the partial index is repeated, because the planner would not use the index without it.
            cursor = await conn.execute(
                sql.SQL(
                    "delete from {0} where ctid = any (array("
                    "select ctid from {0} where _to <= {1} and _to <> {2} limit {3}))"
                ).format(relation_ddl.table(relation), horizon, ALIVE, VACUUM_BATCH)
            )
            return cursor.rowcount


async def _roll_back(conn: Connection, relation: RelationId, epoch: Epoch, logs: Sequence[sql.Identifier]) -> None:
    # The rows of an epoch are few compared with the table, but stale statistics could lead to a sequential scan.
    await conn.execute("set local enable_seqscan = off")
    table = relation_ddl.table(relation)
    await conn.execute(sql.SQL("delete from {} where _from > {}").format(table, epoch))
    await conn.execute(sql.SQL("update {0} set _to = {1} where _to > {2} and _to <> {1}").format(table, ALIVE, epoch))
    for log in logs:
        await conn.execute(sql.SQL("delete from {} where _from > {}").format(log, epoch))


async def _is_its_view(conn: Connection, schema: str, name: str, relation: RelationId) -> bool:
    return await marks.owner(conn, schema, name) == marks.view_mark(relation)


async def _drop_table(conn: Connection, table: sql.Identifier) -> None:
    await conn.execute(sql.SQL("drop table if exists {}").format(table))


async def _create_partials(conn: Connection, relation: Relation, sums: Sequence[str]) -> None:
    for statement in relation_ddl.create_partials(relation, sums):
        await conn.execute(statement)
    writer = sql.Identifier((await role_names(conn)).writer)
    log = relation_ddl.partials(relation.id)
    await conn.execute(sql.SQL("grant select, insert on {} to {}").format(log, writer))


async def _create_changes_log(conn: Connection, relation: Relation) -> None:
    await conn.execute(relation_ddl.create_changes_log(relation))
    writer = sql.Identifier((await role_names(conn)).writer)
    log = relation_ddl.changes_log(relation.id)
    await conn.execute(sql.SQL("grant select, insert, delete on {} to {}").format(log, writer))


async def _create(conn: Connection, relation: Relation, *, loading: bool) -> None:
    await marks.refuse_foreign(conn, relation.name)
    await marks.to_be_made(conn, "public", relation.name, relation.id)
    stored = kept_of(relation)
    if not await _exists(conn, stored):
        await conn.execute(relation_ddl.create_table(stored))
        for statement in relation_ddl.create_indexes(stored):
            await conn.execute(statement)
        await marks.mark(conn, "table", relation_ddl.table(relation.id), _layout_mark(stored))
    if not loading or relation.lake is not None:
        await conn.execute(relation_ddl.create_storage_index(stored))
    writer = sql.Identifier((await role_names(conn)).writer)
    grant = sql.SQL("grant select, insert, update, delete on {} to {}")
    await conn.execute(grant.format(relation_ddl.table(relation.id), writer))
    if relation.lake is not None:
        return
    if await _make_view(conn, "live", relation, relation_ddl.create_live_view(relation)):
        view = sql.Identifier("live", relation.name)
        await conn.execute(sql.SQL("grant select on {} to {}").format(view, writer))


async def _show(conn: Connection, relation: Relation, graph: GraphId) -> None:
    # A reader of a replaced view must not delay the epoch.
    await conn.execute(_IMPATIENT)
    await marks.refuse_foreign(conn, relation.name)
    if await _make_view(conn, "public", relation, relation_ddl.create_public_view(relation, graph)):
        reader = sql.Identifier((await role_names(conn)).reader)
        view = sql.Identifier("public", relation.name)
        await conn.execute(sql.SQL("grant select on {} to {}").format(view, reader))
        for comment in relation_ddl.key_comments(relation):
            await conn.execute(comment)
    elif graph != DATABASE_GRAPH and relation.lake is None and not await _shows(conn, relation, graph):
        # Its job has left the database graph.
        await conn.execute(relation_ddl.create_public_view(relation, graph, replace=True))
    else:
        return
    if graph != DATABASE_GRAPH and relation.lake is None:
        await conn.execute(relation_ddl.replace_live_view(relation, graph))


async def _shows(conn: Connection, relation: Relation, graph: GraphId) -> bool:
    """Whether the public view reads the graph's epochs."""
    view = sql.SQL("select pg_get_viewdef({}::regclass)")
    name = sql.Identifier("public", relation.name).as_string(conn)
    found = await (await conn.execute(view.format(sql.Literal(name)))).fetchone()
    return found is not None and f"graph = {graph})" in found[0]


async def _add_column(conn: Connection, relation: Relation) -> None:
    """Add the last column of a relation, unless an earlier call has done so and ended before it was recorded."""
    column = relation.columns[-1]
    found = await (await conn.execute(_TYPE, [relation_ddl.table(relation.id).as_string(conn), column.name])).fetchone()
    if found is None:
        for statement in relation_ddl.add_column(relation):
            await conn.execute(statement)
        await conn.execute(relation_ddl.create_live_view(relation, replace=True))
        if await _is_its_view(conn, "public", relation.name, relation.id):
            await conn.execute(relation_ddl.create_public_view(relation, DATABASE_GRAPH, replace=True))
        mark = sql.SQL("comment on table {} is {}")
        await conn.execute(mark.format(relation_ddl.table(relation.id), sql.Literal(_layout_mark(relation))))
    elif ColumnType.parse(str(found[0])) != column.type:
        raise Conflict(f'an ALTER that did not end has added column "{column.name}" as {found[0]}: repeat that one')


async def _exists(conn: Connection, relation: Relation) -> bool:
    mark = await marks.owner(conn, "state", f"t_{relation.id}")
    if mark is not None and mark != _layout_mark(relation):
        # Ids are never reused, unless the meta store was restored or created again while the state store was kept.
        raise Conflict(f"state.t_{relation.id} belongs to another relation: was the meta store replaced?")
    return mark is not None


async def _make_view(conn: Connection, schema: str, relation: Relation, statement: sql.Composed) -> bool:
    """Create the view if it is missing. Return whether it was created."""
    made = await marks.to_be_made(conn, schema, relation.name, relation.id)
    if made:
        await conn.execute(statement)
        await marks.mark(conn, "view", sql.Identifier(schema, relation.name), marks.view_mark(relation.id))
    return made


def _layout_mark(relation: Relation) -> str:
    return f"{marks.view_mark(relation.id)} layout {relation_ddl.digest(relation)}"
