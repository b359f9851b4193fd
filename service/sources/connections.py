"""One connection for each call, its limits, and what its errors mean to the caller.

An external database is in production use: whatever is asked of it is short, waits for no lock for long, and ends by
itself when the service is gone.
"""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final, LiteralString, cast

import psycopg
from psycopg import errors, sql
from psycopg.conninfo import make_conninfo
from psycopg.rows import TupleRow

from service.domain.errors import Conflict, Invalid, MetaError, Unavailable
from service.ports.sources import Address

Connection = psycopg.AsyncConnection[TupleRow]

STATEMENT_SECONDS: Final = 20
"""What takes longer is given up: a slot that waits for a long transaction, a question about a large table."""
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


@asynccontextmanager
async def connected(at: Address) -> AsyncGenerator[Connection]:
    """Open a connection in autocommit. Raises Unavailable and Invalid in the server's words."""
    try:
        connection = await Connection.connect(
            make_conninfo(at.conninfo, options=_OPTIONS), autocommit=True, prepare_threshold=None
        )
    except (psycopg.Error, UnicodeError) as error:
        raise _unreachable(at, error) from None
    async with connection:
        try:
            yield connection
        except psycopg.Error as error:
            raise _meant(at, error) from None


def identifier(*names: str) -> sql.Identifier:
    """Return a name, quoted."""
    return sql.Identifier(*names)


def trusted(text: str) -> sql.SQL:
    """Return SQL that we wrote ourselves."""
    return sql.SQL(cast("LiteralString", text))


def _unreachable(at: Address, error: Exception) -> MetaError:
    # Of several addresses that were tried the last is as good as any; the words never hold the password.
    said = str(error).strip().splitlines()[-1].strip() if str(error).strip() else type(error).__name__
    message = f'source "{at.name}": {at.place} cannot be reached: {said}'
    return Invalid(message) if any(words in said for words in _REFUSED) else Unavailable(message)


def _meant(at: Address, error: psycopg.Error) -> MetaError:
    said = error.diag.message_primary or str(error).strip() or type(error).__name__
    if error.diag.message_detail:
        said = f"{said} ({error.diag.message_detail})"
    message = f'source "{at.name}": {said}'
    if isinstance(error, errors.DuplicateObject):
        return Conflict(message)
    if error.sqlstate is None or error.sqlstate.startswith(_AWAY):
        return Unavailable(message)
    return Invalid(message)
