"""Answer a repeated mutating call with the response of the first one. The same key with another body is refused.

A key belongs to its caller: the same key of another caller is another key.

A call claims its key first and stores its response last. In between its process owns the claim and renews it. If the
process dies, the claim expires and the next repetition takes it over.

The transaction that accepts a statement also links it to the key, provided that the call still owns the claim. A
repetition waits for that statement instead of accepting another one. All other calls are idempotent by themselves.
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
"""`HOLD` covers three renewals, so a running call keeps its claim if one of them is slow or lost."""


async def once(
    world: World, key: str | None, body: bytes, call: Callable[[Claim | None], Awaitable[Response]], *, caller: str
) -> Response:
    """Run `call` at most once for `key` of `caller`, or without a limit if `key` is None.

    A call that fails without an effect releases the key.
    """
    if key is None:
        return await call(None)
    fingerprint = hashlib.sha256(body).hexdigest()
    async with world.stores.begin() as tx:
        claim = await tx.keys.claim(f"{_digest(caller)} {key}", fingerprint, now=world.clock.now(), hold=HOLD)
    if not isinstance(claim, Claim):
        return claim
    world.calls.claims.add(claim)
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
        world.calls.claims.discard(claim)


def _digest(caller: str) -> str:
    return hashlib.sha256(caller.encode()).hexdigest()[:32]


async def renew(world: World) -> None:
    """Renew the claims of the calls that this process is running."""
    if world.calls.claims:
        async with world.stores.begin() as tx:
            await tx.keys.renew(tuple(world.calls.claims), now=world.clock.now(), hold=HOLD)
