"""A worker that fails every start is passed over while another one serves its graph (I13)."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import product

import pytest

from service.domain.barrier import decide
from service.domain.graph import GraphStatus, GraphView, Inject, Pace
from service.domain.setbacks import WINDOW, Setbacks, is_the_workers
from service.protocol.barrier import BarrierKind
from service.protocol.ids import DATABASE_GRAPH, Epoch, Generation, GraphId, JobId, WorkerId
from service.protocol.report import Failed

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)
WORKERS = [WorkerId(name) for name in ("a", "b", "c", "d")]
OWN = GraphId(7)
WAITING = GraphView(
    graph=DATABASE_GRAPH,
    status=GraphStatus.WAITING,
    generation=Generation(1),
    committed=Epoch(5),
    published=Epoch(5),
    newest=Epoch(5),
    worker=None,
    alive=frozenset(WORKERS),
)
FAILED = Failed(worker=WORKERS[0], graph=DATABASE_GRAPH, generation=Generation(1), epoch=Epoch(9), error="no")
DETERMINISTIC = FAILED.model_copy(update={"deterministic": True})


def chosen(view: GraphView, setbacks: Setbacks, now: datetime) -> WorkerId:
    effect = decide(replace(view, setbacks=setbacks.of(view.graph, now=now)), now=now, pace=Pace())
    assert isinstance(effect, Inject)
    assert effect.kind is BarrierKind.INITIAL
    return effect.worker


@pytest.mark.parametrize("healthy", [some for some in product([False, True], repeat=len(WORKERS)) if any(some)])
def test_a_healthy_worker_is_found_with_at_most_one_failure_of_each_other(healthy: tuple[bool, ...]) -> None:
    setbacks, now, tried = Setbacks(), NOW, list[WorkerId]()
    while not healthy[WORKERS.index(worker := chosen(WAITING, setbacks, now))]:
        tried.append(worker)
        setbacks.failed(DATABASE_GRAPH, worker, now=now)
        assert len(tried) == len(set(tried)) < len(WORKERS)
        now += SECOND
    assert chosen(WAITING, setbacks, now) == worker, "the choice is stable"


def test_workers_that_all_fail_take_turns() -> None:
    setbacks, tried = Setbacks(), list[WorkerId]()
    for n in range(2 * len(WORKERS)):
        tried.append(chosen(WAITING, setbacks, NOW + n * SECOND))
        setbacks.failed(DATABASE_GRAPH, tried[-1], now=NOW + n * SECOND)
    assert tried == WORKERS * 2


def test_a_worker_that_is_alone_is_tried_again() -> None:
    setbacks = Setbacks()
    setbacks.failed(DATABASE_GRAPH, WORKERS[0], now=NOW)
    assert chosen(replace(WAITING, alive=frozenset(WORKERS[:1])), setbacks, NOW) == WORKERS[0]


def test_failures_of_another_graph_and_of_long_ago_do_not_count() -> None:
    setbacks = Setbacks()
    setbacks.failed(OWN, WORKERS[0], now=NOW)
    assert chosen(WAITING, setbacks, NOW) == WORKERS[0]
    setbacks.failed(DATABASE_GRAPH, WORKERS[0], now=NOW)
    assert chosen(WAITING, setbacks, NOW) == WORKERS[1]
    # A clock that went back keeps nothing for ever either.
    for later in (NOW + WINDOW, NOW - WINDOW):
        assert chosen(WAITING, setbacks, later) == WORKERS[0]
    setbacks.failed(DATABASE_GRAPH, WORKERS[1], now=NOW + WINDOW)
    assert set(setbacks.seen) == {(DATABASE_GRAPH, WORKERS[1])}, "nothing is kept for ever"


@pytest.mark.parametrize(
    ("failure", "hung", "counts"),
    [
        (None, False, False),
        (None, True, True),
        (FAILED, False, True),
        (DETERMINISTIC, False, True),
        (FAILED.model_copy(update={"job": JobId(1)}), False, True),
        (DETERMINISTIC.model_copy(update={"job": JobId(1)}), False, False),
    ],
)
def test_a_job_s_own_failure_is_not_the_worker_s(failure: Failed | None, *, hung: bool, counts: bool) -> None:
    assert is_the_workers(failure, hung=hung) is counts
