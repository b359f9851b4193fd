"""Spark beside a real state store, which is laid out as a copy of one that is."""

import pytest


@pytest.fixture
def database_url(laid_out_url: str) -> str:
    """A fresh database with the layouts of the meta store and of the state store."""
    return laid_out_url
