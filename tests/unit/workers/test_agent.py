"""The worker's loop beside a service and an executor that do as the test says."""

import threading
from collections.abc import Mapping
from typing import Any, cast
from unittest.mock import Mock

import pytest

from service.protocol.api import Gone, Registered, Registration
from service.protocol.barrier import Barrier, BarrierKind
from service.protocol.ids import DATABASE_GRAPH, Epoch, Generation, GraphId, RequestId, WorkerId
from service.protocol.report import Collected, Failed
from service.protocol.request import Done, Rejected, ReleaseTarget, Response
from tests.support.waiting import until
from workers.agent import Agent
from workers.meta_client import MetaClient, NotTakenError, ServiceAwayError

WORKER = WorkerId("w")
OTHER_GRAPH = GraphId(2)


def barrier(graph: GraphId, curr: int, generation: int = 1) -> Barrier:
    return Barrier(
        graph=graph,
        generation=Generation(generation),
        prev=Epoch(1),
        curr=Epoch(curr),
        kind=BarrierKind.CHECKPOINT,
    )


def collected(one: Barrier) -> Collected:
    return Collected(worker=WORKER, graph=one.graph, generation=one.generation, epoch=one.curr)


class Service:
    """Hands barriers out that were not taken, and keeps the answers."""

    def __init__(self, *barriers: Barrier) -> None:
        self.barriers = barriers
        self.answers: list[Collected | Failed] = []
        self.answered = threading.Event()
        self.leaving, self.relieved, self.silent = threading.Event(), threading.Event(), threading.Event()
        self.away = False
        self.gone: set[GraphId] = set()

    def register(self, _: Registration) -> Registered:
        return Registered(wait_seconds=0, lease_seconds=9, dml_url="")

    def next_barrier(self, _: WorkerId, taken: Mapping[GraphId, Epoch]) -> Barrier | Gone | None:
        done = {(one.graph, one.epoch) for one in self.answers}
        there = [one for one in self.barriers if one.graph not in self.gone]
        left = [one for one in there if (one.graph, one.curr) not in done and taken.get(one.graph) != one.curr]
        gone = tuple(graph for graph in taken if graph in self.gone)
        return left[0] if left else Gone(gone=gone) if gone else None

    def answer(self, answer: Collected | Failed) -> bool:
        self.answers.append(answer)
        self.answered.set()
        return True

    def next_request(self, *_: object) -> None:
        return None

    def leave(self, _: WorkerId) -> bool:
        self.leaving.set()
        self.silent.wait(0 if self.away else 0.01)
        if self.away:
            raise ServiceAwayError
        return self.relieved.is_set()


class Gated:
    """Epochs of one graph, each of which waits until it may end."""

    def __init__(self) -> None:
        self.begun, self.may_end, self.interrupted = threading.Event(), threading.Event(), threading.Event()

    def run(self, one: Barrier) -> Collected:
        self.begun.set()
        assert self.may_end.wait(60)
        return collected(one)

    def interrupt(self) -> None:
        self.interrupted.set()


def agent(service: Service, executors: Mapping[GraphId, Any]) -> Agent:
    registration = Registration(worker=WORKER, graph=DATABASE_GRAPH, pid=1, host="h", parallelism=1)
    nothing = Mock(return_value=None)
    return Agent(registration, cast("MetaClient", service), executors.__getitem__, nothing, nothing)


def started(one: Agent) -> threading.Thread:
    running = threading.Thread(target=one.run, daemon=True)
    running.start()
    return running


def test_an_epoch_that_has_begun_is_answered_before_a_stopped_worker_ends() -> None:
    """A SIGTERM fails no epoch: what follows `run` ends Spark."""
    gate, service = Gated(), Service(barrier(DATABASE_GRAPH, 5))
    worker = agent(service, {DATABASE_GRAPH: gate})
    running = started(worker)
    assert gate.begun.wait(60)
    worker.stop.set()
    # Its loop has ended by then, or ends now: the epoch is all that it still waits for.
    running.join(0.2)
    assert running.is_alive()
    gate.may_end.set()
    running.join(60)
    assert not running.is_alive()
    assert [answer.epoch for answer in service.answers] == [5]


def left(worker: Agent, seconds: float) -> threading.Thread:
    leaving = threading.Thread(target=worker.leave, args=(seconds,))
    leaving.start()
    return leaving


def test_a_worker_that_leaves_works_until_it_is_relieved() -> None:
    gate, service = Gated(), Service()
    gate.may_end.set()
    worker = agent(service, {DATABASE_GRAPH: gate})
    running, leaving = started(worker), left(worker, 60)
    assert service.leaving.wait(60)
    service.barriers = (barrier(DATABASE_GRAPH, 5),)
    assert service.answered.wait(60), "it goes on"
    service.relieved.set()
    for thread in (leaving, running):
        thread.join(60)
        assert not thread.is_alive()


@pytest.mark.parametrize("away", [False, True])
def test_a_worker_that_nobody_relieves_ends_nevertheless(*, away: bool) -> None:
    service = Service()
    service.away = away
    worker = agent(service, {})
    running = started(worker)
    # Where no service answers, it does not take its time.
    leaving = left(worker, 3600 if away else 0.1)
    for thread in (leaving, running):
        thread.join(60)
        assert not thread.is_alive()
    assert service.leaving.is_set()


def in_a_graph_that_goes(executor: Gated) -> tuple[Agent, threading.Thread, Service]:
    """Begin an epoch of a graph, and have the graph go."""
    own = GraphId(7)
    service = Service(barrier(own, 5))
    worker = agent(service, {own: executor})
    running = started(worker)
    assert executor.begun.wait(60)
    service.gone.add(own)
    return worker, running, service


