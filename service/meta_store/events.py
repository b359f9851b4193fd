"""The append-only event log. Ids follow the order of commits, so a reader that continues after an id misses nothing."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from sqlalchemy import Text, cast, delete, func, insert, not_, or_, select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from service.domain.cutting import cut
from service.meta_store.documents import document
from service.meta_store.schema.core import event as events
from service.ports.records import DISCREET_EVENTS, Event, Json

KEPT: Final = 100_000
"""How many of the newest events are kept: more than a day of barriers at one per second."""
PAGE_BYTES_MAX: Final = 4 << 20
"""How many bytes the facts may have that are read at once, unless those of one event alone have more."""
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
        self._appended.append({"kind": kind, "facts": document(_bounded(facts)), "at": now})

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
        """Oldest first. Fewer than `limit` where they would have more than `PAGE_BYTES_MAX`."""
        await self.write()
        hidden = () if discreet else DISCREET_EVENTS
        shown = [not_(events.c.kind.startswith(kind, autoescape=True)) for kind in hidden]
        found = select(events).where(events.c.id > after, *shown).order_by(events.c.id).limit(limit).subquery()
        size, first = func.octet_length(cast(found.c.facts, Text)), select(func.min(found.c.id)).scalar_subquery()
        sized = select(found, func.sum(size).over(order_by=found.c.id).label("size"), first.label("first")).subquery()
        fitting = or_(sized.c.size <= PAGE_BYTES_MAX, sized.c.id == sized.c.first)
        rows = await self._connection.execute(select(sized).where(fitting).order_by(sized.c.id))
        return [Event(row.id, row.at, row.kind, row.facts) for row in rows]

    async def newest(self) -> int:
        await self.write()
        return (await self._connection.execute(select(func.coalesce(func.max(events.c.id), 0)))).scalar_one()


def _bounded(value: Any) -> Any:
    """Return facts whose texts are cut, because as many are kept whatever their size, and read by many at once."""
    match value:
        case str():
            return cut(value)
        case Mapping():
            return {name: _bounded(one) for name, one in value.items()}  # pyright: ignore[reportUnknownVariableType]
        case list() | tuple():
            return [_bounded(one) for one in value]  # pyright: ignore[reportUnknownVariableType]
        case _:
            return value
