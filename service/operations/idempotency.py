"""Idempotency keys: a repeated mutating call gets the first call's response; another body under the same key is
refused.

A call claims its key first and stores its response last; in between its process holds the claim and renews it. When the
process dies the claim lapses, and the next repetition takes it over. What a call accepts durably, a statement, is tied
to the key in the very transaction that accepts it, and only while the claim is the call's own: the repetition waits
for that statement instead of accepting another. Every other call may be made twice: it finds done what it asks for.
"""

import hashlib
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from typing import Any, Final

from service.operations.world import World
from service.ports.records import Claim

Response = Mapping[str, Any]

HOLD: Final = timedelta(seconds=10)
RENEW_EVERY: Final = timedelta(seconds=3)
"""Three renewals fit, so that a slow or lost one does not cost a living call its claim."""


async def once(
    world: World, key: str | None, body: bytes, call: Callable[[Claim | None], Awaitable[Response]]
) -> Response:
    """Run `call` at most once for `key` (None: run it). A call that failed without changing anything frees the key."""
    if key is None:
        return await call(None)
    fingerprint = hashlib.sha256(body).hexdigest()
    async with world.stores.begin() as tx:
        claim = await tx.keys.claim(key, fingerprint, now=world.clock.now(), hold=HOLD)
    if not isinstance(claim, Claim):
        return claim
    world.claims.add(claim)
    try:
        response = await call(claim)
    except BaseException:
        async with world.stores.begin() as tx:
            await tx.keys.release(claim, now=world.clock.now())
        raise
    else:
        async with world.stores.begin() as tx:
            await tx.keys.store(claim, response)
        return response
    finally:
        world.claims.discard(claim)


async def renew(world: World) -> None:
    """Hold on to the claims of the calls that this process is carrying out."""
    if world.claims:
        async with world.stores.begin() as tx:
            await tx.keys.renew(tuple(world.claims), now=world.clock.now(), hold=HOLD)
