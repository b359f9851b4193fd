"""Take barriers, run each on its graph's thread and answer it; answer the service's requests on a thread of their own.

The agent knows no Spark: an `Executor` runs epochs, and `respond` answers requests. Every call to the service is a
heartbeat. The long poll for requests continues while an epoch runs, so the service does not mistake a long epoch for a
dead worker. A worker that gets 410 (Gone) from the service stops at once (I7). One that is asked to end (SIGTERM) may
first hand its graphs over (`leave`). Next: `workers.graph`.
"""

import threading
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Protocol, TypeVar

import structlog
from structlog.contextvars import bound_contextvars

from service.protocol.api import Gone, Registered, Registration
from service.protocol.barrier import Barrier
from service.protocol.epoch import NEVER, instant_of
from service.protocol.ids import DATABASE_GRAPH, Epoch, Generation, GraphId
from service.protocol.report import Collected, Failed
from service.protocol.request import Rejected, Request, Response
from workers.meta_client import MetaClient, NotTakenError, ServiceAwayError, StaleWorkerError

LANE_IDLE = timedelta(minutes=10)
"""A lane without a barrier for this long is removed. A live graph gets a barrier every interval, even while it is
paused.
"""
TRIES_MAX = 300
"""Attempts of one call, about ten minutes in all. A worker whose service never comes back must end (I9)."""

ANSWERED_AT_ONCE = 16
"""How many questions are answered at once. The service asks fewer, but may have given up some that are not over."""
AGAIN_SECONDS = 1.0
"""Between two interrupts of an epoch that does not end."""
LEAVE_TRIES = 5
"""Attempts to leave, about five seconds in all. Where no service answers, there is nobody to hand over to."""

log = structlog.get_logger("agent")
T = TypeVar("T")


class Executor(Protocol):
    """Runs epochs."""

    def run(self, barrier: Barrier) -> Collected:
        """Run one epoch; everything it wrote is durable when this returns."""
        ...

    def interrupt(self) -> None:
        """Make the epoch that runs on another thread fail soon, because its generation is over.

        Called again while the epoch does not end: a Spark job that began after a call was not cancelled by it.
        """
        ...


@dataclass
class _Lane:
    """The epochs of one graph, run one after the other on a thread of their own."""

    executor: Executor
    graph: GraphId
    generation: Generation
    taken: Epoch = NEVER
    """The last barrier that was submitted to this lane."""
    ended: "Future[None] | None" = None
    thread: ThreadPoolExecutor = field(init=False)

    def __post_init__(self) -> None:
        self.thread = ThreadPoolExecutor(1, f"graph-{self.graph}")

    @property
    def over(self) -> bool:
        """Whether the lane has been idle so long that its graph is probably gone. Never true for the database graph.

        If the graph still exists, its next barrier fails for lack of a plan, and a recovery starts the graph again.
        """
        done = self.ended is not None and self.ended.done()
        age = datetime.now(UTC) - instant_of(self.taken)  # noqa: TID251 - the agent owns the clock of its lanes
        return done and self.graph != DATABASE_GRAPH and age > LANE_IDLE

    def is_left_by(self, barrier: Barrier) -> bool:
        """Whether the lane still runs an epoch of an older generation than `barrier`, so that `barrier` must not wait
        for it. Never true for the database graph: a worker that hangs there is replaced as a whole.
        """
        busy = self.ended is not None and not self.ended.done()
        return busy and self.graph != DATABASE_GRAPH and self.generation < barrier.generation

    def leave(self) -> None:
        """Abandon the running epoch: interrupt it and do not wait. Nothing of it can be written any more (I7)."""
        self.executor.interrupt()
        self.thread.shutdown(wait=False)
        threading.Thread(target=self._interrupt_again, name=f"leave-{self.graph}", daemon=True).start()

    def _interrupt_again(self) -> None:
        """Interrupt the epoch until it has ended: nobody cancels a Spark job that is only being planned (I13)."""
        while self.ended is not None and not wait((self.ended,), AGAIN_SECONDS).done:
            self.executor.interrupt()