def test_i13_what_is_computed_for_a_graph_that_is_gone_is_interrupted() -> None:
    """A page of a view that was dropped may have no end, and it has Spark's turn."""
    stuck = Gated()
    worker, running, _ = in_a_graph_that_goes(stuck)
    assert stuck.interrupted.wait(60)
    stuck.may_end.set()
    worker.stop.set()
    running.join(60)
    assert not running.is_alive()
    assert not worker.lanes


class Planning(Gated):
    """An epoch that begins its Spark job, which has no end, after it was interrupted for the first time."""

    def interrupt(self) -> None:
        if self.interrupted.is_set():
            self.may_end.set()
        super().interrupt()


def test_i13_an_epoch_is_interrupted_until_it_has_ended() -> None:
    """A view was dropped while Spark planned its job: nothing was cancelled, and the job kept Spark's turn for ever."""
    worker, running, service = in_a_graph_that_goes(Planning())
    assert service.answered.wait(60)
    worker.stop.set()
    running.join(60)
    assert not running.is_alive()


class Picky(Service):
    """Asks one question, and takes no answer but a refusal."""

    def __init__(self) -> None:
        super().__init__()
        self.questions, self.told = [RequestId(5)], threading.Event()

    def next_request(self, *_: object) -> Any:
        return Mock(ReleaseTarget, id=self.questions.pop()) if self.questions else None

    def respond(self, _: WorkerId, response: Response) -> None:
        if not isinstance(response, Rejected):
            raise NotTakenError("413 too large")
        assert response.id == 5
        self.told.set()


def test_i13_an_answer_that_the_service_does_not_take_is_not_sent_again() -> None:
    """One of 75 MB was sent 300 times, and then the worker ended: whoever asked had left long ago."""
    service = Picky()
    worker = agent(service, {})
    worker.respond = lambda request: Done(id=request.id)
    running = started(worker)
    assert service.told.wait(60)
    assert running.is_alive()
    worker.stop.set()
    running.join(60)


class Small(Service):
    """Takes no epoch, only its failure."""

    def answer(self, answer: Collected | Failed) -> bool:
        if isinstance(answer, Collected):
            raise NotTakenError("413 too large")
        return super().answer(answer)


def test_i13_an_epoch_whose_answer_the_service_does_not_take_fails() -> None:
    """An error of a statement that quoted a value of 200 MB was sent 300 times, and no epoch was committed."""
    gate, service = Gated(), Small(barrier(DATABASE_GRAPH, 5))
    gate.may_end.set()
    worker = agent(service, {DATABASE_GRAPH: gate})
    worker.explain = lambda one, error: Failed(
        worker=WORKER, graph=one.graph, generation=one.generation, epoch=one.curr, error=str(error)
    )
    running = started(worker)
    assert service.answered.wait(60)
    assert [answer.error for answer in service.answers if isinstance(answer, Failed)] == ["413 too large"]
    worker.stop.set()
    running.join(60)


def test_a_graph_whose_epoch_takes_long_holds_up_no_other() -> None:
    """I10: the job's own graph hangs, and the database graph's barrier is answered."""
    stuck, free = Gated(), Gated()
    free.may_end.set()
    service = Service(barrier(OTHER_GRAPH, 5), barrier(DATABASE_GRAPH, 6))
    worker = agent(service, {OTHER_GRAPH: stuck, DATABASE_GRAPH: free})
    running = started(worker)
    assert stuck.begun.wait(60)
    assert service.answered.wait(60)
    assert [answer.graph for answer in service.answers] == [DATABASE_GRAPH]
    worker.stop.set()
    stuck.may_end.set()
    running.join(60)
    assert [answer.graph for answer in service.answers] == [DATABASE_GRAPH, OTHER_GRAPH]


def test_a_barrier_does_not_wait_for_an_epoch_of_a_generation_that_is_over() -> None:
    """A snapshot job's epoch hangs, its graph recovers, and the worker that it shares goes on with the next one."""
    stuck, fresh = Gated(), Gated()
    fresh.may_end.set()
    service = Service(barrier(OTHER_GRAPH, 5))
    worker = agent(service, {})
    worker.executor_of = Mock(side_effect=[stuck, fresh])
    running = started(worker)
    assert stuck.begun.wait(60)
    assert not stuck.interrupted.is_set()
    service.barriers = (barrier(OTHER_GRAPH, 6, generation=2),)
    assert service.answered.wait(60)
    assert stuck.interrupted.is_set(), "what it holds is another's"
    assert [answer.epoch for answer in service.answers] == [6]
    worker.stop.set()
    running.join(60)
    assert not running.is_alive(), "nobody waits for what hangs"
    stuck.may_end.set()


def test_a_barrier_of_the_same_generation_waits_for_its_turn() -> None:
    gate = Gated()
    service = Service(barrier(OTHER_GRAPH, 5))
    worker = agent(service, {OTHER_GRAPH: gate})
    running = started(worker)
    assert gate.begun.wait(60)
    service.barriers = (barrier(OTHER_GRAPH, 6),)
    until(lambda: worker.lanes[OTHER_GRAPH].taken == 6, what="it was given the next one")
    gate.may_end.set()
    until(lambda: len(service.answers) == 2 or None, what="both are answered")
    worker.stop.set()
    running.join(60)
    assert [answer.epoch for answer in service.answers] == [5, 6]
    assert not gate.interrupted.is_set()
