"""A reader that holds a page in each of the server's buffers is found and ended, and nobody else is blamed (I13)."""

from collections.abc import Iterator

import psycopg
import pytest

from service.domain.sessions import SessionLimits
from service.embedded.postgres import EmbeddedPostgres
from service.protocol.answering import NO_BUFFERS
from service.serving.read_sessions import open_read_sessions
from tests.support.postgres import is_over
from tests.support.run_directories import run_directory
from tests.support.waiting import until

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(180)]

SMALL = {"shared_buffers": "4MB", "wal_buffers": "1MB", "max_wal_size": "200MB", "min_wal_size": "80MB"}
READERS = ("reading_a", "reading_b")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A server of few buffers, with two readers and two tables of more pages each than it has buffers."""
    with run_directory() as directory:
        server = EmbeddedPostgres(directory, SMALL)
        try:
            url = server.start()
            with psycopg.connect(url, autocommit=True) as admin:
                for reader in READERS:
                    admin.execute(f"create role {reader} login password '{reader}'".encode())
                for table in ("held", "other"):
                    admin.execute(f"create table {table} (x text storage plain)".encode())
                    admin.execute(f"insert into {table} select repeat('x', 6000) from generate_series(1, 700)".encode())
                    admin.execute(f"grant select on {table} to reading_a, reading_b".encode())
            yield url
        finally:
            server.stop()


def held(url: str, reader: str, sessions: int) -> list[psycopg.Connection]:
    """Open sessions of a reader, each in a transaction that holds pages, until no buffer is left if there are many."""
    opened = [psycopg.connect(url, user=reader, password=reader) for _ in range(sessions)]
    for number, connection in enumerate(opened):
        connection.execute("set enable_seqscan = off")
        for page in range(number * 100, number * 100 + 100):
            try:
                connection.execute("savepoint s")
                connection.execute(f"declare c{page} cursor for select 1 from held where ctid = '({page},1)'".encode())
                connection.execute(f"fetch c{page}".encode())
            except psycopg.errors.InternalError_:
                connection.execute("rollback to s")
    return opened


async def test_i13_a_reader_that_holds_all_buffers_ends_and_is_closed(url: str) -> None:
    """A viewer did so to 512 MB within seconds, and each call of everybody failed for as long as it liked."""
    async with open_read_sessions(url, "reading", SessionLimits()) as sessions:
        assert await sessions.end_overdue() == []
        harmless, holding = held(url, "reading_b", 1), held(url, "reading_a", 7)
        everywhere = "select count(x) from other"
        with pytest.raises(psycopg.Error, match=NO_BUFFERS), psycopg.connect(url, autocommit=True) as asking:
            asking.execute(everywhere)
        ended = await sessions.end_overdue()
        assert {(one.login, one.barred) for one in ended} == {("reading_a", False)}
        until(lambda: all(is_over(one) for one in holding), what="they have ended")
        assert not any(is_over(one) for one in harmless)
        for one in harmless:
            one.close()
        with psycopg.connect(url, autocommit=True) as asking:
            assert asking.execute(everywhere).fetchone() == (700,)
        assert await sessions.end_overdue() == []
        holding = held(url, "reading_a", 7)
        ended = []
        while not ended:
            ended += await sessions.end_overdue()
        assert {(one.login, one.barred) for one in ended} == {("reading_a", True)}, "no other one was there"
        until(lambda: all(is_over(one) for one in holding), what="they have ended")
