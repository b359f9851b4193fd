"""Stage rows outside any epoch and validate all of them before the first one is applied.

One transaction per statement creates the table with the target's checks, copies the rows and adds the key. A bad row
rolls it back. Rows are passed on as the bytes that Postgres sent, a bounded number at a time (I8).
"""

import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from typing import Final

import psycopg
from psycopg import generators, sql
from psycopg.abc import PQGen
from psycopg.errors import error_from_result
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGconn
from psycopg.waiting import Wait
from psycopg_pool import PoolTimeout

from service.domain.errors import Invalid, Unavailable
from service.ports.state_store import StagedRows
from service.protocol.columns import Column, TypeName
from service.protocol.dml import staging_table
from service.protocol.ids import StatementId
from service.serving import relation_ddl
from service.serving.connections import CONNECT_SECONDS, Connection, Pool, is_away, said, translated, trusted
from service.serving.lingering import Places
from service.serving.roles import role_names
from service.serving.user_query import one_statement, reading, refused_as_said, run
from service.turns import Turns

CHUNK_BYTES: Final = 256 << 10
_LARGE_BYTES: Final = 16 << 20
_ROW_BYTES_MAX: Final = 128 << 20
"""A row is held whole, and twice as it arrives."""
KEY_BYTES: Final = 2_000
"""Shorter keys fit into any index (2,704 bytes), so they need no check."""
RANGE_PAGES: Final = 32
"""The disk blocks of a range of the index by which slices are found. A slice reads up to one range too many."""
_LONG: Final = frozenset({TypeName.TEXT, TypeName.BYTEA, TypeName.NUMERIC})
"""Types of key columns without a maximum length."""

_LOCKS: Final = 1953719656
"""The hash seed of the advisory locks, so that they do not collide with others."""
_HOLD: Final = trusted(f"select pg_advisory_lock(hashtextextended(%s, {_LOCKS}))")
_UNHELD: Final = trusted(f"""
with staged as materialized (
    select relname::text as name from pg_class
    where relnamespace = 'stage'::regnamespace and relkind = 'r' and relname ~ '^s_[0-9]+$'
)
select name from staged where pg_try_advisory_xact_lock(hashtextextended(name, {_LOCKS}))
""")
_ENDED_BY_A_CHECK: Final = "23"
"""The SQLSTATE class of a row that was parsed and then refused by a check. Any other error comes from parsing a row."""


class PostgresStaging:
    """`Staging` over three pools.

    `loads` bounds the concurrent loads, `owner` is for clean-up, and `reader` runs users' queries. A load may be as
    slow as its caller, so it must not occupy a connection of the leader (I13).
    """

    def __init__(self, loads: Pool, owner: Pool, reader: Pool) -> None:
        self._loads = loads
        self._pool = owner
        self._reader = reader
        name, most = "INSERT .. SELECT (TIDEFILL_LOADS_MAX)", loads.max_size
        self.places = Places(Turns(name, running=most, waiting=most, seconds=CONNECT_SECONDS))
        """A query whose caller has left keeps its place until Postgres has stopped it."""

    @asynccontextmanager
    async def from_query(
        self,
        statement: StatementId,
        columns: Sequence[Column],
        sql: str,
        *,
        timeout_ms: int,
        take: Callable[[int], None],
        key: Sequence[str] = (),
    ) -> AsyncGenerator[StagedRows]:
        async with self.places.place(self._reader) as left, self._holding(statement) as conn:
            async with (
                reading(self._reader, sql, timeout_ms=timeout_ms, left=left) as source,
                _loading(conn, statement, columns),
            ):
                await _check_assignable(conn, statement, columns, sql)
                async with aclosing(_copied_out(source, columns, sql, timeout_ms=timeout_ms)) as chunks:
                    rows, size = await _copied_in(conn, statement, columns, _taken(chunks, take), form="binary")
                await _check_keys(conn, statement, columns, key)
            yield StagedRows(rows, await _row_bytes(conn, statement, rows, size))

    @asynccontextmanager
    async def from_csv(
        self,
        statement: StatementId,
        columns: Sequence[Column],
        chunks: AsyncIterator[bytes],
        *,
        key: Sequence[str] = (),
    ) -> AsyncGenerator[StagedRows]:
        async with self._holding(statement) as conn:
            async with _loading(conn, statement, columns):
                rows, size = await _copied_in(conn, statement, columns, chunks, form="csv")
                await _check_keys(conn, statement, columns, key)
            yield StagedRows(rows, await _row_bytes(conn, statement, rows, size))

    async def unheld(self) -> Sequence[StatementId]:
        # The query sees only tables that were committed before it tries the locks. If a table's lock is free, the
        # session that filled the table has finished or died.
        with translated():
            async with self._pool.connection() as conn:
                cursor = await conn.execute(_UNHELD)
                return [StatementId(int(name.removeprefix("s_"))) for (name,) in await cursor.fetchall()]

    async def drop(self, statement: StatementId) -> None:
        with translated():
            async with self._pool.connection() as conn, conn.transaction():
                # A long query on the table, such as a dump, must not delay the leader, which tries again later.
                await conn.execute("set local lock_timeout = '200ms'")
                await conn.execute(sql.SQL("drop table if exists {}").format(_table(statement)))

    @asynccontextmanager
    async def _holding(self, statement: StatementId) -> AsyncGenerator[Connection]:
        """Open a session with an advisory lock on the statement's table. The lock ends with the process."""
        with translated():
            async with AsyncExitStack() as stack:
                try:
                    conn = await stack.enter_async_context(self._loads.connection())
                except PoolTimeout as error:
                    most = self._loads.max_size
                    raise Unavailable(f"{most} loads are in progress (TIDEFILL_LOADS_MAX): try again later") from error
                await conn.execute(_HOLD, (f"s_{statement}",))
                try:
                    yield conn
                finally:
                    # A lost session has no locks any more.
                    with suppress(psycopg.OperationalError):
                        await conn.execute("select pg_advisory_unlock_all()")


