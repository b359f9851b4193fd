"""Have processes of their own compute what users ask for, one question at a time each (I13).

A query can take all memory that its process has, or run where nothing interrupts it. Then its process ends, and nothing
else does: epochs and the queries of other callers go on. A process starts with the first question that finds none free,
and stays.
"""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from queue import Empty, LifoQueue
from typing import Any, Final

import structlog

from service.protocol.request import Rejected, Response, Select

log = structlog.get_logger("apart")

AT_ONCE: Final = 2
"""So many processes: the service asks for so much at once, of different callers (`Calls.verifications`)."""
_START_SECONDS: Final = 60.0
_LATE_SECONDS: Final = 2.0
"""A process ends a query in time itself, unless it cannot."""
_ENDED: Final = (
    "the query took more memory than the process has that computes queries over a lake: select fewer or narrower rows"
)
_READY: Final = "ready"

Answer = Callable[[Select], Response]
Begin = Callable[[], Answer]
"""Prepares a process, and returns what answers questions there. It can be pickled."""


@dataclass(frozen=True, slots=True)
class _Process:
    process: BaseProcess
    connection: Connection

    def ask(self, question: Select | None, seconds: float) -> Any:
        """Return what it says. None: it has ended, or said nothing for so long, and is ended then."""
        with suppress(EOFError, OSError):
            if question is not None:
                self.connection.send(question)
            if self.connection.poll(seconds):
                return self.connection.recv()
        self.process.kill()
        self.process.join()
        return None


@dataclass(eq=False, slots=True)
class Apart:
    """The processes. `begin` runs in each of them."""

    begin: Begin
    _free: LifoQueue[_Process | None] = field(init=False)

    def __post_init__(self) -> None:
        self._free = LifoQueue()
        for _ in range(AT_ONCE):
            self._free.put(None)

    def answer(self, question: Select) -> Response:
        """Answer a question. Every error becomes a `Rejected` answer."""
        seconds = question.timeout_ms / 1000
        late = Rejected(
            id=question.id, error=f"canceling statement due to statement timeout after {question.timeout_ms} ms"
        )
        try:
            running = self._free.get(timeout=seconds)
        except Empty:
            return late
        try:
            if running is None or not running.process.is_alive():
                running = self._start()
            if running is None:
                return Rejected(id=question.id, error="the process that computes queries does not start: see the log")
            began = _now()
            answer = running.ask(question, seconds + _LATE_SECONDS)
            if answer is not None:
                return answer
            log.warning("apart.ended", question=question.id)
            return late if _now() - began >= seconds else Rejected(id=question.id, error=_ENDED)
        finally:
            self._free.put(running)

    def _start(self) -> _Process | None:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs, self.begin), name="queries", daemon=True)
        process.start()
        theirs.close()
        started = _Process(process, ours)
        return started if started.ask(None, _START_SECONDS) == _READY else None


def _serve(connection: Connection, begin: Begin) -> None:
    """Answer questions until the worker ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_the_worker, daemon=True).start()
    answer = begin()
    connection.send(_READY)
    while True:
        connection.send(answer(connection.recv()))


def _end_with_the_worker() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    # The JVM ends when its standard input does.
    os._exit(0)


def _now() -> float:
    return time.monotonic()  # noqa: TID251 - how long somebody waits
