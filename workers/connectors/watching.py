"""Look at what is read in place, in a thread of its own, so that no barrier waits for its storage."""

import threading
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Final

import structlog

from service.protocol.delta import DeltaPlace
from service.protocol.relation import Relation
from workers.connectors.limited import CALLER, TEXT_MAX

log = structlog.get_logger(__name__)
POLL_SECONDS: Final = 1.0
"""How often is looked for something new."""
SHARE: Final = 0.1
"""Looking takes at most this share of the time. A folder of many files takes long to list."""
REST_SECONDS: Final = 120.0
"""The longest rest. A look may have waited for another one of its caller."""
LONG_SECONDS: Final = 0.1
"""A table whose last look took more of the processor has its next one in turn with others of this kind."""
FIRST_SECONDS: Final = 2.0
"""For so long an epoch waits for the first look at a folder, whatever its storage does, so that views find the files
that are there already.
"""
_LONG_LOOKS: Final = defaultdict[str, threading.Lock](threading.Lock)
"""By caller. Held for a long look and for the rest after it, so that all long looks of a caller take that share of the
time together: while a folder is listed, Python runs no barrier. A look that waits for its storage is not long. With one
lock for all, 12 tables of others let a folder wait for two minutes.
"""


@dataclass
class FirstLooks:
    """How long the epochs of all graphs wait for first looks: so many seconds, of which a tenth of the time flows back.
    Each of a caller's 45 large folders took them for itself.
    """

    clock: Callable[[], float] = time.monotonic  # noqa: TID251 - nobody else knows how long a storage takes
    left: float = FIRST_SECONDS
    since: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def wait(self, looked: threading.Event) -> None:
        """Wait for a first look, if time is left for it."""
        with self._lock:
            now = self.clock()
            left = min(FIRST_SECONDS, self.left + SHARE * (now - self.since))
            looked.wait(left)
            self.since = self.clock()
            self.left = left - (self.since - now)


_FIRST_LOOKS: Final = FirstLooks()


@dataclass
class Watching:
    """Looks again and again. `broken` is why the table cannot be followed further. `waiting` is why it cannot be looked
    at now: its storage is away, and may come back.
    """

    place: DeltaPlace
    relation: Relation
    broken: str | None = field(default=None, kw_only=True)
    waiting: str | None = field(default=None, kw_only=True)
    caller: str = field(default="", kw_only=True)
    """The user whose table is watched."""
    _looked: threading.Event = field(default_factory=threading.Event, kw_only=True)
    _ended: threading.Event = field(default_factory=threading.Event, kw_only=True)

    def start(self, *, first: bool = False) -> None:
        """Begin to look, and wait for the `first` look at a table, if there is time."""
        threading.Thread(target=self._run, daemon=True, name=f"lake-{self.relation.id}").start()
        if first:
            _FIRST_LOOKS.wait(self._looked)

    def end(self) -> None:
        """Look no more."""
        self._ended.set()

    @property
    def looked(self) -> bool:
        """Whether `waiting` says how it is now."""
        return self._looked.is_set()

    @property
    def over(self) -> bool:
        """Whether nothing is looked for any more."""
        return self.broken is not None or self._ended.is_set()

    def look(self) -> None:
        """Take what is new. Raises OSError or RefusedTableError while the storage is away."""
        raise NotImplementedError

    def try_to_look(self) -> None:
        """Take what is new, or note why that is not possible now."""
        try:
            self.look()
        except Exception as error:  # noqa: BLE001 - whatever a file makes of it, it is looked at again
            said = (str(error) or type(error).__name__)[:TEXT_MAX]
            if self.waiting is None:
                log.warning("lake.away", relation=self.relation.name, error=said)
            self.waiting = f"{self.place.location} cannot be read now, and is tried again by itself: {said}"
        else:
            self.waiting = None
        self._looked.set()

    def _run(self) -> None:
        # A commit that takes long delays no look.
        CALLER.set(f"{self.caller} looks")
        computed = 0.0
        while not self.over:
            with _LONG_LOOKS[self.caller] if computed > LONG_SECONDS else nullcontext():
                if self.over:
                    return
                began, before = time.monotonic(), time.thread_time()  # noqa: TID251 - a thread of its own paces itself
                self.try_to_look()
                took = time.monotonic() - began  # noqa: TID251 - as above
                computed = time.thread_time() - before
                self._ended.wait(min(max(POLL_SECONDS, took / SHARE - took), REST_SECONDS))
