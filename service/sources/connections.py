"""Open a connection for each call, limit it, and translate its errors.

An external database is in production use. Every statement is therefore short, does not wait long for locks, and ends by
itself if the service dies.
"""

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from typing import Final, LiteralString, TypeVar, cast

import psycopg
from psycopg import errors, sql
from psycopg.abc import PQGen
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import TupleRow

from service.domain.errors import Conflict, Invalid, MetaError, Unavailable, Unreachable
from service.domain.reach import SETTING
from service.domain.source import CONNECT_SECONDS
from service.ports.sources import Address
from service.protocol.answering import TCP_INFO_BYTES, UnansweredError, bounded, bytes_received, words
from service.protocol.cdc import timeouts_postgres
from service.reach import UnresolvedError, addresses
from service.telemetry.log import logger

log = logger("sources")

SESSION_SECONDS: Final = 120
"""The longest total time of one call, whatever the server does."""
STATEMENT_SECONDS: Final = 20
"""The statement timeout. It cancels a slot creation that waits for a long transaction, or a query of a large table."""
ANSWER_SECONDS: Final = STATEMENT_SECONDS + 5
"""The longest wait for an answer: a little longer than the server's statement timeout."""
ANSWER_BYTES_MAX: Final = 128 << 20
"""The largest answer of a server."""
_TIMEOUTS: Final = timeouts_postgres(statement=f"{STATEMENT_SECONDS}s", lock="3s", idle_in_transaction="30s")
_OPTIONS: Final = (
    # Row level security causes an error instead of hiding rows.
    "-c row_security=off "
    "-c search_path=pg_catalog -c TimeZone=UTC -c DateStyle=ISO -c IntervalStyle=postgres -c extra_float_digits=1"
)
_AWAY: Final = ("08", "40", "53", "57", "58", "55P03", "55006")
"""Prefixes of the SQLSTATEs after which the same call may succeed later."""
_REFUSED: Final = ("authentication failed", "does not exist", "pg_hba.conf", "permission denied", "is not permitted")
"""Texts in libpq's messages, which have no SQLSTATE, if the server refuses the login."""

_HINT: Final = "Is the server running"


Answer = TypeVar("Answer")


class Connection(psycopg.AsyncConnection[TupleRow]):
    """A connection with limits on the time and size of each answer, because a server may ignore its own limits."""

    async def wait(self, gen: PQGen[Answer], interval: float = 0.1, timeout: float | None = None) -> Answer:  # noqa: ASYNC109 - psycopg's
        """Wait as psycopg does. Raises OperationalError if the answer exceeds its time or size."""
        within = bounded(
            gen,
            clock=asyncio.get_running_loop().time,
            received=partial(_received, self.pgconn.socket),
            seconds=ANSWER_SECONDS,
            most_bytes=ANSWER_BYTES_MAX,
        )
        try:
            return await super().wait(within, interval, timeout)
        except UnansweredError as error:
            self.pgconn.finish()
            raise psycopg.OperationalError(str(error)) from None


@asynccontextmanager
async def connected(at: Address) -> AsyncGenerator[Connection]:
    """Open a connection in autocommit mode. Raises Unavailable, Invalid and Conflict with the server's message."""
    connection = await _connection(at, await resolved(at))
    try:
        # A server that sends nothing would block the call for ever, because it may ignore its own timeouts.
        async with connection, asyncio.timeout(SESSION_SECONDS):
            try:
                await connection.execute(trusted(_TIMEOUTS))
                yield connection
            except psycopg.Error as error:
                raise _meant(at, error) from None
    except TimeoutError:
        message = f"{at.label}: {at.place} did not answer within {SESSION_SECONDS} s"
        raise Unavailable(message) from None


