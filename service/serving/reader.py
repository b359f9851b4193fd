"""Run a user's SELECT and return its rows as JSON values. Rows and bytes are bounded (I8), also while fetching.

Next: `service.serving.user_query`, which confines the statement.
"""

import asyncio
import sys
from copy import copy
from dataclasses import dataclass
from typing import Any, Final

from psycopg import abc, adapt
from psycopg.pq.abc import PGresult

from service.domain.errors import TooLarge
from service.domain.quotas import Bound
from service.domain.uploading import Kept, Spool
from service.ports.state_store import QueryResult
from service.serving.connections import CONNECT_SECONDS, Connection, Pool
from service.serving.json_values import Convert, converter, is_array
from service.serving.lingering import Places
from service.serving.user_query import TooLargeError, explained, fetch, reading
from service.turns import Turns

VALUE_BYTES: Final = 24
"""Counted for each value in addition to its text: the memory of a NULL in a result or of a number in a row."""
LIST_BYTES: Final = 10 * VALUE_BYTES
"""Counted for each list in an array. It takes less, but everybody waits while the garbage collector visits it."""
FETCH_ROWS: Final = 1000
_FETCH_BYTES: Final = 4 << 20
"""The approximate size of a portion of rows, once the width of the first row is known."""
_SLICE_VALUES: Final = 5_000
"""The number of values that are converted by one call, in a few milliseconds."""
_LARGE_BYTES: Final = 1 << 20
"""The size above which a result counts as large. Large results may have some bytes together while they are read."""
_LARGE_RESULTS: Final = 4
"""The large results have the bytes of so many of the largest size. Three callers kept three places by one slow query
each.
"""

Row = tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class ReaderLimits:
    """The limits of one result and of concurrent queries."""

    bytes_max: int = 64 << 20
    queries_max: int = 8
    waiting_max: int = 100
    wait_seconds: float = CONNECT_SECONDS


_LIMITS: Final = ReaderLimits()


