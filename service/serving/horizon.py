"""Manage the horizon, the oldest epoch whose versions are kept. A vacuum advances it, and a pin stops it.

Both first lock the graph's row in `state.horizon`. Therefore either the vacuum sees the pin, or the pin sees the new
horizon.
"""

from service.protocol.ids import Epoch, GraphId
from service.serving.connections import Connection


async def locked(conn: Connection, graph: GraphId) -> Epoch:
    """Lock the horizon until the transaction ends and return it."""
    await conn.execute("insert into state.horizon values (%s, 0) on conflict do nothing", [graph])
    cursor = await conn.execute("select epoch from state.horizon where graph = %s for update", [graph])
    row = await cursor.fetchone()
    assert row is not None
    return Epoch(row[0])


async def advance(conn: Connection, graph: GraphId, epoch: Epoch) -> Epoch:
    """Advance the horizon to min(epoch, published, every pin) and return it. It never goes back.

    The published epoch is a bound, because users read it until the next publication.
    """
    reached = await locked(conn, graph)
    await conn.execute("delete from state.pin where graph = %s and expires_at <= clock_timestamp()", [graph])
    cursor = await conn.execute(
        "select least(%(epoch)s, (select epoch from state.published where graph = %(graph)s),"
        " (select min(epoch) from state.pin where graph = %(graph)s))",
        {"graph": graph, "epoch": epoch},
    )
    row = await cursor.fetchone()
    assert row is not None
    horizon = Epoch(max(reached, row[0]))
    await conn.execute("update state.horizon set epoch = %s where graph = %s and epoch < %s", [horizon, graph, horizon])
    return horizon
