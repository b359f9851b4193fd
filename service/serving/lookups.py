"""Build and drop the indexes by which stages and users look up rows, without a lock that blocks DML.

Postgres builds such an index outside of any transaction, so the leader's term is checked beforehand. An index holds no
data of its own, so an index that a deposed leader builds or drops late does no harm.
"""

import hashlib
from collections.abc import AsyncGenerator, Collection, Mapping
from contextlib import asynccontextmanager
from typing import Final

import psycopg
from psycopg import errors, sql

from service.domain.errors import Deposed, InUse, Invalid
from service.domain.fan_out import ColumnStatistics, Statistics, TableStatistics
from service.ports.state_store import IndexSize
from service.protocol.ids import RelationId, Term
from service.protocol.stage import LookupIndex
from service.serving import relation_ddl, sessions
from service.serving.connections import Connection, Pool, is_answered, said, translated
from service.telemetry.log import logger

MEMORY: Final = "256MB"
"""The memory in which Postgres sorts the rows of one build."""
_IMPATIENT: Final = "200ms"
"""How long a drop waits for other sessions. It is shorter than Postgres's `deadlock_timeout`, and is tried again."""

PLAIN_BYTES: Final = 32 << 20
"""An index of so small a table is built in a moment, in which nobody writes to the table. A concurrent build would wait
for every older transaction of the database, and one that computes a function of Postgres may go on for days.
"""

_PATTERN: Final = r"^t_[0-9]+_by_[0-9a-f]{12}$"
_FOUND: Final = """
select c.relname::text, i.indisvalid, coalesce(pg_relation_size(c.oid), 0)
from pg_index i join pg_class c on c.oid = i.indexrelid
where c.relnamespace = 'state'::regnamespace and c.relname ~ %s
"""
_ROWS: Final = """
select relname::text, reltuples / greatest(relpages, 1) * blocks
from pg_class, lateral (select pg_relation_size(oid) / current_setting('block_size')::bigint) size(blocks)
where relnamespace = 'state'::regnamespace and relname = any (%s) and relkind = 'r'
    and reltuples >= 0 and (relpages > 0 or blocks = 0)
"""
"""As Postgres's planner does it: the density at the last ANALYZE, and the present size."""
_COLUMNS: Final = """
select tablename::text, attname::text, n_distinct, null_frac, avg_width from pg_stats
where schemaname = 'state' and tablename = any (%s) and n_distinct <> 0
"""
_MARKS: Final = {"\1": "descending", "\2": "included"}

log = logger("lookups")


