"""How many views of one caller compute at a time, each in a graph of its own (I8, I13)."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext, suppress
from threading import Event
from types import SimpleNamespace
from typing import Any, Final

import pytest

from service.protocol.ids import GraphId, JobId, WorkerId
from service.protocol.stage import Engine
from workers.graph import GraphExecutor
from workers.runners.engine_turns import EngineTurns
from workers.runners.own_turns import OwnTurns
from workers.runners.port import RunningEpoch, Stores

NOTHING: Final[Any] = None


def never() -> bool:
    return False


def test_i13_a_caller_has_some_turns_and_another_one_has_its_own() -> None:
    """Five views of one caller took 5.5 GB at once."""
    turns, began = OwnTurns(at_once=2), Event()

    def third() -> bool:
        with turns.turn("a", never):
            began.set()
            return turns.running["a"] == 2

    with ThreadPoolExecutor(1) as pool, ExitStack() as held:
        first = held.enter_context(ExitStack())
        first.enter_context(turns.turn("a", never))
        held.enter_context(turns.turn("a", never))
        waiting = pool.submit(third)
        with turns.turn("b", never):
            assert not began.wait(0.2)
        first.close()
        assert waiting.result(10)
    assert not +turns.running


def test_i13_some_of_the_turns_are_for_others() -> None:
    """One caller's views kept all of Spark's slots, and others' sinks committed no more."""
    turns = OwnTurns(total=4)

    def is_free(caller: str) -> bool:
        with suppress(InterruptedError), turns.turn(caller, lambda: True):
            return True
        return False

    with ExitStack() as held:
        for caller, most in (("a", 2), ("b", 1), ("c", 1)):
            for _ in range(most):
                held.enter_context(turns.turn(caller, never))
            assert not is_free(caller)
        assert not is_free("d")
    assert is_free("d")


@pytest.mark.parametrize(("name", "follows", "turns"), [("spark", True, 1), ("store", True, 0), ("spark", False, 0)])
def test_a_view_in_a_graph_of_its_own_takes_a_turn_in_spark(name: str, *, follows: bool, turns: int) -> None:
    executor = GraphExecutor(WorkerId("w"), NOTHING, NOTHING, {})
    executor.stores = Stores(NOTHING, NOTHING)
    barrier: Any = SimpleNamespace(follows=follows, graph=GraphId(3), curr=1)
    epoch = RunningEpoch(
        barrier, NOTHING, False, 0.0, lambda: 0.0, nullcontext, own_turn=executor.own_turn, own_spark=executor.own_spark
    )
    scan: Any = SimpleNamespace(job=JobId(7))
    held: list[int] = []

    def limit(*_: object, **__: object) -> None:
        held.append(executor.spark_turns.running.total())
        raise ZeroDivisionError

    run = EngineTurns(NOTHING)
    run._limit = limit  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]
    with pytest.raises(ZeroDivisionError):
        run.run(epoch, NOTHING, lambda: (Engine(name), NOTHING), scan, history_over=True)
    assert held == [turns]
    assert not +executor.spark_turns.running


def test_a_created_view_in_a_graph_of_its_own_takes_a_turn_of_its_caller() -> None:
    executor = GraphExecutor(WorkerId("w"), NOTHING, NOTHING, {})
    executor.stores = Stores(NOTHING, NOTHING)
    executor.stores.costs.callers[JobId(7)] = "a"
    for follows, held in ((True, 1), (False, 0)):
        barrier: Any = SimpleNamespace(follows=follows, graph=GraphId(3))
        epoch = RunningEpoch(barrier, NOTHING, False, 0.0, NOTHING, nullcontext, own_turn=executor.own_turn)
        with EngineTurns(NOTHING).turn(epoch, JobId(7)):
            assert executor.own_turns.running["a"] == held


@pytest.mark.parametrize("apart", [True, False])
def test_i13_views_of_a_caller_that_took_all_memory_together_have_their_turns_one_by_one(*, apart: bool) -> None:
    executor = GraphExecutor(WorkerId("w"), NOTHING, NOTHING, {}, over=True)
    executor.stores = Stores(NOTHING, NOTHING)
    executor.stores.costs.callers.update({JobId(7): "a", JobId(8): "a"})
    executor.stores.costs.apart = ("a",) if apart else ("b",)
    refused = pytest.raises(InterruptedError) if apart else nullcontext()
    with executor.own_turn(JobId(7)), refused, executor.own_turn(JobId(8)):
        assert executor.own_turns.running["a"] == 2


def test_who_waits_for_a_turn_leaves_when_its_generation_is_over() -> None:
    turns = OwnTurns(at_once=1)
    with turns.turn("a", never), pytest.raises(InterruptedError), turns.turn("a", lambda: True):
        pass
    assert not +turns.running
