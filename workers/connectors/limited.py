"""Run a call in a process of its own whose memory is bounded (I13): what it takes depends on data of others.

`limited` asks, and `python -m workers.connectors.limited` answers.
"""

import os
import pickle
import resource
import signal
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
CALLER: ContextVar[str] = ContextVar("CALLER", default="")
"""The user who created the job for which this thread works."""
_LOOK_SECONDS: Final = 1.0
_CONTAINER: Final = Path("/sys/fs/cgroup/memory.max")


class EndedError(OSError):
    """The process ended before it answered."""


def half_of_memory() -> int:
    """Return half of the bytes that the machine has, or the container."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, ValueError):  # "max" is no limit
        return min(machine, int(_CONTAINER.read_text())) // 2
    return machine // 2


def limited(memory: int, seconds: float | None, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return what a function of a module returns, or raise what it raises. Arguments and result are pickled.

    Raises MemoryError if it allocates more than `memory` bytes, subprocess.TimeoutExpired after `seconds`, and
    EndedError if the process ended otherwise.
    """
    # `workers.spark.session.start` has put this code on the path of the worker's processes.
    command = [sys.executable, "-m", __spec__.name, str(memory)]
    asked = pickle.dumps((call, args, kwargs), pickle.HIGHEST_PROTOCOL)
    done = subprocess.run(command, input=asked, capture_output=True, timeout=seconds, check=False)  # noqa: S603 - no shell
    if done.returncode == 0:
        error, result = pickle.loads(done.stdout)  # noqa: S301 - its own answer
        if error is not None:
            raise error
        return result
    if done.returncode < 0 and done.returncode != -signal.SIGKILL:
        raise MemoryError  # an allocation that fails ends a library with a signal
    last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
    raise EndedError(f"the process ended with {done.returncode}: {last}")


@dataclass
class MemoryShares:
    """The memory of processes. Each caller has one at a time, with half of what those of others leave: nobody waits for
    somebody else, and together they take no more than there is, but for the `least` of each.
    """

    total: int
    least: int = 512 << 20
    _held: dict[str, int] = field(default_factory=dict[str, int])
    _turns: defaultdict[str, threading.Lock] = field(default_factory=lambda: defaultdict(threading.Lock))
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def most(self) -> int:
        """The bytes of a caller while no other has any."""
        return max(self.total // 2, self.least)

    @contextmanager
    def share(self, caller: str) -> Generator[int]:
        """Wait for the other processes of the caller, and yield how many bytes this one may take."""
        with self._lock:
            turn = self._turns[caller]
        with turn:
            with self._lock:
                memory = max((self.total - sum(self._held.values())) // 2, self.least)
                self._held[caller] = memory
            try:
                yield memory
            finally:
                with self._lock:
                    del self._held[caller]


def _end_with(parent: int) -> None:
    """End this process when the one that started it has ended: nobody takes the answer."""
    while os.getppid() == parent:
        threading.Event().wait(_LOOK_SECONDS)
    os._exit(1)


def main() -> None:
    """Answer one call."""
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    memory = int(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        # The modules of the call are imported here, and their memory is counted as well.
        call, args, kwargs = pickle.load(sys.stdin.buffer)  # noqa: S301 - sent by the worker
        answer = None, call(*args, **kwargs)
    except Exception as error:  # noqa: BLE001 - raised there
        answer = error, None
    sys.stdout.buffer.write(pickle.dumps(answer, pickle.HIGHEST_PROTOCOL))


if __name__ == "__main__":
    main()
