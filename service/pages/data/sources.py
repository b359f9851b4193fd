"""Sources: how far each is behind, the log that its server keeps for it, and the tables that follow it."""

from collections.abc import Sequence
from dataclasses import dataclass

from service.operations.sources import shown
from service.operations.sources.shown import CleanupView, SourceView
from service.pages.asking import Ask


@dataclass(frozen=True, slots=True)
class Sources:
    """The sources, and what is still to be removed from servers."""

    sources: Sequence[SourceView]
    cleanups: Sequence[CleanupView]
    moves: bool


async def read(ask: Ask) -> Sources:
    """Read both lists."""
    found = await shown.sources(ask.world)
    moves = any(table.state == "backfilling" for one in found for table in one.tables)
    return Sources(found, await shown.cleanups(ask.world), moves)