async def resolved(at: Address) -> str:
    """Return the connection string with the resolved, allowed addresses. Raises Invalid, Unreachable."""
    parts = conninfo_to_dict(at.conninfo)
    hosts, ports = str(parts["host"]).split(","), str(parts.get("port") or 5432).split(",")
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            found = await addresses(hosts, int(ports[0]), at.hosts)
    except (UnresolvedError, TimeoutError) as error:
        said = "no name server knows the host"
        if at.hosts.told:
            raise Unavailable(f"{at.label}: {at.place} cannot be reached: {said}") from None
        raise _hidden(at, said, error, addresses=1) from None
    except Invalid as error:
        raise Invalid(f"{at.label}: {error.message}", pointer="hostname") from None
    return make_conninfo(
        at.conninfo, host=",".join(host for host, _ in found), hostaddr=",".join(address for _, address in found)
    )


async def _connection(at: Address, conninfo: str) -> Connection:
    tried = str(conninfo_to_dict(conninfo)["hostaddr"]).count(",") + 1
    try:
        async with asyncio.timeout(CONNECT_SECONDS * tried):
            return await Connection.connect(
                make_conninfo(conninfo, options=_OPTIONS), autocommit=True, prepare_threshold=None
            )
    except (psycopg.Error, UnicodeError, TimeoutError) as error:
        raise _unreachable(at, error, conninfo, tried) from None


def identifier(*names: str) -> sql.Identifier:
    """Return a quoted name."""
    return sql.Identifier(*names)


def trusted(text: str) -> sql.SQL:
    """Mark a text as trusted SQL. It must be generated by tidefill."""
    return sql.SQL(cast("LiteralString", text))


def _unreachable(at: Address, error: Exception, conninfo: str, tried: int) -> MetaError:
    # libpq has one line per tried address, of which the last is used. They never contain the password.
    lines = [line.strip() for line in str(error).splitlines() if line.strip() and not line.strip().startswith(_HINT)]
    said = lines[-1] if lines else type(error).__name__
    message = f"{at.label}: {at.place} cannot be reached: {words(said)}"
    # Errors about a certificate concern a local file and do not come from the server.
    if any(words in said for words in _REFUSED) and "certificate" not in said:
        return Invalid(message)
    parts = conninfo_to_dict(conninfo)
    places = zip(str(parts["host"]).split(","), str(parts["hostaddr"]).split(","), strict=True)
    if all(at.hosts.tells(host, address) for host, address in places):
        return Unavailable(message)
    return _hidden(at, said, error, addresses=tried)


def _hidden(at: Address, said: str, error: Exception, *, addresses: int) -> Unreachable:
    """Return one error for every host that does not answer as Postgres, so that users cannot scan ports or names."""
    # Hosts are of users. Only the words after the last colon name none.
    reason = said.rpartition(": ")[2]
    log.info("source.unreachable", source=at.name, reason=words(reason), error=type(error).__name__)
    log.debug("source.unreachable", source=at.name, place=at.place, reason=words(said))
    message = (
        f"{at.label}: {at.place} cannot be reached as a Postgres server; the log of the service says why "
        f"(and this message, for hosts that {SETTING} lists)"
    )
    return Unreachable(message, within_seconds=CONNECT_SECONDS * addresses + 1.0)


def _meant(at: Address, error: psycopg.Error) -> MetaError:
    said = error.diag.message_primary or str(error).strip() or type(error).__name__
    if error.diag.message_detail:
        said = f"{words(said)} ({error.diag.message_detail})"
    message = f"{at.label}: {words(said)}"
    if isinstance(error, errors.DuplicateObject):
        return Conflict(message)
    if error.sqlstate is None or error.sqlstate.startswith(_AWAY):
        return Unavailable(message)
    return Invalid(message)


def _received(descriptor: int) -> int:
    """Return the bytes received so far, or 0 if the system does not count them."""
    try:
        with socket.fromfd(descriptor, socket.AF_INET, socket.SOCK_STREAM) as one:
            return bytes_received(one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_BYTES))
    except (AttributeError, OSError):
        return 0
