"""Admit or refuse callers, and read and shorten the audit trail. `Stores.begin` records what was accepted."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from service.domain.errors import Forbidden
from service.domain.roles import Role, permits
from service.operations.world import World
from service.ports.audit import Asker, AuditEntry, Outcome

KEPT: Final = timedelta(days=90)
_WORD: Final = re.compile(r"[\s(]*+([A-Za-z]{1,20})")


@dataclass(frozen=True, slots=True)
class AuditPage:
    """A page of entries, newest first. `next` is the `before` of the following page, null on the last one."""

    items: Sequence[AuditEntry]
    next: str | None


async def admit(world: World, asker: Asker, needs: Role) -> None:
    """Raise Forbidden unless the asker's role permits a call. Record one such refusal of an actor and route a minute.

    A statement counts as a route of its own.
    """
    if permits(asker.role, needs):
        return
    call = asker.call
    if call is not None:
        key = (asker.actor, call.method, call.route, first_word(call.statement or ""))
        if world.calls.recorded.due(key, now=world.clock.monotonic()):
            async with world.stores.begin() as tx:
                await tx.audit.add(asker, Outcome.REFUSED)
    raise Forbidden(needs=needs, has=asker.role)


def first_word(statement: str) -> str:
    """Return which kind of statement a text is, as far as that is plain. A text may be varied without an end."""
    found = _WORD.match(statement)
    return "" if found is None else found[1].upper()


async def entries(
    world: World, *, limit: int, before: int | None, discreet: bool, actor: str | None, target: str | None
) -> AuditPage:
    """Return the newest entries before `before`, newest first. `discreet`: also those that only admins see."""
    async with world.calls.long_pages.turn(), world.stores.begin() as tx:
        found = await tx.audit.newest(before=before, limit=limit + 1, discreet=discreet, actor=actor, target=target)
    shown = tuple(found[:limit])
    return AuditPage(shown, str(shown[-1].id) if len(found) > limit else None)
