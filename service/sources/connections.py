"""One connection for each call, its limits, and what its errors mean to the caller.

An external database is in production use: whatever is asked of it is short, waits for no lock for long, and ends by
itself when the service is gone.
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
from service.reach import UnresolvedError, addresses
from service.telemetry.log import logger

log = logger("sources")

SESSION_SECONDS: Final = 120
"""How long one call may take altogether, whatever the server does."""
STATEMENT_SECONDS: Final = 20
"""What takes longer is given up: a slot that waits for a long transaction, a question about a large table."""
ANSWER_SECONDS: Final = STATEMENT_SECONDS + 5
"""How long an answer may take: a little more than the server allows itself."""
ANSWER_BYTES_MAX: Final = 128 << 20
"""How much a server may send in one answer."""
_OPTIONS: Final = (
    f"-c statement_timeout={STATEMENT_SECONDS}s -c lock_timeout=3s -c idle_in_transaction_session_timeout=30s "
    # What a policy hides is refused, not left out.
    "-c row_security=off "
    "-c search_path=pg_catalog -c TimeZone=UTC -c DateStyle=ISO -c IntervalStyle=postgres -c extra_float_digits=1"
)
_AWAY: Final = ("08", "40", "53", "57", "58", "55P03", "55006")
"""SQLSTATEs, by their beginning, after which the same call may succeed later."""
_REFUSED: Final = ("authentication failed", "does not exist", "pg_hba.conf", "permission denied", "is not permitted")
"""What libpq says, without a SQLSTATE, where the server answered and will not let the login in."""

_HINT: Final = "Is the server running"


Answer = TypeVar("Answer")


class Connection(psycopg.AsyncConnection[TupleRow]):
    """One that waits so long, and takes so much, for each answer: a server's own limits are its own to keep."""

    async def wait(self, gen: PQGen[Answer], interval: float = 0.1, timeout: float | None = None) -> Answer:  # noqa: ASYNC109 - psycopg's
        """See psycopg. Raises OperationalError where no answer has come in time."""
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
    """Open a connection in autocommit. Raises Unavailable and Invalid in the server's words."""
    connection = await _connection(at, await resolved(at))
    try:
        # A server that sends nothing would hold the call for ever: its own timeouts are its own.
        async with connection, asyncio.timeout(SESSION_SECONDS):
            try:
                yield connection
            except psycopg.Error as error:
                raise _meant(at, error) from None
    except TimeoutError:
        message = f"{at.label}: {at.place} did not answer within {SESSION_SECONDS} s"
        raise Unavailable(message) from None


async def resolved(at: Address) -> str:
    """Return the connection string with the addresses that may be connected to. Raises Invalid, Unreachable."""
    parts = conninfo_to_dict(at.conninfo)
    hosts, ports = str(parts["host"]).split(","), str(parts.get("port") or 5432).split(",")
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            found = await addresses(hosts, int(ports[0]), at.hosts)
    except (UnresolvedError, TimeoutError) as error:
        raise _hidden(at, "no name server knows the host", error, addresses=1) from None
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
    """Return a name, quoted."""
    return sql.Identifier(*names)


def trusted(text: str) -> sql.SQL:
    """Return SQL that we wrote ourselves."""
    return sql.SQL(cast("LiteralString", text))


def _unreachable(at: Address, error: Exception, conninfo: str, tried: int) -> MetaError:
    # Of several addresses that were tried the last is as good as any; the words never hold the password.
    lines = [line.strip() for line in str(error).splitlines() if line.strip() and not line.strip().startswith(_HINT)]
    said = lines[-1] if lines else type(error).__name__
    message = f"{at.label}: {at.place} cannot be reached: {words(said)}"
    # A certificate's file is one of this machine, and no server spoke.
    if any(words in said for words in _REFUSED) and "certificate" not in said:
        return Invalid(message)
    parts = conninfo_to_dict(conninfo)
    places = zip(str(parts["host"]).split(","), str(parts["hostaddr"]).split(","), strict=True)
    if all(at.hosts.lists(host, address) for host, address in places):
        return Unavailable(message)
    return _hidden(at, said, error, addresses=tried)


def _hidden(at: Address, said: str, error: Exception, *, addresses: int) -> Unreachable:
    """Return the one error for everything that is no Postgres, so that nobody scans ports or names with it."""
    log.info("source.unreachable", source=at.name, place=at.place, reason=words(said), error=type(error).__name__)
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
    """Return how much a connection has brought so far; 0 where the system does not say."""
    try:
        with socket.fromfd(descriptor, socket.AF_INET, socket.SOCK_STREAM) as one:
            return bytes_received(one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_BYTES))
    except (AttributeError, OSError):
        return 0
