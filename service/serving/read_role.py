"""Create the login for users' own tools (psql, BI tools, Spark). It may read what users may read, and write nothing.

Users open its sessions themselves, unlike the reader's. The timeouts are long enough for a dashboard, and every
transaction reads one epoch.
"""

from typing import Final

from psycopg import sql

from service.serving.connections import Connection
from service.serving.roles import RoleNames, configure, grant_catalog, grant_existing, make_login

CONNECTIONS_MAX: Final = 16
READ_ROLE: Final = "tidefill_read"
"""The login's name on a server with a single tidefill database."""

_SETTINGS: Final = (
    ("default_transaction_read_only", "on"),
    # All statements of a transaction read the same epoch.
    ("default_transaction_isolation", "repeatable read"),
    ("statement_timeout", "10min"),
    ("idle_in_transaction_session_timeout", "10min"),
    # rw_catalog is not in the path, so `\d` lists only the user's relations, and no catalog view hides one of them.
    ("search_path", "public"),
)


async def make_read_role(conn: Connection, names: RoleNames, password: str) -> None:
    """Create the login or set its password. Grant it the catalog and all present and future public views.

    Raises Invalid, Conflict.
    """
    await make_login(conn, names.read, password, CONNECTIONS_MAX)
    await configure(conn, names.read, _SETTINGS)
    role = sql.Identifier(names.read)
    await conn.execute(sql.SQL("grant usage on schema public to {}").format(role))
    future = "alter default privileges in schema public grant select on tables to {}"
    await conn.execute(sql.SQL(future).format(role))
    await grant_existing(conn, names.read, "public", "select")
    await grant_catalog(conn, names.read)
