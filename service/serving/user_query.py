"""Run a user's query under the reader's login: one read-only statement with a timeout. Errors have Postgres's message.

Three barriers confine the text. The first is DECLARE: the text after it is one query or a syntax error. The extended
protocol accepts one statement, and DECLARE accepts only a query. The second is the read-only transaction, and the third
are the few privileges of the login.
"""

import asyncio
import os
import socket
import struct
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from types import MappingProxyType
from typing import Final

import psycopg
from psycopg import errors
from psycopg.abc import PQGen
from psycopg.adapt import AdaptersMap
from psycopg.generators import execute
from psycopg.pq import ExecStatus, TransactionStatus
from psycopg.pq.abc import PGresult
from psycopg.types.string import TextLoader

from service.domain.errors import InLake, Invalid, Unavailable
from service.serving.connections import Connection, Pool, is_away, open_pool, said
from service.serving.layout import IN_LAKE

GRACE_SECONDS: Final = 2.0
"""The server's timeout applies to each statement. The client's timeout is later by this and covers all of them."""

_RECEIVE_BYTES: Final = 128 << 10
_RECEIVED_AT: Final = 128
"""The offset of `tcpi_bytes_received` in Linux's `tcp_info`."""
_ANSWER_BYTES_MAX: Final = 4 << 20
_CURSOR: Final = "tidefill_query"
_DECLARE: Final = f"declare {_CURSOR} no scroll cursor for "
_EXPLAIN: Final = f"explain {_DECLARE}"

# Values of all types are read as Postgres's text. These settings fix its format, and users cannot change them.
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


Left = Callable[[int], object]
"""Learns the process id of a session whose query was given up, and may still run."""


def open_reader_pool(url: str, *, size: int = 8, name: str = "reader") -> Pool:
    """Return a pool of the reader's login that opens when it is entered. Session state is discarded after each use."""
    as_text = AdaptersMap()
    as_text.register_loader(0, TextLoader)
    return open_pool(
        url, name=name, settings=_SESSION, size=size, configure=_read_only, reset=_discard, context=as_text
    )


@asynccontextmanager
async def reading(pool: Pool, sql: str, *, timeout_ms: int, left: Left) -> AsyncGenerator[Connection]:
    """Open a read-only transaction and declare `sql` as the cursor of `fetch`. This checks that it is one query.

    Raises Invalid with Postgres's message and the position in `sql`, or Unavailable.
    """
    async with _read_only_transaction(pool, _DECLARE, timeout_ms, left) as conn:
        await one_statement(conn, _encoded(_DECLARE + sql))
        yield conn


async def explained(pool: Pool, sql: str, *, timeout_ms: int, left: Left) -> tuple[str, ...]:
    """Return the lines of the plan of a query, which is confined as in `reading`. Raises as it does."""
    async with _read_only_transaction(pool, _EXPLAIN, timeout_ms, left) as conn:
        plan = await run(conn, _encoded(_EXPLAIN + sql), ExecStatus.TUPLES_OK)
        return tuple((plan.get_value(row, 0) or b"").decode() for row in range(plan.ntuples))


@asynccontextmanager
async def _read_only_transaction(pool: Pool, prefix: str, timeout_ms: int, left: Left) -> AsyncGenerator[Connection]:
    """Open a transaction with a timeout, in which a statement that begins with `prefix` runs."""
    assert timeout_ms > 0, timeout_ms
    with refused_as_said(timeout_ms=timeout_ms, prefix=prefix):
        async with pool.connection() as conn:
            session = conn.info.backend_pid
            try:
                async with asyncio.timeout(timeout_ms / 1000 + GRACE_SECONDS), conn.transaction():
                    await conn.execute(f"set local statement_timeout = {timeout_ms:d}".encode())
                    yield conn
            except BaseException:
                if conn.closed or conn.info.transaction_status is TransactionStatus.ACTIVE:
                    left(session)
                raise


async def one_statement(conn: Connection, statement: bytes) -> None:
    """Run one statement without a result. Raises as `run` does."""
    await run(conn, statement, ExecStatus.COMMAND_OK)


async def run(conn: Connection, statement: bytes, status: ExecStatus) -> PGresult:
    """Run one statement whose result has a `status` and is short. The extended protocol refuses a second statement.

    Raises psycopg.Error. For an error that is not short, because it quotes a value of up to a gigabyte, it closes the
    connection and raises Invalid.
    """
    # With parameters, even none, libpq uses the extended protocol.
    conn.pgconn.send_query_params(statement, None)
    try:
        *_, result = await conn.wait(_counted(execute(conn.pgconn), conn.pgconn.socket, _ANSWER_BYTES_MAX))
    except TooLargeError:
        await conn.close()
        raise Invalid(f"the answer or the error of the statement has more than {_ANSWER_BYTES_MAX} bytes") from None
    if result.status != status:
        raise errors.error_from_result(result, encoding="utf-8")
    return result


async def fetch(conn: Connection, count: int, *, bytes_max: int) -> PGresult:
    """Return the next `count` rows of the declared query, with their description even if there are none.

    If more than about `bytes_max` bytes arrive, close the connection and raise TooLargeError. Bytes are counted while
    they arrive, because a single value may have a gigabyte.
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
    """The result has more bytes than allowed."""


def _counted(results: PQGen[list[PGresult]], descriptor: int, bytes_max: int) -> PQGen[list[PGresult]]:
    """Run a psycopg generator, and raise TooLargeError once too many bytes have arrived."""
    with socket.socket(fileno=os.dup(descriptor)) as connection:
        # libpq reads a long value while data is available. A small buffer empties soon, so that libpq returns.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BYTES)
        before = _received(connection)
        waits_for = next(results)
        while True:
            ready = yield waits_for
            _check(connection, before + bytes_max)
            try:
                waits_for = results.send(ready)
            except StopIteration as over:
                # libpq may have read all of it at once, if the server sent as fast as it read.
                _check(connection, before + bytes_max)
                return over.value


def _check(connection: socket.socket, bytes_max: int) -> None:
    if _received(connection) > bytes_max:
        raise TooLargeError


def _received(connection: socket.socket) -> int:
    """Return the bytes received so far, or 0 if the kernel does not count them (Unix sockets)."""
    if connection.family == socket.AF_UNIX:
        return 0
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _RECEIVED_AT + 8)
    return struct.unpack_from("Q", info, _RECEIVED_AT)[0] if len(info) == _RECEIVED_AT + 8 else 0


@contextmanager
def refused_as_said(*, timeout_ms: int | None = None, prefix: str = "") -> Generator[None]:
    """Translate errors of a user's statement. `prefix` precedes it in the SQL and is subtracted from the position.

    Raises Invalid for a refusal or a timeout, and Unavailable if the server could not answer.
    """
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
        kind = InLake if error.sqlstate == IN_LAKE else Invalid
        raise kind(said(error), position=_position(error, prefix)) from error


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
