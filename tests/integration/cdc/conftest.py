"""A second Postgres, where a commit can be made to wait for a standby: in the log, and not yet visible."""

from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from service.embedded.postgres import EmbeddedPostgres
from tests.support.cdc_steps import Started, put
from tests.support.postgres import fresh_database
from tests.support.production import started as started_server
from tests.support.real_cdc import CdcWorld, External, Followed, LocalPages
from tests.support.run_directories import run_directory
from tests.support.state_store import prepared_store
from workers.cdc import backoff
from workers.runners import source_scan as executor


@pytest.fixture(scope="session")
def external_server() -> Iterator[str]:
    """Sessions commit locally unless they say otherwise."""
    with run_directory() as directory:
        settings = {
            "synchronous_standby_names": "nobody",
            "synchronous_commit": "local",
            "max_prepared_transactions": "10",
            "track_commit_timestamp": "on",
            "shared_buffers": "64MB",
            "max_wal_size": "1GB",
            "min_wal_size": "80MB",
        }
        server = EmbeddedPostgres(directory, settings)
        url = started_server(server)
        try:
            yield url
        finally:
            server.stop()


@pytest.fixture
def database_url(laid_out_url: str) -> str:
    """A fresh database with the layouts of the meta store and of the state store."""
    return laid_out_url


@pytest.fixture
def external_url(external_server: str) -> Iterator[str]:
    """A fresh database there."""
    with fresh_database(external_server) as url:
        yield url


@pytest.fixture
def started(database_url: str, external_url: str, monkeypatch: pytest.MonkeyPatch) -> Started:
    """A world whose tables are prepared by statements; nothing is read before a limit is given."""
    monkeypatch.setattr(executor, "PagesJob", LocalPages)
    monkeypatch.setattr(backoff, "RETRY_SECONDS", (0.0, 0.0))
    monkeypatch.setattr(backoff, "SLOW_TIMES", 0.0)
    monkeypatch.setattr(backoff, "HELD_TIMES", 0.0)

    @asynccontextmanager
    async def start(*tables: Followed, rows: int = 0, **how: Any) -> AsyncGenerator[CdcWorld]:
        external = External(external_url, tables, **how)
        writer = external.writer()
        for table in tables:
            for number in range(rows):
                put(external, writer, table, number, "old")
        external.commit(writer)
        try:
            async with prepared_store(database_url) as store:
                world = CdcWorld(store, external, actors=1)
                try:
                    await world.prepare()
                    yield world
                finally:
                    world.close()
        finally:
            external.close()

    return start
