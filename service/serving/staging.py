"""Rows that wait outside any epoch, validated whole before the first of them is applied.

One transaction per statement: the table with the target's checks, the rows by COPY, the key. A bad row leaves
nothing. Rows pass through as the bytes Postgres sent, a bounded number at a time (I8).
"""

import re
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
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
from service.protocol.columns import Column, TypeName
from service.protocol.dml import staging_table
from service.protocol.ids import StatementId
from service.serving import relation_ddl
from service.serving.connections import Connection, Pool, is_away, said, translated, trusted
from service.serving.roles import role_names
from service.serving.user_query import one_statement, reading, refused_as_said

CHUNK_BYTES: Final = 256 << 10
KEY_BYTES: Final = 2_000
"""Shorter keys fit into any index (2,704 bytes), so that they need no look."""
_LONG: Final = frozenset({TypeName.TEXT, TypeName.BYTEA, TypeName.NUMERIC})
"""Types of keys whose values may be of any length."""

_LOCKS: Final = 1953719656
"""Seed of the advisory locks' numbers, so that nobody else's are the same."""
_HOLD: Final = trusted(f"select pg_advisory_lock(hashtextextended(%s, {_LOCKS}))")
_UNHELD: Final = trusted(f"""
with staged as materialized (
    select relname::text as name from pg_class
    where relnamespace = 'stage'::regnamespace and relkind = 'r' and relname ~ '^s_[0-9]+$'
)
select name from staged where pg_try_advisory_xact_lock(hashtextextended(name, {_LOCKS}))
""")
_ENDED_BY_A_CHECK: Final = "23"
"""SQLSTATE class of a row that was read and then refused; any other error is one of reading it."""


class PostgresStaging:
    """`Staging` over a pool of its own, which bounds the loads at once; `owner` cleans up, and users' queries have the
    reader's. A load takes as long as its caller, so that it must hold no connection that the leader needs (I13).
    """

    def __init__(self, loads: Pool, owner: Pool, reader: Pool) -> None:
        self._loads = loads
        self._pool = owner
        self._reader = reader

    @asynccontextmanager
    async def from_query(
        self, statement: StatementId, columns: Sequence[Column], sql: str, *, timeout_ms: int, key: Sequence[str] = ()
    ) -> AsyncGenerator[int]:
        async with self._holding(statement) as conn:
            async with (
                reading(self._reader, sql, timeout_ms=timeout_ms) as source,
                _loading(conn, statement, columns),
            ):
                await _check_assignable(conn, statement, columns, sql)
                async with aclosing(_copied_out(source, columns, sql, timeout_ms=timeout_ms)) as chunks:
                    rows = await _copied_in(conn, statement, columns, chunks, form="binary")
                await _check_keys(conn, statement, columns, key)
            yield rows

    @asynccontextmanager
    async def from_csv(
        self,
        statement: StatementId,
        columns: Sequence[Column],
        chunks: AsyncIterator[bytes],
        *,
        key: Sequence[str] = (),
    ) -> AsyncGenerator[int]:
        async with self._holding(statement) as conn:
            async with _loading(conn, statement, columns):
                rows = await _copied_in(conn, statement, columns, chunks, form="csv")
                await _check_keys(conn, statement, columns, key)
            yield rows

    async def unheld(self) -> Sequence[StatementId]:
        # The tables are those of the statement's snapshot, hence committed before the locks are looked at: one whose
        # lock is free has been left by who filled it.
        with translated():
            async with self._pool.connection() as conn:
                cursor = await conn.execute(_UNHELD)
                return [StatementId(int(name.removeprefix("s_"))) for (name,) in await cursor.fetchall()]

    async def drop(self, statement: StatementId) -> None:
        with translated():
            async with self._pool.connection() as conn, conn.transaction():
                # A long query on it, such as a dump, must not hold up the leader, which tries again later.
                await conn.execute("set local lock_timeout = '200ms'")
                await conn.execute(sql.SQL("drop table if exists {}").format(_table(statement)))

    @asynccontextmanager
    async def _holding(self, statement: StatementId) -> AsyncGenerator[Connection]:
        """A session that holds the statement's table: a process that dies holds nothing any more."""
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
                    # A session that has gone meanwhile holds nothing.
                    with suppress(psycopg.OperationalError):
                        await conn.execute("select pg_advisory_unlock_all()")


