"""Bound how many views of one caller compute at a time, each in a graph of its own.

Each has a session of the state store, which may take a gigabyte, and a core, for as long as its statement runs.
"""

from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Condition
from typing import Final

AT_ONCE: Final = 4
"""As many as scans of the database graph that run beside each other."""
_LOOK_SECONDS: Final = 0.5


@dataclass
class OwnTurns:
    """The turns of all graphs of one worker."""

    at_once: int = AT_ONCE
    running: Counter[str] = field(default_factory=Counter[str])
    _changed: Condition = field(default_factory=Condition)

    @contextmanager
    def turn(self, caller: str, over: Callable[[], bool], *, apart: bool = False) -> Generator[None]:
        """Wait for a turn and keep it, `apart` from all others of the caller or not.

        Raises InterruptedError if the generation is `over` meanwhile.
        """
        at_once = 1 if apart else self.at_once
        with self._changed:
            while self.running[caller] >= at_once:
                if over():
                    raise InterruptedError("the generation is over")
                self._changed.wait(_LOOK_SECONDS)
            self.running[caller] += 1
        try:
            yield
        finally:
            with self._changed:
                self.running[caller] -= 1
                self._changed.notify_all()
