"""Open the connections to the state store: the part of `service.bootstrap` that knows its logins."""

import secrets
from contextlib import AsyncExitStack
from dataclasses import dataclass

from psycopg.conninfo import conninfo_to_dict
from pydantic import SecretStr
from sqlalchemy.ext.asyncio import AsyncEngine

from service.domain.sessions import SessionLimits
from service.meta_store.parameters import remembered
from service.ports.read_logins import ReadPlace
from service.serving.connections import Pool, open_pool
from service.serving.preparation import prepare, prepare_catalog_reader
from service.serving.read_logins import READ_ROLE
from service.serving.read_sessions import PostgresReadSessions, open_read_sessions
from service.serving.user_query import open_reader_pool
from service.settings import Settings
from service.telemetry.log import logger

log = logger("bootstrap")


@dataclass(frozen=True, slots=True)
class Pools:
    """Connections to the state store, by whom they are kept for. `catalog` reads the meta store where that is another
    database.
    """

    url: str
    writer_url: str
    read_group: str
    read_place: ReadPlace
    read_sessions: PostgresReadSessions
    owner: Pool
    leader: Pool
    staging: Pool
    reader: Pool
    probe: Pool
    catalog: Pool | None


async def open_pools(stack: AsyncExitStack, settings: Settings, database_url: str, engine: AsyncEngine) -> Pools:
    """Prepare the state store, and open the connections to it until `stack` is closed."""
    url = (settings.state_store_url or SecretStr(database_url)).get_secret_value()
    password = await _password(engine, "reader")
    logins = await prepare(
        url,
        reader_password=password,
        writer_password=await _password(engine, "writer"),
        read_name=READ_ROLE if settings.database_url is None and settings.state_store_url is None else None,
    )
    for warning in logins.warnings:
        log.warning("state_store.open_right", warning=warning)
    catalog_url = await prepare_catalog_reader(database_url, reader_password=password)
    # A load of a query's rows reads them by one of these connections.
    reading = settings.queries_max + settings.loads_max
    elsewhere = settings.state_store_url is not None
    return Pools(
        url=url,
        writer_url=logins.writer_url,
        read_group=logins.read,
        read_place=_read_place(url, await remembered(engine, "read_login_key", proposed=secrets.token_urlsafe(32))),
        read_sessions=await stack.enter_async_context(open_read_sessions(url, logins.read, SessionLimits())),
        owner=await stack.enter_async_context(open_pool(url, name="owner")),
        leader=await stack.enter_async_context(open_pool(url, name="leader")),
        staging=await stack.enter_async_context(open_pool(url, name="staging", size=settings.loads_max)),
        reader=await stack.enter_async_context(open_reader_pool(logins.reader_url, size=reading)),
        probe=await stack.enter_async_context(open_reader_pool(logins.reader_url, size=1, name="probe")),
        catalog=await stack.enter_async_context(open_reader_pool(catalog_url, name="catalog")) if elsewhere else None,
    )


def _read_place(url: str, key: str) -> ReadPlace:
    """Return where the logins for users' own tools lead. Of several hosts the first is shown."""
    parts = {name: str(value) for name, value in conninfo_to_dict(url).items() if value is not None}
    place = ReadPlace(
        host=parts.get("host", "localhost").split(",")[0],
        port=int(parts.get("port", "5432").split(",")[0]),
        database=parts.get("dbname") or parts.get("user", ""),
        key=key,
    )
    shown = f"postgresql://{place.host}:{place.port}/{place.database}"
    log.info("state_store.read_logins", place=shown, command="tidefill psql")
    return place


async def _password(engine: AsyncEngine, login: str) -> str:
    return await remembered(engine, f"{login}_password", proposed=secrets.token_urlsafe(24))
