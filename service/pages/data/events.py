"""The event log, newest first, filtered by the kind and by a word in the facts."""

from dataclasses import dataclass
from typing import Final

from service.pages.asking import Ask
from service.pages.data.recent import recent
from service.pages.words import facts, instant

SHOWN: Final = 200


@dataclass(frozen=True, slots=True)
class Events:
    """`rows` are (id, instant, kind, facts). `until` is the last id of the window before, None at the beginning."""

    rows: tuple[tuple[int, str, str, str], ...]
    kind: str
    word: str
    kinds: tuple[str, ...]
    until: int | None
    moves: bool = False


async def read(ask: Ask) -> Events:
    """Read one window of the log."""
    found, first = await recent(ask, ask.number("until"))
    kind, word = ask.text("kind"), ask.text("word")
    rows = tuple((one.id, instant(one.at), one.kind, facts(one.facts)) for one in reversed(found))
    kept = [row for row in rows if row[2].startswith(kind) and word.lower() in row[3].lower()][:SHOWN]
    # A window with more matches than are shown goes on below the last one.
    before = kept[-1][0] - 1 if len(kept) == SHOWN else first
    kinds = tuple(sorted({row[2].partition(".")[0] for row in rows}))
    return Events(tuple(kept), kind, word, kinds, before if before > 0 else None)
