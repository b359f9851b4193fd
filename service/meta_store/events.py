"""The append-only event log. Ids follow the order of commits, so a reader that continues after an id misses nothing."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from sqlalchemy import delete, func, insert, not_, select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from service.meta_store.documents import document
from service.meta_store.schema.core import event as events
from service.ports.records import DISCREET_EVENTS, Event, Json

KEPT: Final = 100_000
"""How many of the newest events are kept: more than a day of barriers at one per second."""
_TRIM_EVERY: Final = 1_000
_ORDER_LOCK: Final = 7_142_609_315_448_002
"""The key of an advisory lock, taken before ids are assigned and kept until the commit.

Any number will do that no other program locks in this database.
"""


class PostgresEvents:
    """See `service.ports.meta_store.Events`.

    The events are written at the end of the transaction, under a lock that serializes writers. The transaction holds
    that lock for one statement and the commit. It is the last lock taken, so it cannot be part of a deadlock.
    """

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection
        self._appended: list[dict[str, Any]] = []

    async def append(self, kind: str, facts: Json, *, now: datetime) -> None:
        self._appended.append({"kind": kind, "facts": document(facts), "at": now})

    async def write(self) -> None:
        """Write the appended events. `PostgresStores.begin` calls this before the commit."""
        if not self._appended:
            return
        await self._connection.execute(text("select pg_advisory_xact_lock(:key)"), {"key": _ORDER_LOCK})
        new = insert(events).values(self._appended).returning(events.c.id)
        newest = max((await self._connection.execute(new)).scalars())
        written, self._appended = len(self._appended), []
        if newest % _TRIM_EVERY < written:
            await self._connection.execute(delete(events).where(events.c.id <= newest - KEPT))

    async def since(self, after: int, *, limit: int, discreet: bool = True) -> Sequence[Event]:
        """Oldest first."""
        await self.write()
        hidden = () if discreet else DISCREET_EVENTS
        shown = [not_(events.c.kind.startswith(kind, autoescape=True)) for kind in hidden]
        rows = await self._connection.execute(
            select(events).where(events.c.id > after, *shown).order_by(events.c.id).limit(limit)
        )
        return [Event(row.id, row.at, row.kind, row.facts) for row in rows]

    async def newest(self) -> int:
        await self.write()
        return (await self._connection.execute(select(func.coalesce(func.max(events.c.id), 0)))).scalar_one()
