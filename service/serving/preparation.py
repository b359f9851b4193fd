"""Prepare a database as the state store, at every start of a service.

Next: `service.serving.tables`, which uses the layout and the logins.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final

from psycopg import errors

from service.domain.errors import Invalid
from service.serving.connections import OWNER_SETTINGS, Connection, said, translated, url_as, with_settings
from service.serving.layout import lay_out
from service.serving.read_logins import make_read_group
from service.serving.roles import Logins, make_reader, make_writer, role_names, take_from_public
from service.sessions import check_sessions

_LOCK: Final = 0x7469646566696C6C
"""The advisory lock that serialises services which start together. The number is "tidefill" in ASCII."""


async def prepare(url: str, *, reader_password: str, writer_password: str, read_name: str | None = None) -> Logins:
    """Create the layout of the state store and its two logins, and set their passwords. Create the group of the logins
    for users' own tools.

    `read_name` is the name of that group, for a server with a single tidefill database. Repeatable.
    Services that start together run it one after another. Raises Invalid with the missing privilege or for a pooler,
    Conflict if one of the objects exists and is not tidefill's, and Unavailable.
    """
    await asyncio.to_thread(check_sessions, url)
    async with _preparing(url) as conn:
        await lay_out(conn)
        names = await role_names(conn, read=read_name)
        await make_reader(conn, names.reader, reader_password)
        await make_writer(conn, names.writer, writer_password)
        await make_read_group(conn, names.read)
        warnings = await take_from_public(conn, names)
    return Logins(
        reader_url=url_as(url, names.reader, reader_password),
        writer_url=url_as(url, names.writer, writer_password),
        read=names.read,
        warnings=warnings,
    )


async def prepare_catalog_reader(url: str, *, reader_password: str) -> str:
    """Create the reader login in a separate meta-store database, after its migrations, and return its URL.

    Repeatable. Raises as `prepare` does.
    """
    async with _preparing(url) as conn:
        names = await role_names(conn)
        await make_reader(conn, names.reader, reader_password)
    return url_as(url, names.reader, reader_password)


@asynccontextmanager
async def _preparing(url: str) -> AsyncGenerator[Connection]:
    parameters = with_settings(url, OWNER_SETTINGS, application_name="tidefill-prepare")
    with translated():
        try:
            async with await Connection.connect(parameters, autocommit=True) as conn, conn.transaction():
                await conn.execute("select pg_advisory_xact_lock(%s)", [_LOCK])
                yield conn
        except errors.InsufficientPrivilege as error:
            raise Invalid(f"the login of the state store may not do what it has to: {said(error)}") from error