@asynccontextmanager
async def _loading(conn: Connection, statement: StatementId, columns: Sequence[Column]) -> AsyncGenerator[None]:
    """Open a transaction that creates the table, lets the block fill it, and then grants it to the worker."""
    async with conn.transaction():
        table = _table(statement)
        await conn.execute(sql.SQL("drop table if exists {}").format(table))
        await conn.execute(_create(statement, columns))
        yield
        # The rows lie in this order.
        order = sql.SQL("create index on {} using brin (_row) with (pages_per_range = {})")
        await conn.execute(order.format(table, RANGE_PAGES))
        writer = sql.Identifier((await role_names(conn)).writer)
        await conn.execute(sql.SQL("grant select on {} to {}").format(table, writer))


async def _check_assignable(conn: Connection, statement: StatementId, columns: Sequence[Column], sql: str) -> None:
    """Check that INSERT accepts the query's columns. PREPARE parses and types the query without running it.

    Raises Invalid with Postgres's message for the INSERT.
    """
    target = relation_ddl.names(columns).as_string(conn)
    prefix = f"prepare tidefill_check as insert into {staging_table(statement)} ({target}) "
    with refused_as_said(prefix=prefix):
        await conn.execute("set local search_path = public, rw_catalog")
        await one_statement(conn, (prefix + sql).encode())
    await conn.execute("deallocate tidefill_check")
    await conn.execute("set local search_path = pg_catalog")


async def _copied_out(
    source: Connection, columns: Sequence[Column], sql: str, *, timeout_ms: int
) -> AsyncGenerator[bytes]:
    """Yield the query's rows as binary COPY data, in portions. Close the connection if the iteration ends early, and
    after large rows: libpq keeps the memory that one took.
    """
    names = [f"c{number}" for number in range(len(columns))]
    casts = ", ".join(f"cast({name} as {column.type})" for name, column in zip(names, columns, strict=True))
    # `reading` has checked that the text is one query, so it cannot close the parenthesis. It may end in a comment or
    # a semicolon.
    head = f"copy (select {casts} from ("
    text = f"{head}{sql.rstrip().rstrip(';')}\n) as q({', '.join(names)})) to stdout (format binary)"
    more, large = True, False
    try:
        with refused_as_said(timeout_ms=timeout_ms, prefix=head):
            # psycopg's own COPY uses the simple protocol.
            await run(source, text.encode(), ExecStatus.COPY_OUT)
            while more:
                portion, more = await source.wait(_portion(source.pgconn))
                if len(portion) > _ROW_BYTES_MAX:
                    raise Invalid(f"a row of the query has more than {_ROW_BYTES_MAX >> 20} MB")
                large = large or len(portion) > _LARGE_BYTES
                yield portion
    finally:
        if more or large:
            await source.close()


async def _taken(chunks: AsyncIterator[bytes], take: Callable[[int], None]) -> AsyncIterator[bytes]:
    async for chunk in chunks:
        take(len(chunk))
        yield chunk


def _portion(pgconn: PGconn) -> PQGen[tuple[bytes, bool]]:
    """Return a portion of rows and whether more may follow. One wait per row would cost more than the row itself."""
    rows: list[memoryview] = []
    size = 0
    while size < CHUNK_BYTES:
        length, row = pgconn.get_copy_data(1)
        if length > 0:
            rows.append(row)
            size += length
        elif length == 0:
            while not (yield Wait.R):
                continue
            pgconn.consume_input()
        else:
            (result,) = yield from generators.fetch_many(pgconn)
            if result.status != ExecStatus.COMMAND_OK:
                raise error_from_result(result)
            return b"".join(rows), False
    return b"".join(rows), True


