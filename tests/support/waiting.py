"""Waiting for what another process does, and doing something over and over meanwhile."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self, TypeVar

T = TypeVar("T")
PATIENCE = 300.0
"""How long anything may take before a test calls it stuck: the machine may be busy with other things."""
SHORTEST, LONGEST = 0.02, 0.25
"""Between two looks, and between two turns of what is repeated: what is waited for needs the processors more."""


def until(look: Callable[[], T | None], *, what: str | Callable[[], object], seconds: float = PATIENCE) -> T:
    """Return what `look` gives once it is neither None nor False; fail after a generous deadline, never pass early."""
    deadline = time.monotonic() + seconds  # noqa: TID251 - a deadline, not an assertion on time
    pause = SHORTEST
    while True:
        found = look()
        if found is not None and found is not False:
            return found
        if time.monotonic() > deadline:  # noqa: TID251 - as above
            said = what if isinstance(what, str) else what()
            raise AssertionError(f"not within {seconds:.0f} s: {said}")
        time.sleep(pause)  # noqa: TID251 - another process is asked over HTTP: there is no signal to wait on
        pause = min(pause * 1.5, LONGEST)


@dataclass
class Repeating:
    """A call that is repeated on a thread of its own until told to stop; what it raises is raised at the end. `pause`
    is that between two turns, in seconds.
    """

    call: Callable[[int], None]
    pause: float = SHORTEST
    stop: threading.Event = field(default_factory=threading.Event)
    turns: int = 0
    error: BaseException | None = None

    def __enter__(self) -> Self:
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Stop, and raise what the call raised."""
        self.stop.set()
        self.thread.join(timeout=PATIENCE)
        assert not self.thread.is_alive(), "a call does not return"
        if self.error is not None:
            raise self.error

    def _run(self) -> None:
        while not self.stop.is_set():
            self.turns += 1
            try:
                self.call(self.turns)
            except BaseException as error:  # noqa: BLE001 - handed to the test
                self.error = error
                return
            self.stop.wait(self.pause)
