"""A second Postgres, where a commit can be made to wait for a standby: in the log, and not yet visible."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.embedded.postgres import EmbeddedPostgres
from tests.support.postgres import fresh_database


@pytest.fixture(scope="session")
def external_server() -> Iterator[str]:
    """Sessions commit locally unless they say otherwise."""
    with tempfile.TemporaryDirectory(prefix="tidefill-test-", ignore_cleanup_errors=True) as directory:
        Path(directory).chmod(0o711)
        settings = {
            "synchronous_standby_names": "nobody",
            "synchronous_commit": "local",
            "shared_buffers": "64MB",
            "max_wal_size": "1GB",
            "min_wal_size": "80MB",
        }
        server = EmbeddedPostgres(Path(directory), settings)
        url = server.start()
        try:
            yield url
        finally:
            server.stop()


@pytest.fixture
def external_url(external_server: str) -> Iterator[str]:
    """A fresh database there."""
    with fresh_database(external_server) as url:
        yield url
