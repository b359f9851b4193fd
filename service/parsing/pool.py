"""Implements `service.ports.parsing.Parsers` with a few processes, started on first use and ended when idle.

A process is killed if its call exceeds the budget or its caller goes away. The next call starts another one. The
processes and the places to wait for one are shared out among the callers. Next: `service.parsing.child`.
"""

import asyncio
import os
import pickle
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, ParamSpec, TypeVar

from service.domain.errors import Invalid, Unavailable
from service.parsing.child import HEAD, Work, framed
from service.turns import Turns

PROCESSES_MAX: Final = 4
"""A statement that uses up its budget occupies one process meanwhile. One caller has at most two of them."""
WAITING_MAX: Final = 200
"""Each waiting call keeps its text in memory, up to a megabyte."""
CPU_SECONDS: Final = 1.0
"""A hand-written statement of a few thousand characters takes a fiftieth of it."""
CPU_SECONDS_PER_CHARACTER: Final = 2.0 / (64 << 10)
"""Twice the time for rows of function calls, the slowest text that was measured."""
_WALL: Final = 20
"""A loaded machine gives a process only a fraction of a processor. Beyond this multiple of its budget it counts as
hung.
"""
_IDLE_SECONDS: Final = 300.0
_START_SECONDS: Final = 60.0

P = ParamSpec("P")
T = TypeVar("T")


def cpu_seconds(length: int) -> float:
    """Return the processor time that parsing a text of `length` characters may take."""
    return CPU_SECONDS + length * CPU_SECONDS_PER_CHARACTER


class ParserProcesses:
    """See `service.ports.parsing.Parsers`. `close` ends the idle processes."""

    def __init__(self, *, processes: int = PROCESSES_MAX, waiting: int = WAITING_MAX) -> None:
        self._turns = Turns("parses of long statements", running=processes, waiting=waiting)
        self._idle: list[Process] = []
        self._retiring: asyncio.TimerHandle | None = None

    def of(self, caller: str) -> "_Share":
        return _Share(self, caller)

    async def run(self, length: int, read: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.of("").run(length, read, *args, **kwargs)

    async def answer(self, work: Work, caller: str) -> Any:
        """Do the work in a process when it is the caller's turn, and return the result."""
        async with self._turns.turn(caller):
            succeeded, outcome = await self._answered(work)
        if not succeeded:
            raise outcome
        return outcome

    async def close(self) -> None:
        """End the idle processes."""
        if self._retiring is not None:
            self._retiring.cancel()
        for process in self._taken():
            await _end(process)

    async def _answered(self, work: Work) -> tuple[bool, Any]:
        process = self._idle.pop() if self._idle else await _started()
        answer = b""
        try:
            async with asyncio.timeout(work.cpu_seconds * _WALL + _START_SECONDS):
                answer = await _called(process, await asyncio.to_thread(framed, work))
        except TimeoutError:
            raise _too_long(work) from None
        except (asyncio.IncompleteReadError, ConnectionError):
            if await process.wait() == -signal.SIGPROF:
                raise _too_long(work) from None
            raise Unavailable("the process that parsed the statement ended: try again") from None
        finally:
            if not answer:
                await _end(process)
        self._idle.append(process)
        self._retire_later()
        # Unpickled in a thread, because a bound view of many scans takes a while.
        return await asyncio.to_thread(pickle.loads, answer)

    def _retire_later(self) -> None:
        if self._retiring is not None:
            self._retiring.cancel()
        self._retiring = asyncio.get_running_loop().call_later(_IDLE_SECONDS, self._retire)

    def _retire(self) -> None:
        for process in self._taken():
            assert process.stdin is not None
            process.stdin.close()  # it ends with its input

    def _taken(self) -> list[Process]:
        taken, self._idle = self._idle, []
        return taken


@dataclass(frozen=True, slots=True)
class _Share:
    """The `Parsers` of one caller."""

    processes: ParserProcesses
    caller: str

    def of(self, caller: str) -> "_Share":
        return _Share(self.processes, caller)

    async def run(self, length: int, read: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.processes.answer(Work(read, args, kwargs, cpu_seconds(length)), self.caller)


async def _started() -> Process:
    # The service's environment is not passed on, because it may hold secrets.
    environment = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "PATH": os.defpath}
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "service.parsing.child", stdin=PIPE, stdout=PIPE, env=environment
    )


async def _called(process: Process, request: bytes) -> bytes:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(request)
    await process.stdin.drain()
    size = int.from_bytes(await process.stdout.readexactly(HEAD), "big")
    return await process.stdout.readexactly(size)


async def _end(process: Process) -> None:
    if process.returncode is None:
        process.kill()
    # A pipe whose content nobody reads stays open for ever.
    await process.communicate()


def _too_long(work: Work) -> Invalid:
    return Invalid(
        f"the statement takes more than {work.cpu_seconds:.1f} s to be parsed: make it shorter or nest it less deeply"
    )
