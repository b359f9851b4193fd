"""Open connections to the meta store, and translate their errors."""

from collections.abc import Generator
from contextlib import contextmanager
from select import POLLIN, poll
from typing import Final

import psycopg
from psycopg.pq import ConnStatus
from sqlalchemy import PoolProxiedConnection, event
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, DisconnectionError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from service.domain.errors import Deadlocked, Invalid, Unavailable
from service.protocol.answering import is_crowded

POOL_SIZE: Final = 15
"""Transactions are short, so more connections would only move the queue from the pool into Postgres. The pool keeps
every connection that it has opened, because opening one costs more than a transaction.
"""
CALLS_AT_ONCE: Final = 12
"""How many of them the calls of users have. The rest is that of barriers and workers, whatever users ask for."""
POOL_TIMEOUT_SECONDS: Final = 10
CONNECT_TIMEOUT_SECONDS: Final = 5
_ROLLED_BACK: Final = (psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure)
"""Postgres has rolled the transaction back, and advises to run it again."""
SESSION: Final = (
    "-c timezone=UTC -c default_transaction_isolation=read\\ committed"
    # The service has no long transactions. One that takes this long hangs, and would keep the lease's row locked.
    " -c statement_timeout=60s -c idle_in_transaction_session_timeout=60s"
)


def psycopg_url(url: str) -> str:
    """Return `postgresql://..` (or `postgres://..`) as SQLAlchemy names it for psycopg 3."""
    scheme, separator, rest = url.partition("://")
    return f"postgresql+psycopg{separator}{rest}" if scheme in {"postgresql", "postgres"} else url


def check_url(url: str) -> None:
    """Raise Invalid unless this is the URL of a Postgres."""
    try:
        known = make_url(psycopg_url(url)).get_backend_name() == "postgresql"
    except (ArgumentError, ValueError):
        known = False
    if not known:
        # The message does not quote the URL, because it may contain a password.
        raise Invalid("not the URL of a Postgres database")


def connect(url: str, *, application_name: str) -> AsyncEngine:
    """Return an engine, which opens no connection before its first use. Errors and logs never show bound values."""
    parsed = make_url(psycopg_url(url))
    given = parsed.query.get("options", ())
    options = " ".join((given,) if isinstance(given, str) else given)
    engine = create_async_engine(
        parsed.difference_update_query(["options"]),
        pool_size=POOL_SIZE,
        max_overflow=0,
        pool_use_lifo=True,
        pool_timeout=POOL_TIMEOUT_SECONDS,
        hide_parameters=True,
        connect_args={
            "application_name": application_name,
            "connect_timeout": CONNECT_TIMEOUT_SECONDS,
            "options": f"{SESSION} {options}".strip(),
        },
    )
    event.listen(engine.sync_engine, "checkout", _refuse_hung_up)
    return engine


class OnConnection:
    """Base of the adapters of one transaction."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection


def _refuse_hung_up(connection: PoolProxiedConnection, *_: object) -> None:
    """Raise DisconnectionError for a connection that the server has closed, so that the pool replaces it.

    An idle connection with data to read was closed by the server. A ping would detect this too, but would cost a round
    trip before each transaction.
    """
    driver = connection.driver_connection
    assert isinstance(driver, psycopg.AsyncConnection)
    heard = poll()
    if driver.pgconn.status == ConnStatus.OK:
        heard.register(driver.pgconn.socket, POLLIN)
        if not heard.poll(0):
            return
    raise DisconnectionError


@contextmanager
def translated() -> Generator[None]:
    """Raise Unavailable for errors that a retry may cure: of the connection, a timeout. Deadlocked for a deadlock, and
    where readers hold all buffers: their sessions are ended within a second.
    """
    try:
        yield
    except PoolTimeout as error:
        raise Unavailable("the meta store is busy: no connection became free") from error
    except (OperationalError, InterfaceError) as error:
        kind = Deadlocked if isinstance(error.orig, _ROLLED_BACK) else Unavailable
        raise kind(f"the meta store did not answer: {_first_line(error)}") from error
    except DBAPIError as error:
        if isinstance(error.orig, psycopg.Error) and is_crowded(error.orig.sqlstate, str(error.orig)):
            raise Deadlocked(f"the meta store did not answer: {_first_line(error)}") from error
        if not error.connection_invalidated:
            raise
        raise Unavailable(f"the meta store went away: {_first_line(error)}") from error


def _first_line(error: DBAPIError) -> str:
    # Only the driver's message, because SQLAlchemy's quotes the statement.
    return str(error.orig).strip().partition("\n")[0]
