"""Turns bound what runs and what waits; a caller that leaves gives its place back (I13)."""

import asyncio
from collections import Counter
from functools import partial

import pytest

from service.domain.errors import Unavailable
from service.operations.leaving import unless
from service.turns import Turns


async def test_so_many_run_so_many_wait_and_more_are_refused() -> None:
    turns, over, running = Turns("comparisons", running=2, waiting=1), asyncio.Event(), asyncio.Semaphore(0)

    async def work(caller: str) -> None:
        async with turns.turn(caller):
            running.release()
            await over.wait()

    tasks = [asyncio.create_task(work(caller)) for caller in "abc"]
    for _ in range(2):
        await running.acquire()
    with pytest.raises(Unavailable, match="0 comparisons of this caller run, and 2 of others"):
        async with turns.turn("d"):
            pass
    assert running.locked(), "the third waits"
    over.set()
    await asyncio.gather(*tasks)
    async with turns.turn():
        pass


async def test_a_caller_that_leaves_waits_no_more() -> None:
    turns, left = Turns("comparisons", running=1, waiting=1), asyncio.Event()

    async def gone() -> None:
        await left.wait()

    async def work() -> None:
        async with turns.turn(within=partial(unless, gone)):
            pass

    async with turns.turn():
        waiting = asyncio.create_task(work())
        left.set()
        with pytest.raises(Unavailable, match="left"):
            await waiting
    async with asyncio.timeout(10), turns.turn():
        pass


async def test_s4_a_caller_takes_half_of_what_is_left_and_the_others_find_turns() -> None:
    turns, over, running = Turns("queries", running=8, waiting=400, seconds=60), asyncio.Event(), Counter[str]()

    async def work(caller: str) -> None:
        async with turns.turn(caller):
            running[caller] += 1
            await over.wait()

    tasks = [asyncio.create_task(work(caller)) for caller in "a" * 50 + "b" * 40 + "c" * 5]
    await asyncio.sleep(0)  # noqa: TID251 - the tasks begin
    assert running == {"a": 4, "b": 2, "c": 1}
    async with turns.turn("d"):
        pass
    over.set()
    await asyncio.gather(*tasks)
    assert running == {"a": 50, "b": 40, "c": 5}


async def test_s4_a_caller_that_waits_with_many_leaves_places_to_wait() -> None:
    turns, over, order = Turns("pages", running=1, waiting=8), asyncio.Event(), list[str]()

    async def work(caller: str) -> None:
        async with turns.turn(caller):
            order.append(caller)
            await over.wait()

    tasks = [asyncio.create_task(work(caller)) for caller in "aaaaaaaaabbc"]
    await asyncio.sleep(0)  # noqa: TID251 - the tasks begin
    over.set()
    ends = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(end) for end in ends[:9]] == [type(None)] * 5 + [Unavailable] * 4
    assert order == ["a", "b", "c", "a", "b", "a", "a", "a"]


async def test_a_wait_that_takes_too_long_ends_and_leaves_no_turn_taken() -> None:
    turns = Turns("queries", running=1, waiting=2, seconds=0.01)
    async with turns.turn("a"):
        with pytest.raises(Unavailable, match=r"queries of this caller run"):
            async with turns.turn("b"):
                pass
    async with turns.turn("b"):
        pass


async def test_a_task_that_is_cancelled_when_its_turn_comes_gives_it_back() -> None:
    turns = Turns("queries", running=1, waiting=2)

    async def work() -> None:
        async with turns.turn("b"):
            pass

    async with turns.turn("a"):
        waiting = asyncio.create_task(work())
        await asyncio.sleep(0)  # noqa: TID251 - the tasks begin
        waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert waiting.cancelled()
    async with turns.turn("c"):
        pass


async def test_what_fails_gives_its_turn_back() -> None:
    turns = Turns("comparisons", running=1, waiting=0)
    with pytest.raises(ValueError, match="no"):
        async with turns.turn():
            raise ValueError("no")
    async with asyncio.timeout(10), turns.turn():
        pass


async def test_i13_few_places_that_are_held_for_long_are_left_to_a_third_caller() -> None:
    """Two callers took all two places, of verifications and of large results, for as long as they liked."""
    turns = Turns("verifications", running=3, waiting=9, each=1)
    async with turns.turn("a"):
        asked = asyncio.Event()
        waiting = asyncio.create_task(_turned(turns, "a", asked))
        await asked.wait()
        async with asyncio.timeout(10), turns.turn("b"), turns.turn("c"):
            assert not waiting.done()
    async with asyncio.timeout(10):
        await waiting


async def _turned(turns: Turns, caller: str, asked: asyncio.Event) -> None:
    asked.set()
    async with turns.turn(caller):
        pass
