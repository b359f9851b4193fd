"""Idempotency keys; part of `service.ports.meta_store`."""

from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Protocol

from service.ports.records import Claim, Json
from service.protocol.ids import StatementId


class Keys(Protocol):
    """Idempotency keys: the stored response of a mutating call, or the claim of the one that will give it."""

    async def claim(self, key: str, fingerprint: str, *, now: datetime, hold: timedelta) -> Claim | Json:
        """Take the key until `hold` after `now`, or return the response stored with it. Raises Conflict when it was
        used with another fingerprint, or while the claim of an earlier call is held.
        """
        ...

    async def renew(self, claims: Collection[Claim], *, now: datetime, hold: timedelta) -> None:
        """Hold these claims until `hold` after `now`; one that was taken over stays so."""
        ...

    async def accepted(self, claim: Claim, statement: StatementId) -> None:
        """Record, in the transaction that accepts the statement, that it is what the call does. Raises Conflict when
        the claim was taken over: then nothing may be accepted under it.
        """
        ...

    async def store(self, claim: Claim, response: Json) -> None: ...

    async def release(self, claim: Claim, *, now: datetime) -> None:
        """End the claim of a call that failed. The key is free again, unless a statement was accepted that may still
        take effect: then the next claim of the key inherits it.
        """
        ...
