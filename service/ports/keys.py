"""Store idempotency keys. Part of `service.ports.meta_store`."""

from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Protocol

from service.ports.records import Claim, Json
from service.protocol.ids import StatementId


class Keys(Protocol):
    """Idempotency keys, each with the stored response of a mutating call or the claim of a running call.

    A key is a digest of its caller, a space, and what the caller sent.
    """

    async def claim(self, key: str, fingerprint: str, *, now: datetime, hold: timedelta) -> Claim | Json:
        """Claim the key until `hold` after `now`, or return its stored response.

        Raises Conflict if the key was used with another fingerprint, or while an earlier call's claim is valid.
        """
        ...

    async def renew(self, claims: Collection[Claim], *, now: datetime, hold: timedelta) -> None:
        """Renew these claims until `hold` after `now`. A claim that another call took over is not renewed."""
        ...

    async def accepted(self, claim: Claim, statement: StatementId) -> None:
        """Link the statement to the key, in the transaction that accepts the statement.

        Raises Conflict if another call took over the claim. Then the statement must not be accepted.
        """
        ...

    async def store(self, claim: Claim, response: Json) -> None: ...

    async def release(self, claim: Claim, *, now: datetime) -> None:
        """End the claim of a failed call.

        The key becomes free unless an accepted statement has or may have an effect. Then the next claim of the key
        inherits the statement.
        """
        ...
