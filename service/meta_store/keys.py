"""Idempotency keys: the stored response of a mutating call, or the claim of the call that will answer.

A claim is valid while its holder renews it. A repeated call that takes over a lapsed claim gets a new claim number.
A slow former holder can then neither accept a statement nor store a response.
"""

import secrets
from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import and_, delete, exists, not_, or_, select, text, update
from sqlalchemy.dialects.postgresql import insert

from service.domain.errors import Conflict
from service.meta_store.documents import among, document
from service.meta_store.engine import OnConnection
from service.meta_store.schema.core import KEY_CLAIM, KEY_UNANSWERED, idempotency_key
from service.meta_store.schema.core import statement as statements
from service.ports.records import Claim, Json
from service.protocol.ids import StatementId

KEPT_FOR: Final = timedelta(hours=24)
"""Long enough for any client's retries. Afterwards the key can be used for another call."""
KEPT_BYTES: Final = 32 << 20
"""The size of one caller's answered keys that are kept, the newest. They are about 60,000."""
_TRIM_EVERY: Final = 1_000
"""A caller is trimmed after so many claims on average: by chance, because others could take each thousandth number."""
_TRIM: Final = text("""
delete from tidefill.idempotency_key where key in (
    select key from (
        select key, sum(pg_column_size(k.*)) over (order by claimed_at desc, key) as size
        from tidefill.idempotency_key k
        where response is not null and key >= :caller || ' ' collate "C" and key < :caller || '!' collate "C"
    ) newest where size > :kept
)
""")
_ADOPT: Final = text("""
update tidefill.idempotency_key set key = :key
where key = :unscoped and fingerprint = :fingerprint
    and not exists (select from tidefill.idempotency_key where key = :key)
""")
"""Services of the release before stored keys without their caller."""


class PostgresKeys(OnConnection):
    """See `service.ports.meta_store.Keys`."""

    async def claim(self, key: str, fingerprint: str, *, now: datetime, hold: timedelta) -> Claim | Json:
        """Of two concurrent calls with one key, the second waits until the first has committed, and then sees it.

        Raises Conflict where the key was used with another request, or has no response yet.
        """
        await self._connection.execute(delete(idempotency_key).where(idempotency_key.c.claimed_at < now - KEPT_FOR))
        caller, _, unscoped = key.partition(" ")
        await self._connection.execute(_ADOPT, {"key": key, "unscoped": unscoped, "fingerprint": fingerprint})
        claimed = (await self._connection.execute(_claim(key, fingerprint, now, hold))).first()
        if claimed is not None:
            if secrets.randbelow(_TRIM_EVERY) == 0:
                await self._connection.execute(_TRIM, {"caller": caller, "kept": KEPT_BYTES})
            return Claim(key, claimed.claim, None if claimed.statement is None else StatementId(claimed.statement))
        stored = select(idempotency_key.c.fingerprint, idempotency_key.c.response).where(idempotency_key.c.key == key)
        row = (await self._connection.execute(stored)).first()
        if row is not None and row.fingerprint != fingerprint:
            raise Conflict("this idempotency key was used with another request")
        if row is None or row.response is None:
            raise Conflict("the first call with this idempotency key has not been answered yet")
        return row.response

    async def renew(self, claims: Collection[Claim], *, now: datetime, hold: timedelta) -> None:
        mine = and_(KEY_UNANSWERED, among(idempotency_key.c.claim, [claim.number for claim in claims]))
        await self._connection.execute(update(idempotency_key).where(mine).values(held_until=now + hold))

    async def accepted(self, claim: Claim, statement: StatementId) -> None:
        tied = update(idempotency_key).where(_held(claim)).values(statement=statement)
        if (await self._connection.execute(tied.returning(idempotency_key.c.key))).first() is None:
            raise Conflict("a repetition of this call has taken its idempotency key over")

    async def store(self, claim: Claim, response: Json) -> None:
        answered = update(idempotency_key).where(_held(claim)).values(response=document(response))
        await self._connection.execute(answered)

    async def release(self, claim: Claim, *, now: datetime) -> None:
        failed = exists().where(
            statements.c.id == idempotency_key.c.statement,
            statements.c.error.is_not(None),
            statements.c.applied_rows == 0,
        )
        # A staged statement that failed after its first slices has changed rows. Its key stays, so that a repeated
        # call is answered with that outcome.
        without_effect = or_(idempotency_key.c.statement.is_(None), failed)
        await self._connection.execute(delete(idempotency_key).where(_held(claim), without_effect))
        await self._connection.execute(update(idempotency_key).where(_held(claim)).values(held_until=now))


def _held(claim: Claim) -> Any:
    return and_(idempotency_key.c.key == claim.key, idempotency_key.c.claim == claim.number, KEY_UNANSWERED)


def _claim(key: str, fingerprint: str, now: datetime, hold: timedelta) -> Any:
    """Insert the key, or take over a lapsed claim of the same call."""
    new = insert(idempotency_key).values(
        key=key, fingerprint=fingerprint, claimed_at=now, claim=KEY_CLAIM.next_value(), held_until=now + hold
    )
    lapsed = and_(
        KEY_UNANSWERED, idempotency_key.c.fingerprint == fingerprint, not_(idempotency_key.c.held_until > now)
    )
    taken = {name: new.excluded[name] for name in ("claim", "held_until")}
    return new.on_conflict_do_update(index_elements=["key"], set_=taken, where=lapsed).returning(
        idempotency_key.c.claim, idempotency_key.c.statement
    )
