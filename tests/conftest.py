"""Fixtures every area shares."""

from collections.abc import Iterator

import pytest

from tests.support.postgres import embedded_postgres, fresh_database


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """A running embedded Postgres 18; the URL's login is a superuser."""
    with embedded_postgres() as url:
        yield url


@pytest.fixture
def database_url(postgres_url: str) -> Iterator[str]:
    """A fresh, empty database, dropped afterwards."""
    with fresh_database(postgres_url) as url:
        yield url
