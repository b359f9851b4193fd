"""A user's query on the reader's login: one statement, read-only, in a time, and its errors in Postgres's own words.

DECLARE is the first fence: whatever follows it is one query or a syntax error, because the extended protocol takes one
statement and DECLARE nothing but a query. The read-only transaction and the login's few rights are the second and the
third.
"""

import asyncio
import os
import socket
import struct
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from types import MappingProxyType
from typing import Final

import psycopg
from psycopg import errors
from psycopg.abc import PQGen
from psycopg.adapt import AdaptersMap
from psycopg.generators import execute
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGresult
from psycopg.types.string import TextLoader

from service.domain.errors import Invalid, Unavailable
from service.serving.connections import Connection, Pool, is_away, open_pool, said

GRACE_SECONDS: Final = 2.0
"""The server's own timeout counts for each statement; ours, a little later, for all of them together."""

_RECEIVE_BYTES: Final = 128 << 10
_RECEIVED_AT: Final = 128
"""Where Linux's `tcp_info` has `tcpi_bytes_received`."""
_CURSOR: Final = "tidefill_query"
_DECLARE: Final = f"declare {_CURSOR} no scroll cursor for "

# Values are read as the text Postgres prints, whatever their type, and nothing a user can set changes how it prints.
_SESSION: Final[Mapping[str, str]] = MappingProxyType(
    {
        "default_transaction_read_only": "on",
        "search_path": "public,rw_catalog",
        "TimeZone": "UTC",
        "DateStyle": "ISO,YMD",
        "IntervalStyle": "postgres",
        "bytea_output": "hex",
        "extra_float_digits": "1",
        "idle_in_transaction_session_timeout": "60s",
    }
)


def open_reader_pool(url: str, *, size: int = 8, name: str = "reader") -> Pool:
    """Return a pool of the reader's login that opens when it is entered; what a user left in a session is discarded."""
    as_text = AdaptersMap()
    as_text.register_loader(0, TextLoader)
    return open_pool(
        url, name=name, settings=_SESSION, size=size, configure=_read_only, reset=_discard, context=as_text
    )


@asynccontextmanager
async def reading(pool: Pool, sql: str, *, timeout_ms: int) -> AsyncGenerator[Connection]:
    """A read-only transaction in which `sql` was found to be one query and is declared as the cursor `fetch` reads.

    Raises Invalid with Postgres's message and the position in `sql`, or Unavailable.
    """
    assert timeout_ms > 0, timeout_ms
    text = _encoded(_DECLARE + sql)
    with refused_as_said(timeout_ms=timeout_ms, prefix=_DECLARE):
        async with pool.connection() as conn, asyncio.timeout(timeout_ms / 1000 + GRACE_SECONDS), conn.transaction():
            await conn.execute(f"set local statement_timeout = {timeout_ms:d}".encode())
            await one_statement(conn, text)
            yield conn


async def one_statement(conn: Connection, statement: bytes) -> None:
    """Run one statement that gives no rows. Asking for binary is how psycopg is made to use the extended protocol,
    which refuses a second statement.
    """
    await conn.cursor().execute(statement, binary=True)


async def fetch(conn: Connection, count: int, *, bytes_max: int) -> PGresult:
    """Return the next `count` rows of the declared query, with their description even where there are none.

    Raises TooLargeError, and closes the connection, when more than about `bytes_max` bytes come: a single value may
    have a gigabyte, so they are counted while they arrive.
    """
    conn.pgconn.send_query(f"fetch forward {count:d} from {_CURSOR}".encode())
    try:
        *_, result = await conn.wait(_counted(execute(conn.pgconn), conn.pgconn.socket, bytes_max))
    except TooLargeError:
        await conn.close()
        raise
    if result.status != ExecStatus.TUPLES_OK:
        raise errors.error_from_result(result, encoding="utf-8")
    return result


class TooLargeError(Exception):
    """More bytes came than a result may have."""


def _counted(results: PQGen[list[PGresult]], descriptor: int, bytes_max: int) -> PQGen[list[PGresult]]:
    """Pass a generator of psycopg on, and stop it when too much has come from the server."""
    with socket.socket(fileno=os.dup(descriptor)) as connection:
        # libpq reads a long value for as long as more of it is there. A small buffer is empty soon, and it returns.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BYTES)
        before = _received(connection)
        waits_for = next(results)
        while True:
            ready = yield waits_for
            if _received(connection) - before > bytes_max:
                raise TooLargeError
            try:
                waits_for = results.send(ready)
            except StopIteration as over:
                return over.value


def _received(connection: socket.socket) -> int:
    """Return how many bytes have ever come; 0 where the kernel does not count them (a socket in the file system)."""
    if connection.family == socket.AF_UNIX:
        return 0
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _RECEIVED_AT + 8)
    return struct.unpack_from("Q", info, _RECEIVED_AT)[0] if len(info) == _RECEIVED_AT + 8 else 0


@contextmanager
def refused_as_said(*, timeout_ms: int | None = None, prefix: str = "") -> Generator[None]:
    """Turn Postgres's refusal of a user's statement, which we put `prefix` before, into Invalid."""
    try:
        yield
    except TimeoutError as error:
        raise _timed_out(timeout_ms) from error
    except errors.QueryCanceled as error:
        if "statement timeout" in said(error):
            raise _timed_out(timeout_ms) from error
        raise Unavailable(said(error)) from error
    except errors.ProtocolViolation as error:
        raise Invalid("a query cannot have parameters such as $1") from error
    except psycopg.Error as error:
        if is_away(error):
            raise Unavailable(f"the state store did not answer: {said(error)}") from error
        raise Invalid(said(error), position=_position(error, prefix)) from error


def _timed_out(timeout_ms: int | None) -> Invalid:
    after = "" if timeout_ms is None else f" after {timeout_ms} ms"
    return Invalid(f"canceling statement due to statement timeout{after}", pointer="statement_timeout")


def _position(error: psycopg.Error, prefix: str) -> int | None:
    found = error.diag.statement_position
    position = int(found) - len(prefix) if found else 0
    return position if position > 0 else None


def _encoded(text: str) -> bytes:
    if "\0" in text:
        raise Invalid("a statement cannot contain the character NUL")
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise Invalid("a statement must be valid Unicode") from error


async def _read_only(conn: Connection) -> None:
    await conn.set_read_only(True)


async def _discard(conn: Connection) -> None:
    await conn.execute("discard all")
