"""The main loop of a parser process: read a call from stdin, answer on stdout, until stdin ends.

A call has a budget of processor time. The kernel kills a process that exceeds it by SIGPROF, whose default action is
kept, even when the service that started it is gone. Next: `service.parsing.pool`, which reads the answer.
"""

import pickle
import resource
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Any, Final

from service.domain.errors import Invalid, MetaError

MEMORY_MAX: Final = 2 << 30
"""Bytes of address space, about ten times as much as the tree of a statement of 1 MiB takes."""
HEAD: Final = 8


@dataclass(frozen=True, slots=True)
class Work:
    """A call of `read` with the arguments, and the processor time that it may take."""

    read: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    cpu_seconds: float


def framed(value: object) -> bytes:
    """Return a value as the bytes of one message."""
    content = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    return len(content).to_bytes(HEAD, "big") + content


def main() -> None:
    """Answer calls until stdin ends."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_MAX, MEMORY_MAX))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # The service stops its parsers itself. An interrupt of the terminal would reach its whole process group.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    requests, answers = sys.stdin.buffer, sys.stdout.buffer
    while (work := _next(requests)) is not None:
        signal.setitimer(signal.ITIMER_PROF, work.cpu_seconds)
        answer = framed(_outcome(work))
        signal.setitimer(signal.ITIMER_PROF, 0)
        answers.write(answer)
        answers.flush()


def _next(requests: IO[bytes]) -> Work | None:
    head = requests.read(HEAD)
    if len(head) < HEAD:
        return None
    return pickle.loads(requests.read(int.from_bytes(head, "big")))  # noqa: S301 - sent by the parent service


def _outcome(work: Work) -> tuple[bool, object]:
    """Return (whether it succeeded, the result or the error)."""
    try:
        return True, work.read(*work.args, **work.kwargs)
    except MetaError as error:
        return False, error
    except MemoryError:
        return False, Invalid("the statement needs too much memory to be parsed: make it shorter")
    except Exception as error:  # noqa: BLE001 - the service logs it like an error of its own
        return False, RuntimeError(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
