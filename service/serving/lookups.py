"""Build and drop the indexes by which stages look up rows, without a lock that blocks DML.

Postgres builds such an index outside of any transaction, so the leader's term is checked beforehand. An index holds no
data of its own, so an index that a deposed leader builds or drops late does no harm.
"""

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Collection
from contextlib import asynccontextmanager
from typing import Final

import psycopg
from psycopg import sql

from service.domain.errors import Deposed, Invalid
from service.protocol.ids import Term
from service.protocol.stage import LookupIndex
from service.serving import relation_ddl
from service.serving.connections import Connection, Pool, is_answered, said, translated
from service.telemetry.log import logger

BUILDERS_MAX: Final = 2
"""The number of concurrent builds. Each occupies a connection for long, and barriers need connections too (I10)."""
MEMORY: Final = "256MB"
"""The memory in which Postgres sorts the rows of one build."""

_PATTERN: Final = r"^t_[0-9]+_by_[0-9a-f]{12}$"
_FOUND: Final = """
select c.relname::text, i.indisvalid from pg_index i join pg_class c on c.oid = i.indexrelid
where c.relnamespace = 'state'::regnamespace and c.relname ~ %s
"""

log = logger("lookups")


class PostgresLookups:
    """`LookupIndexes` over the pool of the state store's owner."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._building = asyncio.Semaphore(BUILDERS_MAX)

    async def missing(self, wanted: Collection[LookupIndex]) -> frozenset[LookupIndex]:
        if not wanted:
            return frozenset()
        names = {one: index_name(one) for one in wanted}
        with translated():
            async with self._pool.connection() as conn:
                valid = {name for name, is_valid in await _found(conn) if is_valid}
                cursor = await conn.execute(
                    "select id from unnest(%s::bigint[]) id where to_regclass('state.t_' || id) is not null",
                    [sorted({one.relation for one in wanted})],
                )
                stored = {int(found) for (found,) in await cursor.fetchall()}
        return frozenset(one for one, name in names.items() if one.relation in stored and name not in valid)

    async def build(self, index: LookupIndex, *, term: Term) -> None:
        name = index_name(index)
        try:
            async with self._building, self._leading(term) as conn:
                state = dict(await _found(conn))
                if state.get(name):
                    return
                if name in state:
                    # An interrupted build leaves an index that is maintained and never used.
                    await conn.execute(_drop(name))
                await conn.execute(sql.SQL("set maintenance_work_mem = {}").format(MEMORY))
                # The build waits for older transactions to end. No other transaction waits for it during that time.
                await conn.execute("set lock_timeout = 0")
                await conn.execute("set statement_timeout = 0")
                await conn.execute(create(index, concurrently=True))
                for setting in ("maintenance_work_mem", "lock_timeout", "statement_timeout"):
                    await conn.execute(sql.SQL("reset {}").format(sql.Identifier(setting)))
        except psycopg.Error as error:
            raise Invalid(said(error)) from error

    async def drop_others(self, wanted: Collection[LookupIndex], *, term: Term) -> int:
        kept = {index_name(one) for one in wanted}
        dropped = 0
        async with self._leading(term) as conn:
            for name in sorted({name for name, _ in await _found(conn)} - kept):
                try:
                    await conn.execute(_drop(name))
                    dropped += 1
                except psycopg.Error as error:
                    if not is_answered(error):
                        raise
                    log.warning("index.not_dropped", index=name, error=str(error))
        return dropped

    @asynccontextmanager
    async def _leading(self, term: Term) -> AsyncGenerator[Connection]:
        """Open a connection without a transaction, and close it after an error. Raises Deposed, Unavailable."""
        with translated():
            async with self._pool.connection() as conn:
                cursor = await conn.execute("select 1 from state.leader where term = %s", [term])
                if await cursor.fetchone() is None:
                    raise Deposed(term)
                try:
                    yield conn
                except BaseException:
                    # Its settings may still be changed, or its statement may still run.
                    await conn.close()
                    raise


def index_name(index: LookupIndex) -> str:
    """Return the name of an index, the same for equal ones."""
    digest = hashlib.sha256("\0".join([*index.columns, "hash" * index.hashed]).encode()).hexdigest()
    return f"t_{index.relation}_by_{digest[:12]}"


def create(index: LookupIndex, *, concurrently: bool = False) -> sql.Composed:
    """Return the statement that creates an index if it is missing."""
    columns = sql.SQL(", ").join([sql.Identifier(column) for column in index.columns])
    return sql.SQL("create index {} if not exists {} on {} ").format(
        sql.SQL("concurrently" if concurrently else ""),
        sql.Identifier(index_name(index)),
        relation_ddl.table(index.relation),
    ) + sql.SQL("using hash ({})" if index.hashed else "({}, _to)").format(columns)


async def _found(conn: Connection) -> list[tuple[str, bool]]:
    """Return the name of each index, and whether it is complete."""
    rows = await (await conn.execute(_FOUND, [_PATTERN])).fetchall()
    return [(str(name), bool(valid)) for name, valid in rows]


def _drop(name: str) -> sql.Composed:
    return sql.SQL("drop index concurrently if exists {}").format(sql.Identifier("state", name))
