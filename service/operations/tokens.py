"""Make, list and revoke API tokens, and recognise their bearers.

A token is `tdf_<id>_<secret>`. It is found by its id, and the digest of its secret is compared in constant time. A
plain SHA-256 suffices, because a secret has 256 random bits.
"""

import hashlib
import hmac
import re
import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Final

from service.domain.barrier import Chore
from service.domain.errors import Invalid, NotFound
from service.domain.roles import PEOPLE, Role
from service.operations.retrying import retried
from service.operations.world import Context, World
from service.ports.audit import Asker
from service.ports.tokens import ApiToken, NewToken, TokenId

USED_EVERY: Final = timedelta(minutes=1)
"""How often the use of a token is noted."""
_SECRET_BYTES: Final = 32
_ACTOR: Final = re.compile(r"token ([0-9]{1,18}) \(")
_SPELLED: Final = re.compile(r"tdf_([1-9][0-9]{0,17})_([A-Za-z0-9_-]{43})")


@dataclass(frozen=True, slots=True)
class MadeToken:
    """A new token with its text, which cannot be read again."""

    made: ApiToken
    text: str = field(repr=False)


@retried
async def create(world: Context, name: str, role: Role, expires_in: timedelta | None, *, asked_by: Asker) -> MadeToken:
    """Make a token. Raises Conflict if the name is taken by another one that is not revoked."""
    if role not in PEOPLE:
        raise Invalid("the service gives workers their token itself (TIDEFILL_WORKER_TOKEN)", pointer="/role")
    now, secret = world.clock.now(), secrets.token_urlsafe(_SECRET_BYTES)
    new = NewToken(name, role, asked_by.actor, now, None if expires_in is None else now + expires_in)
    async with world.stores.begin(by=asked_by) as tx:
        made = await tx.tokens.add(new, _digest(secret))
        facts = {"token": made.id, "name": name, "role": role, "asked_by": asked_by.actor}
        await tx.events.append("token.created", facts, now=now)
    return MadeToken(made, f"tdf_{made.id}_{secret}")


async def page(world: Context, *, after: int, limit: int) -> tuple[Sequence[ApiToken], str | None]:
    """Return tokens with an id above `after`, oldest first, and the `after` of the following page."""
    async with world.stores.begin() as tx:
        found = await tx.tokens.page(after=after, limit=limit + 1)
    return found[:limit], str(found[limit - 1].id) if len(found) > limit else None


@retried
async def revoke(world: World, token: TokenId, *, asked_by: Asker) -> ApiToken:
    """Revoke a token. Raises NotFound. A token that is revoked already stays so."""
    now = world.clock.now()
    async with world.stores.begin(by=asked_by) as tx:
        revoked = await tx.tokens.revoke(token, now=now)
        if revoked is None:
            raise NotFound(f"token {token} not found", kind="token")
        facts = {"token": token, "name": revoked.name, "asked_by": asked_by.actor}
        await tx.events.append("token.revoked", facts, now=now)
    world.calls.tokens.forget(token)
    world.signals.notify(Chore.TIDY)  # its Postgres login ends
    return revoked


async def caller(world: World, text: str) -> Asker | None:
    """Return the bearer of a token, or None if the token is unknown, revoked or expired. Raises Unavailable."""
    spelled = _SPELLED.fullmatch(text)
    if spelled is None:
        return None
    id_, digest = TokenId(int(spelled[1])), _digest(spelled[2])
    remembered, token = await world.calls.tokens.get(id_, partial(_read, world), world.clock.monotonic)
    if token is None or not hmac.compare_digest(digest, token.sha256) or not token.valid(now := world.clock.now()):
        return None
    if not remembered:
        await _used(world, token, now)
    return Asker(f"token {id_} ({token.name})", token.role)


def token_of(actor: str) -> TokenId | None:
    """Return the token that an actor of the audit trail is, or None if it is no token."""
    found = _ACTOR.match(actor)
    return None if found is None else TokenId(int(found[1]))


async def _read(world: Context, wanted: Collection[TokenId]) -> Mapping[TokenId, ApiToken]:
    async with world.stores.begin() as tx:
        return await tx.tokens.called(wanted)


async def _used(world: Context, token: ApiToken, now: datetime) -> None:
    if token.last_used_at is None or now - token.last_used_at >= USED_EVERY:
        async with world.stores.begin() as tx:
            await tx.tokens.used(token.id, now=now)


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()