class PostgresLookups:
    """`LookupIndexes` over the pool of the state store's owner."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._builders: dict[LookupIndex, int] = {}

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
        try:
            async with self._leading(term, own=True) as conn:
                self._builders[index] = conn.info.backend_pid
                await _build(conn, index)
        except psycopg.Error as error:
            raise Invalid(said(error)) from error
        finally:
            self._builders.pop(index, None)

    async def held(self) -> Mapping[LookupIndex, str]:
        builders = dict(self._builders)
        if not builders:
            return {}
        with translated():
            async with self._pool.connection() as conn:
                waiting = await sessions.blocking(conn, builders.values())
        return {index: waiting[pid] for index, pid in builders.items() if pid in waiting}

    async def stored(self) -> Mapping[str, IndexSize]:
        with translated():
            async with self._pool.connection() as conn:
                rows = await (await conn.execute(_FOUND, [_PATTERN])).fetchall()
        return {str(name): IndexSize(bool(valid), int(size)) for name, valid, size in rows}

    def name(self, index: LookupIndex) -> str:
        return index_name(index)

    async def statistics(self, relations: Collection[RelationId]) -> Statistics:
        names = {f"t_{one}": one for one in relations}
        with translated():
            async with self._pool.connection() as conn:
                tables = await (await conn.execute(_ROWS, [list(names)])).fetchall()
                columns = await (await conn.execute(_COLUMNS, [list(names)])).fetchall()
        rows = {str(table): float(number) for table, number in tables}
        known: dict[str, dict[str, ColumnStatistics]] = {table: {} for table in rows}
        for table, name, distinct, nulls, width in columns:
            if table in rows:
                # Postgres keeps a number that grows with the table as a share of the rows, below zero.
                number = distinct if distinct >= 0 else -distinct * rows[table]
                known[table][name] = ColumnStatistics(float(number), float(nulls), float(width))
        return {names[table]: TableStatistics(number, known[table]) for table, number in rows.items()}

    async def drop(self, names: Collection[str], *, term: Term) -> frozenset[str]:
        dropped: set[str] = set()
        async with self._leading(term) as conn:
            await conn.execute(f"set lock_timeout = '{_IMPATIENT}'")
            for name in sorted(names):
                try:
                    await conn.execute(_drop(name))
                    dropped.add(name)
                except psycopg.Error as error:
                    if not is_answered(error):
                        raise
                    log.warning("index.not_dropped", index=name, error=str(error))
            await conn.execute("reset lock_timeout")
        return frozenset(dropped)

    @asynccontextmanager
    async def _leading(self, term: Term, *, own: bool = False) -> AsyncGenerator[Connection]:
        """Open a connection without a transaction, and close it after an error. Raises Deposed, Unavailable.

        A build may wait for long, so it has a connection of its `own`: barriers need those of the pool (I10).
        """
        with translated():
            async with self._connected() if own else self._pool.connection() as conn:
                cursor = await conn.execute("select 1 from state.leader where term = %s", [term])
                if await cursor.fetchone() is None:
                    raise Deposed(term)
                try:
                    yield conn
                except BaseException:
                    # Its settings may still be changed, or its statement may still run.
                    await conn.close()
                    raise

    @asynccontextmanager
    async def _connected(self) -> AsyncGenerator[Connection]:
        async with await Connection.connect(str(self._pool.conninfo), autocommit=True) as conn:
            yield conn


def index_name(index: LookupIndex) -> str:
    """Return the name of an index, the same for equal ones."""
    words = [*index.columns, "hash" * index.hashed]
    words += [mark + one for mark, names in _MARKS.items() for one in getattr(index, names)]
    digest = hashlib.sha256("\0".join(words).encode()).hexdigest()
    return f"t_{index.relation}_by_{digest[:12]}"


def create(index: LookupIndex, *, concurrently: bool = False) -> sql.Composed:
    """Return the statement that creates an index if it is missing."""
    begin = sql.SQL("create index {} if not exists {} on {} ").format(
        sql.SQL("concurrently" if concurrently else ""),
        sql.Identifier(index_name(index)),
        relation_ddl.table(index.relation),
    )
    if index.hashed:
        return begin + sql.SQL("using hash ({})").format(sql.Identifier(*index.columns))
    parts = [sql.Identifier(one) + sql.SQL(" desc" if one in index.descending else "") for one in index.columns]
    # After the columns comes `_to`, so that versions that ended long ago are passed over.
    ordered = sql.SQL("({}, _to)").format(sql.SQL(", ").join(parts))
    beside = sql.SQL(", ").join([sql.Identifier(one) for one in index.included])
    return begin + ordered + (sql.SQL(" include ({})").format(beside) if index.included else sql.SQL(""))


async def _build(conn: Connection, index: LookupIndex) -> None:
    name = index_name(index)
    if others := await sessions.builders(conn, index.relation):
        # Of two builds of a table, each would wait for the other. A leader that died may have left one.
        raise InUse(others[0])
    state = dict(await _found(conn))
    if state.get(name):
        return
    await conn.execute(sql.SQL("set maintenance_work_mem = {}").format(MEMORY))
    if name not in state and await _built_plainly(conn, index):
        return
    # The build waits for older transactions to end. No other transaction waits for it during that time.
    await conn.execute("set lock_timeout = 0")
    await conn.execute("set statement_timeout = 0")
    try:
        if name in state:
            # An interrupted build leaves an index that is maintained and never used.
            await conn.execute(_drop(name))
        await conn.execute(create(index, concurrently=True))
    except errors.DeadlockDetected as error:
        raise InUse("other transactions that lock its table") from error
    # Of two indexes, a planner without statistics may choose one of a few different values.
    await conn.execute(sql.SQL("analyze {}").format(relation_ddl.table(index.relation)))


async def _built_plainly(conn: Connection, index: LookupIndex) -> bool:
    """Build the index of a small table, unless a session that writes to the table holds it for long."""
    table = relation_ddl.table(index.relation)
    size = await (await conn.execute("select pg_table_size(%s::regclass)", [f"state.t_{index.relation}"])).fetchone()
    if size is None or size[0] > PLAIN_BYTES:
        return False
    await conn.execute(f"set lock_timeout = '{_IMPATIENT}'")
    try:
        await conn.execute(create(index))
    except errors.LockNotAvailable:
        return False
    await conn.execute(sql.SQL("analyze {}").format(table))
    return True


async def _found(conn: Connection) -> list[tuple[str, bool]]:
    """Return the name of each index, and whether it is complete."""
    rows = await (await conn.execute(_FOUND, [_PATTERN])).fetchall()
    return [(str(name), bool(valid)) for name, valid, _ in rows]


def _drop(name: str) -> sql.Composed:
    return sql.SQL("drop index concurrently if exists {}").format(sql.Identifier("state", name))
