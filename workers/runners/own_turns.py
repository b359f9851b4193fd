"""Bound how many views compute at a time, each in a graph of its own.

Each has a session of the state store, which may take a gigabyte, and a core, for as long as its statement runs. Or it
has slots of Spark, which do not come back before its tasks end.
"""

from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Condition
from typing import Final

AT_ONCE: Final = 4
"""As many of a caller as scans of the database graph that run beside each other."""
_LOOK_SECONDS: Final = 0.5


@dataclass
class OwnTurns:
    """The turns of all graphs of one worker.

    Of a `total`, a caller takes another one only while more are free than it has, so that others find some.
    """

    at_once: int = AT_ONCE
    total: int | None = None
    running: Counter[str] = field(default_factory=Counter[str])
    _changed: Condition = field(default_factory=Condition)

    @contextmanager
    def turn(self, caller: str, over: Callable[[], bool], *, apart: bool = False) -> Generator[None]:
        """Wait for a turn and keep it, `apart` from all others of the caller or not.

        Raises InterruptedError if the generation is `over` meanwhile.
        """
        at_once = 1 if apart else self.at_once
        with self._changed:
            while self.running[caller] >= at_once or not self._room(caller):
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

    def _room(self, caller: str) -> bool:
        return self.total is None or self.total - self.running.total() > self.running[caller]
