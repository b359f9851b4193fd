"""How far back versions are still kept: a vacuum moves the horizon, a pin holds it.

Both take the graph's row in `state.horizon` first, so that a pin either is seen by the vacuum or sees how far it got.
"""

from service.protocol.ids import Epoch, GraphId
from service.serving.connections import Connection


async def locked(conn: Connection, graph: GraphId) -> Epoch:
    """Return the horizon and keep it from moving until the transaction ends."""
    await conn.execute("insert into state.horizon values (%s, 0) on conflict do nothing", [graph])
    cursor = await conn.execute("select epoch from state.horizon where graph = %s for update", [graph])
    row = await cursor.fetchone()
    assert row is not None
    return Epoch(row[0])


async def advance(conn: Connection, graph: GraphId, epoch: Epoch) -> Epoch:
    """Move the horizon to min(epoch, published, every pin), never back, and return where it is.

    What is published bounds it too: between commit and publication users still read the epoch before.
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
