"""Idempotency keys: a repeated mutating call gets the first call's response; another body under the same key is
refused.
"""

import hashlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from service.operations.world import World

Response = Mapping[str, Any]


async def once(world: World, key: str | None, body: bytes, call: Callable[[], Awaitable[Response]]) -> Response:
    """Run `call` at most once for `key` (None: run it). A call that fails has changed nothing and frees the key."""
    if key is None:
        return await call()
    fingerprint = hashlib.sha256(body).hexdigest()
    async with world.stores.begin() as tx:
        stored = await tx.keys.claim(key, fingerprint, now=world.clock.now())
    if stored is not None:
        return stored
    try:
        response = await call()
    except BaseException:
        async with world.stores.begin() as tx:
            await tx.keys.release(key)
        raise
    async with world.stores.begin() as tx:
        await tx.keys.store(key, response)
    return response
