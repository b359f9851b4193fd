"""Give each caller a Postgres login of its own, and end it with the caller's token.

A caller can change the password and the settings of its own login, and of no other. The next call for the login puts
both back. Passwords are derived from a key of the meta store, so every service knows them and none are stored.
"""

import asyncio
import hmac
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Final

from service.domain.errors import Conflict, NotFound
from service.operations.retrying import retried
from service.operations.tokens import token_of
from service.operations.world import LOGIN_BARRED_SECONDS, Context, World
from service.ports.audit import Asker
from service.ports.read_logins import ReadLogin, ReadLogins
from service.ports.tokens import ApiToken, TokenId
from service.protocol.ids import Term
from service.telemetry.log import logger

log = logger("read_logins")

KEPT: Final = timedelta(hours=12)
"""How long the login of a JWT's bearer lasts after it was last shown, because a JWT cannot be revoked."""
ROOT: Final = "root"
"""The suffix of the login that the callers share who are admins without an identity of their own."""
_PASSWORD_CHARACTERS: Final = 32


@dataclass(frozen=True, slots=True)
class ReadAccess:
    """Where the login leads, and its password, None if it was not asked for."""

    host: str
    port: int
    database: str
    user: str
    password: str | None = field(repr=False)


async def login(world: World, *, password: bool, asked_by: Asker) -> ReadAccess:
    """Return the caller's login. With `password` it is opened, or put back to its initial state.

    Raises NotFound, Conflict, Unavailable.
    """
    place = world.logins.place
    if place is None or world.logins.read_logins is None:
        raise NotFound("this service makes no logins for reading", kind="login")
    suffix = suffix_of(asked_by)
    user = world.logins.read_logins.name(suffix)
    if world.logins.barred.of(user, now=world.clock.monotonic())[0]:
        minutes = LOGIN_BARRED_SECONDS / 60
        why = "wrote, though it may only read, or held all buffers of the server"
        raise Conflict(f'"{user}" {why}: it is closed for {minutes:.0f} minutes')
    if not password:
        return ReadAccess(place.host, place.port, place.database, user, None)
    text = _password(place.key, user)
    opening = world.logins.opening.get(user)
    if opening is None and world.logins.opened.due(user, now=world.clock.monotonic()):
        opening = asyncio.create_task(_open(world, world.logins.read_logins, ReadLogin(suffix), text, asked_by))
        world.logins.opening[user] = opening
        opening.add_done_callback(lambda _: world.logins.opening.pop(user, None))
    if opening is not None:
        # A second call meanwhile must not answer before the login is there.
        await asyncio.shield(opening)
    return ReadAccess(place.host, place.port, place.database, user, text)


async def _open(world: World, logins: ReadLogins, login: ReadLogin, password: str, asked_by: Asker) -> None:
    try:
        async with world.logins.turns.turn(asked_by.actor):
            await logins.open(replace(login, until=await _until(world, asked_by)), password)
    except BaseException:
        world.logins.opened.forget(logins.name(login.suffix))
        raise


async def bar(world: World, name: str) -> None:
    """Drop a login that wrote, or held all buffers, and keep it closed for `LOGIN_BARRED_SECONDS` (I13)."""
    world.logins.barred.due(name, now=world.clock.monotonic())
    if (logins := world.logins.read_logins) is not None:
        await _end(world, logins, ReadLogin(name.removeprefix(logins.name(""))))


def suffix_of(asker: Asker) -> str:
    """Return the part of a login's name that tells of its caller."""
    token = token_of(asker.actor)
    if token is not None:
        return f"t{token}"
    if asker.actor.startswith("oidc "):
        return f"o{sha256(asker.actor.encode()).hexdigest()[:20]}"
    return ROOT


async def _until(world: Context, asker: Asker) -> datetime | None:
    """Return when the caller's login ends by itself."""
    token = token_of(asker.actor)
    if token is not None:
        async with world.stores.begin() as tx:
            found = (await tx.tokens.called([token])).get(token)
        return None if found is None else found.expires_at
    return None if suffix_of(asker) == ROOT else world.clock.now() + KEPT


@retried
async def end_logins(world: World, *, term: Term) -> None:
    """Drop the logins whose callers have none any more."""
    if world.logins.read_logins is None:
        return
    found = await world.logins.read_logins.all()
    if not found:
        return
    wanted = [token for one in found if (token := _token(one)) is not None]
    async with world.stores.begin(term) as tx:
        tokens = await tx.tokens.called(wanted)
    for one in found:
        if is_over(one, tokens, now=world.clock.now()):
            await _end(world, world.logins.read_logins, one)


async def _end(world: World, logins: ReadLogins, login: ReadLogin) -> None:
    """End a login. One that cannot be dropped stays locked, and stops no other (I13)."""
    name = logins.name(login.suffix)
    try:
        if await logins.end(login.suffix):
            log.info("read_login.dropped", login=name)
    except Exception as error:  # noqa: BLE001 - any error concerns this login alone
        if world.calls.recorded.due(("read_login", name), now=world.clock.monotonic()):
            log.warning("read_login.not_dropped", login=name, error=str(error))


async def end_overdue(world: World, *, term: Term) -> int:
    """End the sessions that exceed their limits, so that none holds up others for longer (I13). Return their number.

    A login that wrote, or held all buffers, is closed for some time: it could do so again at once. Raises Deposed,
    Unavailable.
    """
    if world.logins.sessions is None:
        return 0
    ended = await world.logins.sessions.end_overdue()
    for one in ended:
        facts = {"pid": one.pid, "login": one.login, "reason": one.reason}
        log.warning("session.ended", **facts)
        async with world.stores.begin(term) as tx:
            await tx.events.append("session.ended", facts, now=world.clock.now())
        if one.barred:
            await bar(world, one.login)
    return len(ended)


def is_over(login: ReadLogin, tokens: Mapping[TokenId, ApiToken], *, now: datetime) -> bool:
    """Return whether the caller of a login has none any more."""
    token = _token(login)
    if token is not None:
        return token not in tokens or not tokens[token].valid(now)
    return login.until is not None and login.until <= now


def _token(login: ReadLogin) -> TokenId | None:
    number = login.suffix.removeprefix("t")
    return TokenId(int(number)) if login.suffix.startswith("t") and number.isdecimal() else None


def _password(key: str, user: str) -> str:
    digest = hmac.digest(key.encode(), user.encode(), "sha256")
    return urlsafe_b64encode(digest).decode()[:_PASSWORD_CHARACTERS]
