"""Connections to the meta store: how they are made, and what their errors mean."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from service.domain.errors import Unavailable

POOL_SIZE: Final = 5
"""Transactions are short; more connections than this would only queue inside Postgres instead of in front of it."""
POOL_OVERFLOW: Final = 10
POOL_TIMEOUT_SECONDS: Final = 10
CONNECT_TIMEOUT_SECONDS: Final = 5
SESSION: Final = (
    "-c timezone=UTC -c default_transaction_isolation=read\\ committed"
    # No transaction of ours is long: one that is hangs, and would hold the leader lease's row.
    " -c statement_timeout=60s -c idle_in_transaction_session_timeout=60s"
)


def psycopg_url(url: str) -> str:
    """Return `postgresql://..` (or `postgres://..`) as SQLAlchemy names it for psycopg 3."""
    scheme, separator, rest = url.partition("://")
    return f"postgresql+psycopg{separator}{rest}" if scheme in {"postgresql", "postgres"} else url


def connect(url: str, *, application_name: str) -> AsyncEngine:
    """Return an engine; nothing is opened before its first use. Errors and logs never show bound values."""
    parsed = make_url(psycopg_url(url))
    given = parsed.query.get("options", ())
    options = " ".join((given,) if isinstance(given, str) else given)
    return create_async_engine(
        parsed.difference_update_query(["options"]),
        pool_pre_ping=True,
        pool_size=POOL_SIZE,
        max_overflow=POOL_OVERFLOW,
        pool_timeout=POOL_TIMEOUT_SECONDS,
        hide_parameters=True,
        connect_args={
            "application_name": application_name,
            "connect_timeout": CONNECT_TIMEOUT_SECONDS,
            "options": f"{SESSION} {options}".strip(),
        },
    )


@contextmanager
def translated() -> Generator[None]:
    """Turn an error of the connection (or a deadlock, a timeout: what a retry may cure) into Unavailable."""
    try:
        yield
    except PoolTimeout as error:
        raise Unavailable("the meta store is busy: no connection became free") from error
    except (OperationalError, InterfaceError) as error:
        raise Unavailable(f"the meta store did not answer: {_first_line(error)}") from error
    except DBAPIError as error:
        if not error.connection_invalidated:
            raise
        raise Unavailable(f"the meta store went away: {_first_line(error)}") from error


def _first_line(error: DBAPIError) -> str:
    # The driver's own words only: SQLAlchemy's would quote the statement.
    return str(error.orig).strip().partition("\n")[0]
