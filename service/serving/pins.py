"""Pin epochs in Postgres: a pinned epoch stays readable while its holder lives.

A pin expires on the database's clock, so the pin of a dead holder soon stops delaying the vacuum. The *horizon* is the
oldest epoch whose versions are kept: a vacuum advances it, and a pin stops it. Both first lock the graph's row in
`state.horizon`. Therefore either the vacuum sees the pin, or the pin sees the new horizon.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final

from service.domain.errors import Conflict, Unavailable
from service.protocol.ids import Epoch, GraphId
from service.serving.connections import Connection, Pool, translated

PIN_SECONDS: Final = 60
REFRESH_SECONDS: Final = 10
"""A pin is refreshed five times before it expires, so a short outage of the state store ends no reader."""
MARGIN_SECONDS: Final = 5
"""The holder gives up its pin this long before the database does."""

EXPIRY: Final = "clock_timestamp() + interval '1 second' * %s"


class PostgresPins:
    """`Pins` over the pool of the state store's owner. Each reader is a holder with a unique name."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    @asynccontextmanager
    async def pin(self, graph: GraphId, epoch: Epoch, *, holder: str) -> AsyncGenerator[None]:
        """Keep the versions of `epoch` while the block runs.

        Raises Conflict if they may be gone. If the pin cannot be kept, the block is cancelled and Unavailable is
        raised.
        """
        loop = asyncio.get_running_loop()
        trust = asyncio.timeout_at(loop.time() + PIN_SECONDS - MARGIN_SECONDS)
        try:
            async with trust:
                await self._take(graph, epoch, holder)
                over = asyncio.Event()
                keeping = loop.create_task(self._keep(graph, epoch, holder, trust, over))
                try:
                    yield
                finally:
                    over.set()
                    await keeping
                    await self._release(graph, epoch, holder)
        except TimeoutError as error:
            if not trust.expired():
                raise
            raise Unavailable(f"the pin of {holder} on epoch {epoch} could not be kept") from error

    async def _take(self, graph: GraphId, epoch: Epoch, holder: str) -> None:
        with translated():
            async with self._pool.connection() as conn, conn.transaction():
                await take(conn, graph, epoch, holder, seconds=PIN_SECONDS)

    async def _keep(
        self, graph: GraphId, epoch: Epoch, holder: str, trust: asyncio.Timeout, over: asyncio.Event
    ) -> None:
        """Refresh the pin until `over`. Each success extends the `trust` deadline, counted from before the attempt."""
        loop = asyncio.get_running_loop()
        while not await _happens(over, within=REFRESH_SECONDS):
            started = loop.time()
            try:
                kept = await self._refresh(graph, epoch, holder)
            except Unavailable:
                continue
            if over.is_set() or trust.expired():
                return
            trust.reschedule(started + PIN_SECONDS - MARGIN_SECONDS if kept else started)
            if not kept:
                return

    async def _refresh(self, graph: GraphId, epoch: Epoch, holder: str) -> bool:
        with translated():
            async with self._pool.connection() as conn:
                cursor = await conn.execute(
                    f"update state.pin set expires_at = {EXPIRY}"
                    " where graph = %s and epoch = %s and holder = %s and expires_at > clock_timestamp()",
                    [PIN_SECONDS, graph, epoch, holder],
                )
                return cursor.rowcount == 1

    async def _release(self, graph: GraphId, epoch: Epoch, holder: str) -> None:
        try:
            with translated():
                async with self._pool.connection() as conn:
                    await conn.execute(
                        "delete from state.pin where graph = %s and epoch = %s and holder = %s", [graph, epoch, holder]
                    )
        except Unavailable:
            return  # the pin expires by itself


async def _happens(event: asyncio.Event, *, within: float) -> bool:
    try:
        await asyncio.wait_for(event.wait(), within)
    except TimeoutError:
        return False
    return True


async def take(conn: Connection, graph: GraphId, epoch: Epoch, holder: str, *, seconds: int) -> None:
    """Pin an epoch, or pin it anew. Raises Conflict if its versions may be gone."""
    reached = await locked(conn, graph)
    if epoch < reached:
        raise Conflict(f"epoch {epoch} can no longer be read: versions before {reached} may be gone")
    await conn.execute(
        f"insert into state.pin values (%s, %s, %s, {EXPIRY})"
        " on conflict (graph, holder, epoch) do update set expires_at = excluded.expires_at",
        [graph, epoch, holder, seconds],
    )


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
