"""Divide places among callers, so that no caller takes them all (I13).

A caller may take another place only while more places are free than it holds. So one caller takes at most half of them,
a second one half of what is left, and so on. A caller that holds none always finds one, unless as many callers hold
some as the places can be halved. Nobody has to be known beforehand, and nothing is ever taken back.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

_REMEMBERED: Final = 1_000


def has_room(places: int, *, taken: int, own: int) -> bool:
    """Return whether a caller that holds `own` of the taken places may take another one."""
    return places - taken > own


@dataclass(slots=True)
class Shares:
    """The places, and how many of them each caller holds."""

    places: int
    each: int | None = None
    """How many of them one caller has at most, besides."""
    held: Counter[str] = field(default_factory=Counter[str])
    taken: int = 0
    _starts: int = 0
    _last: dict[str, int] = field(default_factory=dict[str, int])
    """The number of the last start of each of the callers that lately started something, in the order of the starts."""

    def room(self, caller: str) -> bool:
        """Return whether the caller may take another place."""
        own = self.held[caller]
        return has_room(self.places, taken=self.taken, own=own) and (self.each is None or own < self.each)

    def take(self, caller: str) -> None:
        """Give the caller a place."""
        self.taken, self._starts = self.taken + 1, self._starts + 1
        self.held[caller] += 1
        self._last.pop(caller, None)
        self._last[caller] = self._starts
        if len(self._last) > _REMEMBERED:
            del self._last[next(iter(self._last))]

    def free(self, caller: str) -> None:
        """Take a place back."""
        self.taken -= 1
        self.held[caller] -= 1
        if not self.held[caller]:
            del self.held[caller]

    def next(self, waiting: Sequence[str]) -> int | None:
        """Return which of the waiting callers takes the next place, None if none of them may.

        It is one that holds the fewest places. Among these it is one whose last start is the longest ago.
        """
        able = [number for number, caller in enumerate(waiting) if self.room(caller)]
        return min(able, key=lambda n: (self.held[waiting[n]], self._last.get(waiting[n], 0), n), default=None)
