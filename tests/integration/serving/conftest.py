"""A prepared state store under term 7, and the logins that use it."""

from collections.abc import AsyncGenerator

import pytest

from service.protocol.ids import Term
from service.serving.connections import Pool
from service.serving.reader import PostgresReader
from service.serving.staging import PostgresStaging
from service.serving.user_query import open_reader_pool
from tests.support.state_store import Store, prepared_store

TERM = Term(7)


@pytest.fixture
async def store(laid_out_url: str) -> AsyncGenerator[Store]:
    async with prepared_store(laid_out_url) as prepared:
        await prepared.fences.claim(TERM)
        yield prepared


@pytest.fixture
async def reader_pool(store: Store) -> AsyncGenerator[Pool]:
    """One connection, so that a test meets what the query before it left."""
    async with open_reader_pool(store.logins.reader_url, size=1) as pool:
        yield pool


@pytest.fixture
def reader(reader_pool: Pool) -> PostgresReader:
    return PostgresReader(reader_pool)


@pytest.fixture
def staging(store: Store, reader_pool: Pool) -> PostgresStaging:
    return PostgresStaging(store.pool, store.pool, reader_pool)
