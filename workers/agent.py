"""The worker's loop: take a barrier, run the epoch, answer; and beside it, on a thread of its own, answer questions.

It knows no Spark: an `Executor` runs epochs, and a `Responder` answers questions. Every call is a heartbeat; the
questions' long poll goes on while an epoch runs, so a long epoch is not taken for a dead worker. A worker that is
told it is of the past stops at once (I7). Next: `workers.executors.graph`.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, TypeVar

import structlog

from service.protocol.api import Registered, Registration
from service.protocol.barrier import Barrier
from service.protocol.ids import Epoch, Generation
from service.protocol.report import Collected, Failed
from service.protocol.request import Analyzed, Rejected, Request, Verified
from workers.meta_client import MetaClient, ServiceAwayError, StaleWorkerError

TRIES_MAX = 300
"""About ten minutes: a worker whose service never comes back must not stay for ever (I9)."""

log = structlog.get_logger("agent")
T = TypeVar("T")


class Executor(Protocol):
    """Runs epochs."""

    def run(self, barrier: Barrier) -> Collected:
        """Run one epoch; everything it wrote is durable when it returns."""
        ...


@dataclass
class Agent:
    """One worker. `explain` turns an epoch's error into an answer. It and `respond` give None when this worker can run
    nothing any more: it ends without a word, and is replaced as if it had been killed.
    """

    registration: Registration
    client: MetaClient
    executor: Executor
    respond: Callable[[Request], Analyzed | Verified | Rejected | None]
    explain: Callable[[Barrier, Exception], Failed | None]
    stop: threading.Event = field(default_factory=threading.Event)
    registered: Registered | None = None
    """What the service said when this worker presented itself."""

    def run(self) -> None:
        """Work until `stop` is set or the service says that this worker is of the past."""
        self.registered = self._keep_trying(lambda: self.client.register(self.registration))
        questions = threading.Thread(target=self._guarded, args=(self._answer_questions,), daemon=True)
        questions.start()
        self._guarded(self._run_epochs)
        self.stop.set()

    def _guarded(self, loop: Callable[[], None]) -> None:
        try:
            loop()
        except StaleWorkerError:
            log.warning("worker.stale", worker=self.registration.worker)
        finally:
            self.stop.set()

    def _run_epochs(self) -> None:
        answered: tuple[Generation, Epoch] | None = None
        while not self.stop.is_set():
            barrier = self._keep_trying(
                lambda: self.client.next_barrier(self.registration.worker, self.registration.graph)
            )
            if barrier is None or (barrier.generation, barrier.curr) == answered:
                continue
            answer = self._run_epoch(barrier)
            if answer is None:
                return
            self._keep_trying(partial(self.client.answer, answer))
            answered = (barrier.generation, barrier.curr)

    def _run_epoch(self, barrier: Barrier) -> Collected | Failed | None:
        try:
            collected = self.executor.run(barrier)
        except Exception as error:
            log.exception("epoch.failed", epoch=barrier.curr, generation=barrier.generation)
            return self.explain(barrier, error)
        log.debug("epoch.collected", epoch=barrier.curr, timings_ms=collected.timings_ms)
        return collected

    def _answer_questions(self) -> None:
        while not self.stop.is_set():
            request = self._keep_trying(
                lambda: self.client.next_request(self.registration.worker, self.registration.graph)
            )
            if request is None:
                continue
            # Each on a thread of its own: a verification takes minutes, and the poll is the worker's heartbeat.
            threading.Thread(target=self._guarded_response, args=(request,), daemon=True).start()

    def _guarded_response(self, request: Request) -> None:
        response = self.respond(request)
        if response is None:
            self.stop.set()
            return
        try:
            self._keep_trying(lambda: self.client.respond(self.registration.worker, response))
        except StaleWorkerError:
            self.stop.set()

    def _keep_trying(self, call: Callable[[], T]) -> T:
        """The service may be restarting: a worker outlives it and comes back with the same answer."""
        failures = 0
        while True:
            try:
                return call()
            except ServiceAwayError as error:
                failures += 1
                if failures > TRIES_MAX:
                    raise StaleWorkerError(str(error)) from error
                log.warning("service.away", error=str(error), failures=failures)
                if self.stop.wait(min(0.1 * 2**failures, 2.0)):
                    raise StaleWorkerError from error
