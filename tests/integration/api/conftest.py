"""The doors on a real meta store and a real state store; no leader and no worker runs."""

from collections.abc import AsyncGenerator
from datetime import timedelta
from typing import Any

import httpx
import pytest

from service.meta_store.stores import PostgresStores
from service.operations.rows import dml
from service.protocol.ids import Term
from service.serving.staging import PostgresStaging
from service.serving.user_query import open_reader_pool
from tests.support.http import doors
from tests.support.meta_store import stores_on
from tests.support.state_store import prepared_store


@pytest.fixture
def database_url(laid_out_url: str) -> str:
    """A fresh database with the layouts of the meta store and of the state store."""
    return laid_out_url


@pytest.fixture
async def stores(database_url: str) -> AsyncGenerator[PostgresStores]:
    async with stores_on(database_url) as (made, _):
        yield made


@pytest.fixture
async def http(stores: PostgresStores) -> AsyncGenerator[httpx.AsyncClient]:
    async with doors(stores) as opened:
        yield opened


@pytest.fixture
async def staging(stores: PostgresStores, database_url: str) -> AsyncGenerator[PostgresStaging]:
    async with prepared_store(database_url) as store:
        await store.fences.claim(Term(1))
        async with open_reader_pool(store.logins.reader_url, size=1) as reader:
            yield PostgresStaging(store.pool, store.pool, reader)


@pytest.fixture
async def loading(
    stores: PostgresStores, staging: PostgresStaging, monkeypatch: pytest.MonkeyPatch
) -> AsyncGenerator[httpx.AsyncClient]:
    """The doors with a place for staged rows. No worker runs: a load is given up after a few looks, not thousands."""
    monkeypatch.setattr(dml, "ANSWER_WAIT", timedelta(seconds=5))
    ports: dict[str, Any] = {"staging": staging}
    async with doors(stores, **ports) as opened:
        yield opened
