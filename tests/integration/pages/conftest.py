"""The pages on a real meta store; no leader and no worker runs."""

from collections.abc import AsyncGenerator

import httpx
import pytest

from service.meta_store.stores import PostgresStores
from tests.support.meta_store import stores_on
from tests.support.pages import pages


@pytest.fixture
async def stores(database_url: str) -> AsyncGenerator[PostgresStores]:
    async with stores_on(database_url) as (made, _):
        yield made


@pytest.fixture
async def http(stores: PostgresStores) -> AsyncGenerator[httpx.AsyncClient]:
    async with pages(stores) as opened:
        yield opened