async def _copied_in(
    conn: Connection, statement: StatementId, columns: Sequence[Column], chunks: AsyncIterator[bytes], *, form: str
) -> tuple[int, int]:
    """Copy the chunks into the table. Return the number of rows and the bytes of the chunks. Raises Invalid with the
    first bad row.
    """
    names = relation_ddl.names(columns)
    copy_in = sql.SQL("copy {} ({}) from stdin (format {}, freeze)").format(_table(statement), names, trusted(form))
    async with _numbering_bad_rows(conn, statement, columns), conn.cursor() as cursor:
        # Frozen rows need not be written a second time when they are first read. COPY freezes the rows only of a table
        # that was created or truncated in the same subtransaction.
        await cursor.execute(sql.SQL("truncate {}").format(_table(statement)))
        size = 0
        async with cursor.copy(copy_in) as copy:
            async for chunk in chunks:
                await copy.write(chunk)
                size += len(chunk)
        return cursor.rowcount, size


async def _row_bytes(conn: Connection, statement: StatementId, rows: int, size: int) -> int:
    """Return the mean size of a row, with its long values as they are sent, of `size` bytes together: Postgres stores
    a megabyte of one letter in 13 kB, and views compute with all of it.
    """
    cursor = await conn.execute("select pg_table_size(%s::regclass)", [staging_table(statement)])
    found = await cursor.fetchone()
    assert found is not None
    return max(int(found[0]), size) // max(rows, 1)


async def _check_keys(conn: Connection, statement: StatementId, columns: Sequence[Column], key: Sequence[str]) -> None:
    """Check the size of keys before any row is applied. Raises Invalid if the target's index would refuse a key.

    Only long keys can be refused, so an index like the target's is built over these alone.
    """
    given = {column.name: column.type.name in _LONG for column in columns}
    long = [name for name in key if given.get(name)]
    if not long:
        return
    length = sql.SQL("coalesce(octet_length({}::text), 0)")
    check = sql.SQL(
        "create index {index} on {table} ((0::smallint), {key}, (0::bigint)) where {size} > {least}"
    ).format(
        index=sql.Identifier(f"s_{statement}_key"),
        table=_table(statement),
        key=sql.SQL(", ").join(sql.Identifier(name) for name in key if name in given),
        size=sql.SQL(" + ").join(length.format(sql.Identifier(name)) for name in long),
        least=KEY_BYTES,
    )
    try:
        await conn.execute(check)
    except psycopg.errors.ProgramLimitExceeded as error:
        raise Invalid(f"a key is too long: {error.diag.message_primary or said(error)}", pointer=long[0]) from error
    await conn.execute(sql.SQL("drop index {}").format(sql.Identifier("stage", f"s_{statement}_key")))


@asynccontextmanager
async def _numbering_bad_rows(
    conn: Connection, statement: StatementId, columns: Sequence[Column]
) -> AsyncGenerator[None]:
    """Run a COPY into the table. Raises Invalid with the bad row, counted from 1, and its column."""
    try:
        # The savepoint keeps the transaction usable, so that the row sequence can be read afterwards.
        async with conn.transaction():
            yield
    except psycopg.Error as error:
        if is_away(error):
            raise
        row = await _rows_numbered(conn, statement)
        if not (error.sqlstate or "").startswith(_ENDED_BY_A_CHECK):
            row += 1
        raise Invalid(f"row {row}{_place(error, statement, columns)}") from error


async def _rows_numbered(conn: Connection, statement: StatementId) -> int:
    """Return how many rows were numbered. This includes a row that a check has refused.

    COPY's own line numbers also count line breaks within values. A sequence counts rows and is not rolled back.
    """
    sequence = sql.Identifier("stage", f"s_{statement}__row_seq")
    cursor = await conn.execute(sql.SQL("select last_value, is_called from {}").format(sequence))
    row = await cursor.fetchone()
    assert row is not None
    last, called = row
    return int(last) + 1 if called else 0


def _place(error: psycopg.Error, statement: StatementId, columns: Sequence[Column]) -> str:
    """Return the column, if the error names one, and the error's message."""
    table = staging_table(statement).split(".")[1]
    words = said(error).replace(f' of relation "{table}"', "")
    context = error.diag.context or ""
    found = re.search(rf"COPY {table}, line \d+, column ", context)
    named = "" if found is None else context[found.end() :]
    of = (one.name for one in columns if named.startswith((f"{one.name}:", f"{one.name},")))
    column = max(of, key=len, default=None)
    return f": {words}" if column is None else f', column "{column}": {words}'


def _create(statement: StatementId, columns: Sequence[Column]) -> sql.Composed:
    """Return the statement that creates the table. Rows are numbered from 0 in their order and checked like the
    target's.
    """
    lines = [
        sql.SQL("_row bigint generated by default as identity (minvalue 0 start 0)"),
        *(relation_ddl.column_definition(column) for column in columns),
        *relation_ddl.checks_of(columns),
    ]
    return sql.SQL("create table {} ({})").format(_table(statement), sql.SQL(", ").join(lines))


def _table(statement: StatementId) -> sql.Identifier:
    return sql.Identifier(*staging_table(statement).split("."))
