"""Idempotency keys: the stored response of a mutating call."""

from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import delete, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from service.domain.errors import Conflict
from service.meta_store.documents import document
from service.meta_store.models import idempotency_key
from service.ports.records import Json

KEPT_FOR: Final = timedelta(hours=24)
"""Long enough for any client's retries; after that a key is as good as new."""


class PostgresKeys:
    """See `service.ports.meta_store.Keys`."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def claim(self, key: str, fingerprint: str, *, now: datetime) -> Json | None:
        """Two calls with one key that race: the second waits for the first to commit and sees it."""
        await self._connection.execute(delete(idempotency_key).where(idempotency_key.c.claimed_at < now - KEPT_FOR))
        new = insert(idempotency_key).values(key=key, fingerprint=fingerprint, claimed_at=now)
        claimed = new.on_conflict_do_nothing(index_elements=["key"]).returning(idempotency_key.c.key)
        if (await self._connection.execute(claimed)).first() is not None:
            return None
        stored = select(idempotency_key.c.fingerprint, idempotency_key.c.response).where(idempotency_key.c.key == key)
        row = (await self._connection.execute(stored)).first()
        if row is None or (row.response is None and row.fingerprint == fingerprint):
            raise Conflict("the first call with this idempotency key has not been answered yet")
        if row.fingerprint != fingerprint:
            raise Conflict("this idempotency key was used with another request")
        return row.response

    async def store(self, key: str, response: Json) -> None:
        answered = update(idempotency_key).where(idempotency_key.c.key == key).values(response=document(response))
        await self._connection.execute(answered)

    async def release(self, key: str) -> None:
        unanswered = idempotency_key.c.response.is_(None)
        await self._connection.execute(delete(idempotency_key).where(idempotency_key.c.key == key, unanswered))
