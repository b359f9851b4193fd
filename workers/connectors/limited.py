"""Run calls in processes of their own whose memory is bounded (I13): what they take depends on data of others.

`limited` and `Standing` ask, and `python -m workers.connectors.limited` answers.
"""

import atexit
import os
import pickle
import re
import resource
import select
import signal
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final, ParamSpec, TypeVar
from weakref import WeakSet

P = ParamSpec("P")
T = TypeVar("T")
CALLER: ContextVar[str] = ContextVar("CALLER", default="")
"""The user who created the job for which this thread works."""
_LOOK_SECONDS: Final = 1.0
IDLE_SECONDS: Final = 60.0
_NO_STACK: Final = re.compile(r"Resource temporarily unavailable|can't start new thread")
"""Libraries say this if there is no memory for the stack of another thread."""
TEXT_MAX: Final = 1_000
"""The characters of an error's text. One of 80 MB was no answer to a barrier that the service takes."""


_Answer = tuple[Exception | str | None, Any]
"""An error, or the text of one that cannot be pickled; and a result."""


class EndedError(OSError):
    """The process ended before it answered, or with an error of a library that cannot be pickled."""


def limited(memory: int, seconds: float | None, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return what a function of a module returns, or raise what it raises. Arguments and result are pickled.

    Raises MemoryError if it allocates more than `memory` bytes, subprocess.TimeoutExpired after `seconds`, and
    EndedError if the process ended otherwise.
    """
    asked = pickle.dumps((call, args, kwargs), pickle.HIGHEST_PROTOCOL)
    pipe = subprocess.PIPE
    done = subprocess.run(  # noqa: S603 - no shell
        _command(memory), input=asked, stdout=pipe, stderr=pipe, env=_environment(), timeout=seconds, check=False
    )
    if done.returncode == 0:
        return _result(pickle.loads(done.stdout))  # noqa: S301 - its own answer
    raise _ended(done.returncode, done.stderr)


@dataclass(eq=False)
class Standing:
    """A process for calls, one after the other: to start one for each call takes a second.

    It starts with a call. It ends when it has had none for `IDLE_SECONDS`, and when one has taken all its memory.
    """

    memory: int
    _process: "subprocess.Popen[bytes] | None" = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        _STANDING.add(self)

    @property
    def over(self) -> bool:
        """Whether its process has ended, and no call is under way."""
        process = self._process
        return not self._lock.locked() and process is not None and process.poll() is not None

    def end(self) -> None:
        """End the process, if there is one, also in the midst of a call."""
        if (process := self._process) is not None:
            process.kill()
            self._end(process)

    def call(self, seconds: float, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Wait for the calls before, and return what this one returns, or raise what it raises. Raises as `limited`."""
        asked = pickle.dumps((call, args, kwargs), pickle.HIGHEST_PROTOCOL)
        with self._lock:
            answer = self._answer(asked, seconds) or self._answer(asked, seconds)
            if answer is None:
                raise EndedError("the process ended before it was asked")
            return _result(answer)

    def _answer(self, asked: bytes, seconds: float) -> _Answer | None:
        """Return the answer. None: the process had just ended, because it had no call for long."""
        process, late = self._running(), threading.Event()
        assert process.stdin is not None
        assert process.stdout is not None

        def end() -> None:
            late.set()
            process.kill()

        timer = threading.Timer(seconds, end)
        timer.daemon = True
        timer.start()
        try:
            with suppress(BrokenPipeError):  # the call is too large, and answered in the midst of it
                process.stdin.write(asked)
                process.stdin.flush()
            answer: _Answer = pickle.load(process.stdout)  # noqa: S301 - its own answer
        except (OSError, EOFError, pickle.UnpicklingError):
            code = self._end(process)
        else:
            if late.is_set() or isinstance(answer[0], MemoryError):
                self._end(process)
            return answer
        finally:
            timer.cancel()
        if late.is_set():
            raise subprocess.TimeoutExpired(process.args, seconds)
        if code == 0:
            return None
        raise _ended(code, b"")

    def _running(self) -> "subprocess.Popen[bytes]":
        if self._process is None:
            pipe, command = subprocess.PIPE, [*_command(self.memory), str(IDLE_SECONDS)]
            self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, env=_environment())  # noqa: S603 - no shell
        return self._process

    def _end(self, process: "subprocess.Popen[bytes]") -> int:
        """Wait for the end of a process that gets no further call, and return how it ended."""
        self._process = None
        with suppress(OSError, ValueError):
            process.communicate()
        return process.wait()


_STANDING: Final = WeakSet[Standing]()


@atexit.register
def _end_all() -> None:
    for one in list(_STANDING):
        one.end()


def _command(memory: int) -> list[str]:
    # `workers.spark.session.start` has put this code on the path of the worker's processes.
    return [sys.executable, "-m", __spec__.name, str(memory)]


def _environment() -> dict[str, str]:
    """With a thread for each core of a large machine, the stacks of Arrow's and delta-rs's would take all memory."""
    return {**os.environ, "OMP_NUM_THREADS": "4", "TOKIO_WORKER_THREADS": "4"}


def _result(answer: _Answer) -> Any:
    error, result = answer
    if isinstance(error, str):
        raise EndedError(error)
    if error is not None:
        raise error
    return result


def _ended(code: int, said: bytes) -> Exception:
    """Return the error of a process that has not answered."""
    if code < 0 and code != -signal.SIGKILL:
        return MemoryError()  # an allocation that fails ends a library with a signal
    last = said.decode(errors="replace").strip().rpartition("\n")[2]
    return EndedError(f"the process ended with {code}: {last}")


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
    """Answer calls until there are no more, or none for some seconds."""
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    memory, *idle = map(float, sys.argv[1:])
    resource.setrlimit(resource.RLIMIT_DATA, (int(memory), int(memory)))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # A library may print, which is no answer.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    while select.select([sys.stdin.buffer], [], [], *idle)[0]:
        try:
            # The modules of the call are imported here, and their memory is counted as well.
            call, args, kwargs = pickle.load(sys.stdin.buffer)  # noqa: S301 - sent by the worker
        except EOFError:
            return
        except Exception as error:  # noqa: BLE001 - as below
            answers.write(_pickled((error, None)))
            return  # somewhere in the midst of a call
        answers.write(_pickled(_answered(call, args, kwargs)))
        answers.flush()


def _answered(call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Exception | None, Any]:
    try:
        return None, call(*args, **kwargs)
    except Exception as error:  # noqa: BLE001 - raised there
        # It may quote what was read, of any length.
        error.args = tuple(one[:TEXT_MAX] if isinstance(one, str) else one for one in error.args)
        return MemoryError() if _NO_STACK.search(str(error)) else error, None


def _pickled(answer: tuple[Exception | None, Any]) -> bytes:
    try:
        return pickle.dumps(answer, pickle.HIGHEST_PROTOCOL)
    except MemoryError as error:
        return pickle.dumps((error, None))
    except (pickle.PicklingError, TypeError, AttributeError):
        # The classes of this module have another name here than where it is raised.
        return pickle.dumps((f"{type(answer[0]).__name__}: {answer[0]}"[:TEXT_MAX], None))


if __name__ == "__main__":
    main()
