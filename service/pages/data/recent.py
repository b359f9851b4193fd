"""The newest events. The log is read from an id on, so a window of ids is read from its end."""

from collections.abc import Sequence
from typing import Final

from service.operations.status import history
from service.pages.asking import Ask
from service.ports.records import Event

WINDOW: Final = 1_000
"""How many ids of events are looked through."""


async def recent(ask: Ask, until: int | None = None) -> tuple[Sequence[Event], int]:
    """Return the events with the `WINDOW` ids up to `until`, or up to the newest, oldest first, and the first id.

    Events that only admins may see are left out for others.
    """
    last = await history.newest_event(ask.world) if until is None else until
    first = max(last - WINDOW, 0)
    found, _ = await history.events(ask.world, lambda event: event, after=first, limit=WINDOW, discreet=ask.admin)
    return [one for one in found if one.id <= last], first
