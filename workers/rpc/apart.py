"""Have processes of their own compute what users ask for, one question at a time each (I13).

A query can take all memory that its process has, or run where nothing interrupts it. Then its process ends, and nothing
else does: epochs and the queries of other callers go on. A process starts when somebody looks at a lake, with the first
question that finds none ready, and when the questions of all others take long. It stays.
"""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from queue import Empty, LifoQueue
from typing import Any, Final

import structlog

from service.protocol.request import Rejected, Response, Select, Verify

log = structlog.get_logger("apart")

AT_ONCE: Final = 3
"""So many processes: the service asks for so much at once, of different callers (`Calls.verifications`)."""
_START_SECONDS: Final = 120.0
_STARTS_MAX: Final = 2
_LONG_SECONDS: Final = 3.0
"""After so long another process starts, for whoever comes next."""
_REPLACED_SECONDS: Final = 10.0
"""The service waits for an answer somewhat longer than this."""
_LATE_SECONDS: Final = 4.0
"""A process ends a query in time itself, unless it cannot."""
_ENDED: Final = "the query took more memory than the process has that computes queries in Spark: "
_SELECT_LESS: Final = "select fewer or narrower rows"
_USE_STORE: Final = "verify with engine=store"
_NO_START: Final = "the process that computes queries does not start: see the log"
_READY: Final = "ready"

Question = Select | Verify
Answer = Callable[[Question], Response]
Begin = Callable[[], Answer]
"""Prepares a process, and returns what answers questions there. It can be pickled."""


@dataclass(frozen=True, slots=True)
class _Process:
    process: BaseProcess
    connection: Connection

    @property
    def waits(self) -> bool:
        """Whether it waits for a question. The pipe of one that has ended is at its end."""
        return not self.connection.poll()

    def ask(self, question: Question | None, seconds: float) -> Any:
        """Return what it says. None: it has ended, or said nothing for so long, and is ended then."""
        with suppress(EOFError, OSError):
            if question is not None:
                self.connection.send(question)
            if self.connection.poll(seconds):
                return self.connection.recv()
        self.process.kill()
        self.process.join()
        return None


@dataclass(eq=False)
class Apart:
    """The processes. `begin` runs in each of them.

    They start in the background, so nobody pays for a process that the query of somebody else takes or has ended: a
    question takes the first one that is ready, and its own time passes meanwhile.
    """

    begin: Begin
    _ready: LifoQueue[_Process | None] = field(default_factory=LifoQueue)
    """None tells whoever waits that a start has failed."""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _missing: int = AT_ONCE
    """How many of them neither run nor start."""
    _failed: bool = False
    """Whether the last start has failed."""

    def prepare(self) -> None:
        """Start the first process in the background: who looks at a lake soon has questions."""
        self._assure_one(AT_ONCE)

    def answer(self, question: Question) -> Response:
        """Answer a question. Every error becomes a `Rejected` answer."""
        ends = _now() + question.timeout_ms / 1000
        running = self._take(ends)
        if running is None:
            return Rejected(id=question.id, error=_NO_START if self._failed else late(question))
        asked = question.model_copy(update={"timeout_ms": max(int((ends - _now()) * 1000), 1)})
        with self._another_one():
            answer = running.ask(asked, asked.timeout_ms / 1000 + _LATE_SECONDS)
        if answer is None:
            log.warning("apart.ended", question=question.id)
            error = late(question) if _now() >= ends else _ended(question)
            # Its caller has the next turn when there is another process, and so leaves those of others alone.
            self._start().join(_REPLACED_SECONDS)
            return Rejected(id=question.id, error=error)
        self._ready.put(running)
        if isinstance(answer, Rejected):
            # It knows of the time that was left.
            return answer.model_copy(update={"error": answer.error.replace(late(asked), late(question))})
        return answer

    def _take(self, ends: float) -> _Process | None:
        """Take a process that is ready, the one that was used last. None: there is none in time."""
        self._assure_one()
        while True:
            try:
                running = self._ready.get(timeout=max(ends - _now(), 0))
            except Empty:
                return None
            if running is None:
                if self._failed:
                    return None
            elif running.waits:
                return running
            else:
                self._start()

    @contextmanager
    def _another_one(self) -> Generator[None]:
        """Have another process started if this takes long."""
        timer = threading.Timer(_LONG_SECONDS, self._assure_one)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _assure_one(self, missing: int = 1) -> None:
        """Start a process if none is ready and so many are missing."""
        with self._lock:
            wanted = self._missing >= missing and not any(self._ready.queue)
            self._missing -= wanted
        if wanted:
            self._start()

    def _start(self) -> threading.Thread:
        """Start a process: one that is missing, or in place of one that has ended."""
        self._failed = False
        starting = threading.Thread(target=self._fill, daemon=True, name="apart")
        starting.start()
        return starting

    def _fill(self) -> None:
        started = next(filter(None, (self._started() for _ in range(_STARTS_MAX))), None)
        with self._lock:
            self._failed = started is None
            self._missing += started is None
        self._ready.put(started)

    def _started(self) -> _Process | None:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs, self.begin), name="queries", daemon=True)
        process.start()
        theirs.close()
        started = _Process(process, ours)
        return started if started.ask(None, _START_SECONDS) == _READY else None


def _ended(question: Question) -> str:
    return _ENDED + (_SELECT_LESS if isinstance(question, Select) else _USE_STORE)


def late(question: Question) -> str:
    """Return the error of a query that took too long, in Postgres's words."""
    return f"canceling statement due to statement timeout after {question.timeout_ms} ms"


def _serve(connection: Connection, begin: Begin) -> None:
    """Answer questions until the worker ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_the_worker, daemon=True).start()
    answer = begin()
    connection.send(_READY)
    with suppress(EOFError):
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
