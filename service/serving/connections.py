"""Open connection pools of the state store, and translate its errors.

Every connection is in autocommit mode, so the code begins each transaction explicitly. Server-side timeouts end the
transactions of a frozen service, so its successor never waits without bound.
"""

from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Final, LiteralString, cast
from urllib.parse import quote, urlencode

import psycopg
from psycopg import errors, sql
from psycopg.abc import AdaptContext
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import TupleRow
from psycopg_pool import AsyncConnectionPool

from service.domain.cutting import KEPT_CHARACTERS
from service.domain.errors import Conflict, Exhausted, Invalid, Unavailable
from service.protocol.answering import is_crowded

Connection = psycopg.AsyncConnection[TupleRow]
Pool = AsyncConnectionPool[Connection]

CONNECT_SECONDS: Final = 10
"""The timeout of a connection attempt and of the wait in the pool's queue. After it the state store counts as
unavailable.
"""

OWNER_SETTINGS: Final = MappingProxyType(
    {
        # A leader that froze between its last statement and COMMIT still locks the row that its successor must change.
        # This timeout ends its session.
        "idle_in_transaction_session_timeout": "30s",
        # DDL that waits for a reader blocks every later reader, so it fails early and is retried.
        "lock_timeout": "5s",
        "search_path": "pg_catalog",
        "TimeZone": "UTC",
    }
)

_AWAY: Final = ("08", "40", "53", "57", "58", "55P03")
"""Prefixes of the SQLSTATEs of a server that is unavailable, busy, full or shutting down. The same call may succeed
later.
"""
_TOO_MUCH: Final = "54"
"""The SQLSTATE class for Postgres's own limits, such as 1600 columns."""
_EXHAUSTED: Final = ("53100", "53200", "57014")
"""SQLSTATEs in `_AWAY` for exhausted resources: disk full, out of memory, and statement timeout or cancel."""
_TEMPORARY_FILES_LIMIT: Final = "53400"
"""A SQLSTATE that matches `_AWAY` but is caused by the statement itself."""
_TAKEN: Final = (
    errors.DuplicateTable,
    errors.DuplicateObject,
    errors.UniqueViolation,
    errors.DependentObjectsStillExist,
)


def open_pool(
    url: str,
    *,
    name: str,
    settings: Mapping[str, str] = OWNER_SETTINGS,
    size: int = 8,
    configure: Callable[[Connection], Awaitable[None]] | None = None,
    reset: Callable[[Connection], Awaitable[None]] | None = None,
    context: AdaptContext | None = None,
) -> Pool:
    """Return a pool that opens when it is entered. Entering does not wait for the server, but the first caller does."""
    return AsyncConnectionPool(
        with_settings(url, settings, application_name=f"tidefill-{name}"),
        connection_class=Connection,
        # Automatic prepared statements are off, because the reset of a user's session deallocates them.
        kwargs={"autocommit": True, "prepare_threshold": None, "context": context},
        min_size=0,
        max_size=size,
        open=False,
        name=name,
        timeout=CONNECT_SECONDS,
        configure=configure,
        reset=reset,
        check=AsyncConnectionPool.check_connection,
    )


def with_settings(url: str, settings: Mapping[str, str], *, application_name: str) -> str:
    """Return connection parameters that start every session with `settings`."""
    given = _parts(url).get("options")
    flags = [f"-c {key}={value.replace(' ', chr(92) + ' ')}" for key, value in settings.items()]
    return make_conninfo(
        url,
        options=" ".join([given, *flags] if given else flags),
        application_name=application_name,
        connect_timeout=CONNECT_SECONDS,
        keepalives_idle=30,
        tcp_user_timeout=30_000,
    )


def url_as(url: str, user: str, password: str) -> str:
    """Return `url` (a URI or key=value text) as a URI with another login."""
    parts = _parts(url)
    database = quote(parts.pop("dbname", ""), safe="")
    # Hosts are URI parameters, because they may be lists or socket directories.
    rest = {key: value for key, value in parts.items() if key not in {"user", "password"}}
    return (
        f"postgresql://{quote(user, safe='')}:{quote(password, safe='')}@/{database}?{urlencode(rest, quote_via=quote)}"
    )


def _parts(url: str) -> dict[str, str]:
    try:
        return {key: str(value) for key, value in conninfo_to_dict(url).items() if value is not None}
    except psycopg.ProgrammingError:
        # The message of libpq would quote the URL with its password.
        raise Invalid("the state store's URL cannot be read: postgresql://user:password@host:port/database") from None


@contextmanager
def translated() -> Generator[None]:
    """Translate Postgres's errors into domain errors. Errors that indicate a bug pass unchanged.

    Raises Conflict, Exhausted, Unavailable, Invalid.
    """
    try:
        yield
    except _TAKEN as error:
        raise Conflict(said(error)) from error
    except psycopg.Error as error:
        if is_away(error):
            kind = Exhausted if error.sqlstate in _EXHAUSTED else Unavailable
            raise kind(f"the state store did not answer: {said(error)}") from error
        if (error.sqlstate or "").startswith(_TOO_MUCH):
            raise Invalid(said(error)) from error
        raise


def is_away(error: psycopg.Error) -> bool:
    """Whether the server could not answer, as opposed to a refusal. A pool without a free connection counts as well."""
    if error.sqlstate is None:
        return isinstance(error, errors.OperationalError)
    busy = error.sqlstate.startswith(_AWAY) and error.sqlstate != _TEMPORARY_FILES_LIMIT
    return busy or is_crowded(error.sqlstate, str(error))


def is_answered(error: Exception) -> bool:
    """Whether the server itself returned this error, translated or not. Then another statement may succeed."""
    cause = error if isinstance(error, psycopg.Error) else error.__cause__
    return isinstance(cause, psycopg.Error) and cause.sqlstate is not None


def is_locked(error: psycopg.Error) -> bool:
    """Whether a statement exceeded its lock timeout."""
    return isinstance(error, errors.LockNotAvailable)


def said(error: psycopg.Error) -> str:
    """Return the message of a Postgres error, with its detail if there is one, each cut: they may quote long values."""
    message, detail = error.diag.message_primary or str(error), error.diag.message_detail
    told = message[:KEPT_CHARACTERS]
    return f"{told} ({detail[:KEPT_CHARACTERS]})" if detail else told


def trusted(text: str) -> sql.SQL:
    """Mark a text as trusted SQL. It must be generated by tidefill, with every part from a user quoted."""
    return sql.SQL(cast("LiteralString", text))
