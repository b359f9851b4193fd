"""Who sits the examinations: the real stores and those in memory."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from datetime import datetime, timedelta

import pytest

from service.ports.meta_store import Stores
from tests.support.fake_meta_store import FakeStores
from tests.support.meta_store import NOW, migrated

POSTGRES = pytest.param("postgres", marks=pytest.mark.postgres)


@dataclass
class TickingClock:
    """A database's clock: a millisecond goes by between any two looks at it."""

    at: datetime = NOW

    def __call__(self) -> datetime:
        self.at += timedelta(milliseconds=1)
        return self.at


@pytest.fixture(params=["fake", POSTGRES])
async def stores(request: pytest.FixtureRequest) -> AsyncGenerator[Stores]:
    if request.param == "fake":
        yield FakeStores(TickingClock())
        return
    async with migrated(request.getfixturevalue("database_url")) as (stores, _):
        yield stores


@pytest.fixture(params=[POSTGRES])
async def locking_stores(request: pytest.FixtureRequest) -> AsyncGenerator[Stores]:
    """Stores whose transactions overlap, and wait for each other's locks: in memory they come one after the other."""
    async with migrated(request.getfixturevalue("database_url")) as (stores, _):
        yield stores