@asynccontextmanager
async def _loading(conn: Connection, statement: StatementId, columns: Sequence[Column]) -> AsyncGenerator[None]:
    """A transaction that makes the table, lets the block fill it, and then makes it readable for the worker."""
    async with conn.transaction():
        table = _table(statement)
        await conn.execute(sql.SQL("drop table if exists {}").format(table))
        await conn.execute(_create(statement, columns))
        yield
        # Made afterwards, from rows that are in its order already.
        await conn.execute(sql.SQL("alter table {} add primary key (_row)").format(table))
        writer = sql.Identifier((await role_names(conn)).writer)
        await conn.execute(sql.SQL("grant select on {} to {}").format(table, writer))


async def _check_assignable(conn: Connection, statement: StatementId, columns: Sequence[Column], sql: str) -> None:
    """Refuse a query whose columns INSERT would not take, in INSERT's words. It is parsed and typed, never run."""
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
    """Yield the query's rows as binary COPY, in portions. A source that is left before its end is closed."""
    names = [f"c{number}" for number in range(len(columns))]
    casts = ", ".join(f"cast({name} as {column.type})" for name, column in zip(names, columns, strict=True))
    # `reading` has found the text to be one query, so that it cannot close the bracket; it may end in a comment or
    # semicolon.
    head = f"copy (select {casts} from ("
    text = f"{head}{sql.rstrip().rstrip(';')}\n) as q({', '.join(names)})) to stdout (format binary)"
    more = True
    try:
        with refused_as_said(timeout_ms=timeout_ms, prefix=head):
            await source.wait(_begin(source.pgconn, text.encode()))
            while more:
                portion, more = await source.wait(_portion(source.pgconn))
                yield portion
    finally:
        if more:
            await source.close()


def _begin(pgconn: PGconn, statement: bytes) -> PQGen[None]:
    """Start a COPY TO STDOUT by the extended protocol, which psycopg's own COPY does not use."""
    pgconn.send_query_params(statement, None)
    (result,) = yield from generators.execute(pgconn)
    if result.status != ExecStatus.COPY_OUT:
        raise error_from_result(result)


def _portion(pgconn: PGconn) -> PQGen[tuple[bytes, bool]]:
    """Return some rows, and whether more may come. Many rows a call: a wait for each would cost more than the row."""
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
) -> int:
    """Load what comes and return the number of rows. Raises Invalid naming the first bad row."""
    names = relation_ddl.names(columns)
    copy_in = sql.SQL("copy {} ({}) from stdin (format {})").format(_table(statement), names, trusted(form))
    async with _numbering_bad_rows(conn, statement, columns), conn.cursor() as cursor:
        async with cursor.copy(copy_in) as copy:
            async for chunk in chunks:
                await copy.write(chunk)
        return cursor.rowcount


async def _check_keys(conn: Connection, statement: StatementId, columns: Sequence[Column], key: Sequence[str]) -> None:
    """Refuse keys that the target's index would refuse, while nothing of the load is applied. Only long keys can be:
    an index of the target's shape is built over these alone.
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
    """Run a COPY into the table; where it fails say which row, counted from 1, and which column."""
    try:
        # Within a savepoint: afterwards the transaction can still be asked how far the rows were numbered.
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
    """Return how many rows were numbered, the refused one included where a check refused it.

    COPY's own line numbers count the line breaks within values; a sequence counts rows, and is not rolled back.
    """
    sequence = sql.Identifier("stage", f"s_{statement}__row_seq")
    cursor = await conn.execute(sql.SQL("select last_value, is_called from {}").format(sequence))
    row = await cursor.fetchone()
    assert row is not None
    last, called = row
    return int(last) + 1 if called else 0


def _place(error: psycopg.Error, statement: StatementId, columns: Sequence[Column]) -> str:
    """Return the column, where the error names one, and what is wrong."""
    table = staging_table(statement).split(".")[1]
    words = said(error).replace(f' of relation "{table}"', "")
    context = error.diag.context or ""
    for column in sorted(columns, key=lambda column: -len(column.name)):
        if re.search(rf"COPY {table}, line \d+, column {re.escape(column.name)}[:,]", context):
            return f', column "{column.name}": {words}'
    return f": {words}"


def _create(statement: StatementId, columns: Sequence[Column]) -> sql.Composed:
    """Return the statement that makes the table: rows are numbered from 0 as they come, and checked as the target's
    are.
    """
    lines = [
        sql.SQL("_row bigint generated by default as identity (minvalue 0 start 0)"),
        *(relation_ddl.column_definition(column) for column in columns),
        *relation_ddl.checks_of(columns),
    ]
    return sql.SQL("create table {} ({})").format(_table(statement), sql.SQL(", ").join(lines))


def _table(statement: StatementId) -> sql.Identifier:
    return sql.Identifier(*staging_table(statement).split("."))