@dataclass
class Agent:
    """One worker. `explain` turns an epoch's error into an answer.

    `explain` and `respond` return None when this worker cannot run anything any more. The worker then ends without an
    answer, and is replaced as if it had been killed.
    """

    registration: Registration
    client: MetaClient
    executor_of: Callable[[GraphId], Executor]
    """Makes the executor of a graph when the graph's first barrier arrives."""
    respond: Callable[[Request], Response | None]
    explain: Callable[[Barrier, Exception], Failed | None]
    stop: threading.Event = field(default_factory=threading.Event)
    registered: Registered | None = None
    """The service's answer to this worker's registration."""
    lanes: dict[GraphId, _Lane] = field(default_factory=dict[GraphId, _Lane])
    answering: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(ANSWERED_AT_ONCE))

    def run(self) -> None:
        """Work until `stop` is set or the service answers 410.

        Epochs that have begun are answered before this returns, so stopping a worker fails no epoch.
        """
        self.registered = self._keep_trying(lambda: self.client.register(self.registration))
        questions = threading.Thread(target=self._guarded, args=(self._answer_questions,), daemon=True)
        questions.start()
        self._guarded(self._hand_out)
        self.stop.set()
        for lane in self.lanes.values():
            lane.thread.shutdown()

    def leave(self, seconds: float) -> None:
        """Work on until this worker's graphs run on another one, for at most `seconds`. Then stop."""
        log.info("worker.leaving", worker=self.registration.worker, seconds=seconds)
        limit = threading.Timer(seconds, self.stop.set)
        limit.daemon = True
        limit.start()

        def relieved() -> None:
            call = partial(self.client.leave, self.registration.worker)
            # It is said once at least, however little time there is.
            while not self._keep_trying(call, LEAVE_TRIES) and not self.stop.is_set():
                pass

        self._guarded(relieved)
        self.stop.set()
        limit.cancel()

    def _guarded(self, work: Callable[[], None]) -> None:
        """Run `work`; any exception ends the worker."""
        try:
            work()
        except StaleWorkerError:
            log.warning("worker.stale", worker=self.registration.worker)
            self.stop.set()
        except BaseException:
            # On a lane's thread the exception would otherwise go unreported.
            log.exception("worker.broke", worker=self.registration.worker)
            self.stop.set()
            raise

    def _hand_out(self) -> None:
        """Submit each barrier to its graph's lane, so that one graph's slow epoch does not delay the others (I10)."""
        while not self.stop.is_set():
            taken = {graph: lane.taken for graph, lane in self.lanes.items()}
            barrier = self._keep_trying(partial(self.client.next_barrier, self.registration.worker, taken))
            if isinstance(barrier, Gone):
                self._leave(barrier.gone)
                continue
            if barrier is None:
                self.lanes = {graph: lane for graph, lane in self.lanes.items() if not lane.over}
                continue
            lane = self._lane(barrier)
            lane.taken, lane.generation = barrier.curr, barrier.generation
            lane.ended = lane.thread.submit(self._guarded, partial(self._run_barrier, lane.executor, barrier))

    def _leave(self, graphs: Collection[GraphId]) -> None:
        """Abandon what is computed for graphs that are gone, which may have no end and takes Spark's turn."""
        for graph in graphs:
            lane = self.lanes.pop(graph, None)
            if lane is not None:
                log.info("lane.left", graph=graph, epoch=lane.taken, generation=lane.generation)
                lane.leave()

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
        elif not self._answered(barrier, answer):
            log.info("answer.late", graph=barrier.graph, epoch=barrier.curr, generation=barrier.generation)

    def _answered(self, barrier: Barrier, answer: Collected | Failed) -> bool:
        """Send an answer; whether it came in time. In place of one that the service refuses, the epoch fails."""
        try:
            return self._keep_trying(partial(self.client.answer, answer))
        except NotTakenError as error:
            log.exception("answer.refused", graph=barrier.graph, epoch=barrier.curr)
            failed = self.explain(barrier, error)
            if failed is None:
                self.stop.set()
                return True
            return self._keep_trying(partial(self.client.answer, failed))

    def _run_epoch(self, executor: Executor, barrier: Barrier) -> Collected | Failed | None:
        with bound_contextvars(**_told(barrier)):
            try:
                collected = executor.run(barrier)
            except Exception as error:
                log.exception("epoch.failed")
                return self.explain(barrier, error)
            log.debug("epoch.collected", timings_ms=collected.timings_ms)
            return collected

    def _answer_questions(self) -> None:
        while not self.stop.is_set():
            request = self._keep_trying(
                lambda: self.client.next_request(self.registration.worker, self.registration.graph)
            )
            if request is None:
                continue
            # Each request has a thread of its own, because a verification takes minutes and this poll is the worker's
            # heartbeat.
            threading.Thread(target=self._guarded_response, args=(request,), daemon=True).start()

    def _response(self, request: Request) -> Response | None:
        """Answer a request, unless many others are being answered: whoever asked them may have gone long ago."""
        if not self.answering.acquire(blocking=False):
            return Rejected(id=request.id, error="the worker answers many other questions: try again later", again=True)
        try:
            return self.respond(request)
        finally:
            self.answering.release()

    def _guarded_response(self, request: Request) -> None:
        response = self._response(request)
        if response is None:
            self.stop.set()
            return
        try:
            self._respond(response)
        except StaleWorkerError:
            self.stop.set()
        except Exception:
            # One answer that the service does not take must not end the epochs of all graphs (I13).
            log.exception("response.failed", request=request.id)

    def _respond(self, response: Response) -> None:
        """Send a response. A refused one is not sent again: a `Rejected` takes its place."""
        try:
            self._keep_trying(partial(self.client.respond, self.registration.worker, response))
        except NotTakenError as error:
            log.warning("response.refused", request=response.id, error=str(error))
            refused = Rejected(id=response.id, error="the service does not take the answer: ask for less at once")
            self._keep_trying(partial(self.client.respond, self.registration.worker, refused))

    def _keep_trying(self, call: Callable[[], T], tries: int = TRIES_MAX) -> T:
        """Repeat `call` until the service answers it. A worker outlives a restart of the service.

        Raises StaleWorkerError after `tries` failures, or when `stop` is set during a wait.
        """
        failures = 0
        while True:
            try:
                return call()
            except ServiceAwayError as error:
                failures += 1
                if failures > tries:
                    raise StaleWorkerError(str(error)) from error
                log.warning("service.away", error=str(error), failures=failures)
                if self.stop.wait(min(0.1 * 2**failures, 2.0)):
                    raise StaleWorkerError from error


def _told(barrier: Barrier) -> Mapping[str, int | str]:
    """Return what every log line of an epoch carries."""
    told: dict[str, int | str] = {"graph": barrier.graph, "epoch": barrier.curr, "generation": barrier.generation}
    return told if barrier.traceparent is None else told | {"trace_id": barrier.traceparent.split("-")[1]}
