"""Rows of an external server as they stream: all of them, nothing else, and its session is free afterwards."""

from contextlib import closing

import psycopg
import pytest

from workers.cdc.connecting import connect
from workers.cdc.pages import by_vnode
from workers.cdc.streaming import stream

pytestmark = pytest.mark.postgres

HEAD = b"\0\2\0\0\0\2"


@pytest.mark.parametrize("rows", [0, 1, 2, 50_000])
def test_a_stream_that_is_read_to_its_end_is_not_cancelled(
    external_url: str, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    """A cancel is a connection of its own to the user's server, and may meet the next query."""
    cancelled: list[psycopg.Connection] = []

    def cancel(connection: psycopg.Connection, *, timeout: float) -> None:
        assert timeout > 0
        cancelled.append(connection)

    monkeypatch.setattr(psycopg.Connection, "cancel_safe", cancel)
    query = f"select (i % 7)::smallint, i from generate_series(1, {rows}) i"
    with connect(external_url, "slot") as connection:
        with closing(stream(connection, query)) as found:
            each = [bytes(row) for some in found for row in some]
        with closing(stream(connection, query)) as found:
            written = [bytes(row) for some in by_vnode(found) for row in some]
        assert connection.execute("select 1").fetchone() == (1,)
    assert not cancelled
    wanted = [HEAD + (i % 7).to_bytes(2, "big") + b"\0\0\0\x04" + i.to_bytes(4, "big") for i in range(1, rows + 1)]
    assert each == wanted
    assert sorted(written) == sorted(wanted)