class PostgresReader:
    """`Reader` over pools of the reader's login. `catalog` is the pool of a separate meta-store database."""

    def __init__(self, pool: Pool, catalog: Pool | None = None, limits: ReaderLimits = _LIMITS) -> None:
        self._pool, self._catalog, self._limits = pool, catalog or pool, limits
        turns = Turns(
            "queries (TIDEFILL_QUERIES_MAX)",
            running=limits.queries_max,
            waiting=limits.waiting_max,
            seconds=limits.wait_seconds,
        )
        self.places = Places(turns)
        self.caller = ""
        """Whose share of the places its calls take: that of the service itself, without a caller."""
        name = f"{_LARGE_RESULTS} * TIDEFILL_RESULT_BYTES_MAX"
        self.large = Spool(_LARGE_RESULTS * limits.bytes_max, name, "large results that are being read")
        """The bytes of large results, by caller."""
        self._converting = asyncio.Lock()
        """Held for each portion of a large result: a thread that converts takes the interpreter from the event loop."""

    def of(self, caller: str) -> "PostgresReader":
        """Return a reader with the same places, which takes the caller's share of them."""
        share = copy(self)
        share.caller = caller
        return share

    async def query(
        self,
        sql: str,
        *,
        row_limit: int,
        timeout_ms: int,
        catalog: bool = False,
        quota: Bound | None = None,
    ) -> QueryResult:
        pool = self._catalog if catalog else self._pool
        own = Bound("TIDEFILL_RESULT_BYTES_MAX", self._limits.bytes_max)
        bound = own if quota is None or own.value <= quota.value else quota
        async with (
            self.places.place(pool, self.caller) as left,
            reading(pool, sql, timeout_ms=timeout_ms, left=left) as conn,
        ):
            with Kept(self.large, self.caller) as kept:
                rows, result = await self._rows(conn, row_limit + 1, bound, kept)
            columns = await _columns(conn, result)
        return QueryResult(columns, tuple(rows[:row_limit]), truncated=len(rows) > row_limit)

    async def describe(self, sql: str, *, timeout_ms: int) -> tuple[tuple[str, str], ...]:
        async with (
            self.places.place(self._pool, self.caller) as left,
            reading(self._pool, sql, timeout_ms=timeout_ms, left=left) as conn,
        ):
            return await _columns(conn, await fetch(conn, 0, bytes_max=_LARGE_BYTES))

    async def explain(self, sql: str, *, timeout_ms: int, catalog: bool = False) -> tuple[str, ...]:
        pool = self._catalog if catalog else self._pool
        async with self.places.place(pool, self.caller) as left:
            return await explained(pool, sql, timeout_ms=timeout_ms, left=left)

    async def _rows(
        self, conn: Connection, wanted: int, bound: Bound, kept: Kept
    ) -> tuple[list[tuple[Any, ...]], PGresult]:
        """Return at most `wanted` rows and a result that describes them. Raises TooLarge if they exceed `bound`, and
        what `Spool.check` raises if they are large.
        """
        rows: list[tuple[Any, ...]] = []
        size, large, count = 0, False, min(wanted, 1)
        while True:
            try:
                # Twice the remaining size, because bytes that wait in the socket may be counted twice.
                result = await fetch(conn, count, bytes_max=2 * (bound.value - size) + _LARGE_BYTES)
            except TooLargeError:
                raise _too_large(bound) from None
            found = None if large else await _converted(conn, result, min(_LARGE_BYTES, bound.value) - size)
            if found is None:
                large = True
                async with self._converting:
                    found = await _converted(conn, result, bound.value - size)
            if found is None:
                raise _too_large(bound)
            portion, more = found
            rows += portion
            size += more
            if large:
                kept.take(size - kept.size)
            if result.ntuples < count or len(rows) >= wanted:
                return rows, result
            count = _next_count(wanted - len(rows), width=size // len(rows), values=result.nfields)


def _too_large(bound: Bound) -> TooLarge:
    return TooLarge(
        f"the result is larger than {bound.value} bytes ({bound.name}), of which each value"
        f" takes {VALUE_BYTES} besides its text, and each list in an array {LIST_BYTES}: select fewer or narrower rows",
        limited_by=bound.name,
    )


def _next_count(left: int, *, width: int, values: int) -> int:
    """Return the number of rows of the next portion."""
    return max(min(left, FETCH_ROWS, _FETCH_BYTES // max(width, 1), 4 * _SLICE_VALUES // max(values, 1)), 1)


async def _converted(conn: Connection, result: PGresult, most: int) -> tuple[list[tuple[Any, ...]], int] | None:
    """Return the rows of a result as JSON values, and their size, or None if it is more than `most`."""
    if result.nfields == 0:
        return [()] * result.ntuples, result.ntuples * VALUE_BYTES
    transformer: abc.Transformer = adapt.Transformer(conn)
    transformer.set_pgresult(result)
    return await asyncio.to_thread(_in_slices, transformer, result, most)


def _in_slices(transformer: abc.Transformer, result: PGresult, most: int) -> tuple[list[tuple[Any, ...]], int] | None:
    """Convert rows in small slices, because psycopg blocks the interpreter during each call."""
    kinds = [result.ftype(number) for number in range(result.nfields)]
    converts, arrays = [converter(kind) for kind in kinds], [is_array(kind) for kind in kinds]
    rows: list[tuple[Any, ...]] = []
    size, step = 0, max(_SLICE_VALUES // len(converts), 1)
    for first in range(0, result.ntuples, step):
        texts: list[Row] = transformer.load_rows(first, min(first + step, result.ntuples), tuple)
        size += sum(_size(value, array=array) for row in texts for value, array in zip(row, arrays, strict=True))
        if size > most:
            return None
        rows += [_json(row, converts) for row in texts]
    return rows, size


def _size(value: str | None, *, array: bool) -> int:
    """Return about how many bytes a value takes in memory. Each element of an array is a value, and each `{` a list."""
    if value is None:
        return VALUE_BYTES
    inner = VALUE_BYTES * value.count(",") + LIST_BYTES * value.count("{") if array else 0
    return VALUE_BYTES + inner + (len(value) if value.isascii() else sys.getsizeof(value))


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
