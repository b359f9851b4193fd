"""The worker's loop: take barriers, have each run in its graph's lane, answer; and beside it, on a thread of its own,
answer questions.

It knows no Spark: an `Executor` runs epochs, and a `Responder` answers questions. Every call is a heartbeat; the
questions' long poll goes on while an epoch runs, so a long epoch is not taken for a dead worker. A worker that is
told it is of the past stops at once (I7). Next: `workers.graph`.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Protocol, TypeVar

import structlog

from service.protocol.api import Registered, Registration
from service.protocol.barrier import Barrier
from service.protocol.epoch import NEVER, instant_of
from service.protocol.ids import DATABASE_GRAPH, Epoch, Generation, GraphId
from service.protocol.report import Collected, Failed
from service.protocol.request import Analyzed, Rejected, Request, Verified
from workers.meta_client import MetaClient, ServiceAwayError, StaleWorkerError

LANE_IDLE = timedelta(minutes=10)
"""A graph that lives has a barrier every interval, also while it is paused."""
TRIES_MAX = 300
"""About ten minutes: a worker whose service never comes back must not stay for ever (I9)."""

log = structlog.get_logger("agent")
T = TypeVar("T")


class Executor(Protocol):
    """Runs epochs."""

    def run(self, barrier: Barrier) -> Collected:
        """Run one epoch; everything it wrote is durable when it returns."""
        ...

    def interrupt(self) -> None:
        """Have the epoch that runs on another thread fail soon: its generation is over."""
        ...


@dataclass
class _Lane:
    """The epochs of one graph, one after the other on a thread of their own."""

    executor: Executor
    graph: GraphId
    generation: Generation
    taken: Epoch = NEVER
    """The last barrier that it was given."""
    ended: "Future[None] | None" = None
    thread: ThreadPoolExecutor = field(init=False)

    def __post_init__(self) -> None:
        self.thread = ThreadPoolExecutor(1, f"graph-{self.graph}")

    @property
    def over(self) -> bool:
        """Whether it stands still for so long that its graph may well be gone. If not, a recovery rebuilds it."""
        done = self.ended is not None and self.ended.done()
        age = datetime.now(UTC) - instant_of(self.taken)  # noqa: TID251 - the agent owns the clock of its lanes
        return done and self.graph != DATABASE_GRAPH and age > LANE_IDLE

    def is_left_by(self, barrier: Barrier) -> bool:
        """Whether what it still runs is of a generation that is over, so that this barrier must not wait for it. One
        that hangs in the database graph's epoch is replaced as a whole.
        """
        busy = self.ended is not None and not self.ended.done()
        return busy and self.graph != DATABASE_GRAPH and self.generation < barrier.generation

    def leave(self) -> None:
        """Let what still runs end by itself, soon if it can: nothing of it can be written any more (I7)."""
        self.executor.interrupt()
        self.thread.shutdown(wait=False)


@dataclass
class Agent:
    """One worker. `explain` turns an epoch's error into an answer. It and `respond` give None when this worker can run
    nothing any more: it ends without a word, and is replaced as if it had been killed.
    """

    registration: Registration
    client: MetaClient
    executor_of: Callable[[GraphId], Executor]
    """Makes the executor of a graph, when its first barrier comes."""
    respond: Callable[[Request], Analyzed | Verified | Rejected | None]
    explain: Callable[[Barrier, Exception], Failed | None]
    stop: threading.Event = field(default_factory=threading.Event)
    registered: Registered | None = None
    """What the service said when this worker presented itself."""
    lanes: dict[GraphId, _Lane] = field(default_factory=dict[GraphId, _Lane])

    def run(self) -> None:
        """Work until `stop` is set or the service says that this worker is of the past. Epochs that have begun are
        answered before it returns: a worker that is stopped fails no epoch.
        """
        self.registered = self._keep_trying(lambda: self.client.register(self.registration))
        questions = threading.Thread(target=self._guarded, args=(self._answer_questions,), daemon=True)
        questions.start()
        self._guarded(self._hand_out)
        self.stop.set()
        for lane in self.lanes.values():
            lane.thread.shutdown()

    def _guarded(self, work: Callable[[], None]) -> None:
        """Run `work`; whatever ends it badly ends the worker."""
        try:
            work()
        except StaleWorkerError:
            log.warning("worker.stale", worker=self.registration.worker)
            self.stop.set()
        except BaseException:
            # Of a lane nobody else would hear what ended it.
            log.exception("worker.broke", worker=self.registration.worker)
            self.stop.set()
            raise

    def _hand_out(self) -> None:
        """Give each barrier to its graph's lane: one graph's epoch may take as long as it likes, others go on (I10)."""
        while not self.stop.is_set():
            taken = {graph: lane.taken for graph, lane in self.lanes.items()}
            barrier = self._keep_trying(partial(self.client.next_barrier, self.registration.worker, taken))
            if barrier is None:
                self.lanes = {graph: lane for graph, lane in self.lanes.items() if not lane.over}
                continue
            lane = self._lane(barrier)
            lane.taken, lane.generation = barrier.curr, barrier.generation
            lane.ended = lane.thread.submit(self._guarded, partial(self._run_barrier, lane.executor, barrier))

    def _lane(self, barrier: Barrier) -> _Lane:
        lane = self.lanes.get(barrier.graph)
        if lane is not None and lane.is_left_by(barrier):
            log.warning("lane.left", graph=barrier.graph, epoch=lane.taken, generation=lane.generation)
            lane.leave()
            lane = None
        if lane is None:
            executor = self.executor_of(barrier.graph)
            lane = self.lanes[barrier.graph] = _Lane(executor, barrier.graph, barrier.generation)
        return lane

    def _run_barrier(self, executor: Executor, barrier: Barrier) -> None:
        answer = self._run_epoch(executor, barrier)
        if answer is None:
            self.stop.set()
        elif not self._keep_trying(partial(self.client.answer, answer)):
            log.info("answer.late", graph=barrier.graph, epoch=barrier.curr, generation=barrier.generation)

    def _run_epoch(self, executor: Executor, barrier: Barrier) -> Collected | Failed | None:
        try:
            collected = executor.run(barrier)
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
