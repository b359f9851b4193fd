"""A user's SELECT: its rows as JSON values, capped in number and in size (I8).

Next: `user_query.py` for what keeps a user inside.
"""

from typing import Any, Final

from psycopg.pq.abc import PGresult

from service.domain.errors import Invalid
from service.ports.state_store import QueryResult
from service.serving.connections import Connection, Pool
from service.serving.json_values import Convert, converter
from service.serving.user_query import fetch, reading

RESULT_CHARACTERS_MAX: Final = 64 << 20
"""An answer is one JSON document in memory, so its size is bounded too, not only its rows."""
FETCH_ROWS: Final = 1000
_FETCH_CHARACTERS: Final = 4 << 20
"""Rows are asked for in portions of about this size, so that wide rows are noticed before they fill the memory."""

Row = tuple[str | None, ...]


class PostgresReader:
    """`Reader` over pools of the reader's login; `catalog` is the meta store's where that is another database."""

    def __init__(self, pool: Pool, catalog: Pool | None = None) -> None:
        self._pool = pool
        self._catalog = catalog or pool

    async def query(self, sql: str, *, row_limit: int, timeout_ms: int, catalog: bool = False) -> QueryResult:
        pool = self._catalog if catalog else self._pool
        async with reading(pool, sql, timeout_ms=timeout_ms) as conn:
            rows, result = await _rows(conn, row_limit + 1)
            columns = await _columns(conn, result)
        converts = [converter(result.ftype(number)) for number in range(result.nfields)]
        shown = tuple(_json(row, converts) for row in rows[:row_limit])
        return QueryResult(columns, shown, truncated=len(rows) > row_limit)

    async def describe(self, sql: str, *, timeout_ms: int) -> tuple[tuple[str, str], ...]:
        async with reading(self._pool, sql, timeout_ms=timeout_ms) as conn:
            cursor = await fetch(conn, 0)
            assert cursor.pgresult is not None
            return await _columns(conn, cursor.pgresult)


async def _rows(conn: Connection, wanted: int) -> tuple[list[Row], PGresult]:
    """Return at most `wanted` rows and a result that describes them. Raises Invalid where they are too large."""
    rows: list[Row] = []
    characters = 0
    while True:
        count = _next_count(wanted - len(rows), len(rows), characters)
        cursor = await fetch(conn, count)
        portion = await cursor.fetchall()
        rows += portion
        characters += sum(len(value) for row in portion for value in row if value is not None)
        if characters > RESULT_CHARACTERS_MAX:
            raise Invalid(f"the result is larger than {RESULT_CHARACTERS_MAX >> 20} MiB: select fewer or narrower rows")
        if len(portion) < count or len(rows) >= wanted:
            assert cursor.pgresult is not None
            return rows, cursor.pgresult


def _next_count(left: int, read: int, characters: int) -> int:
    """How many rows to ask for next: few until their width is known."""
    if read == 0:
        return min(left, 10)
    width = max(characters // read, 1)
    return max(min(left, FETCH_ROWS, _FETCH_CHARACTERS // width), 1)


async def _columns(conn: Connection, result: PGresult) -> tuple[tuple[str, str], ...]:
    """Return (name, type name) of each column."""
    if result.nfields == 0:
        return ()
    shapes = [(result.ftype(number), result.fmod(number)) for number in range(result.nfields)]
    query = ", ".join(f"pg_catalog.format_type({kind:d}, {modifier:d})" for kind, modifier in shapes)
    kinds = await (await conn.execute(f"select {query}".encode())).fetchone()
    assert kinds is not None
    return tuple(((result.fname(number) or b"").decode(), str(kind)) for number, kind in enumerate(kinds))


def _json(row: Row, converts: list[Convert]) -> tuple[Any, ...]:
    return tuple(None if value is None else convert(value) for value, convert in zip(row, converts, strict=True))
