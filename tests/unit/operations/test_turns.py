"""Turns bound what runs and what waits; a caller that leaves gives its place back (I13)."""

import asyncio

import pytest

from service.domain.errors import Unavailable
from service.operations.turns import Turns


async def test_so_many_run_so_many_wait_and_more_are_refused() -> None:
    turns, over, running = Turns("comparisons", running=2, waiting=1), asyncio.Event(), asyncio.Semaphore(0)

    async def work() -> None:
        async with turns.turn():
            running.release()
            await over.wait()

    tasks = [asyncio.create_task(work()) for _ in range(3)]
    for _ in range(2):
        await running.acquire()
    with pytest.raises(Unavailable, match="1 comparisons wait"):
        async with turns.turn():
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
        async with turns.turn(gone):
            pass

    async with turns.turn():
        waiting = asyncio.create_task(work())
        left.set()
        with pytest.raises(Unavailable, match="left"):
            await waiting
    async with asyncio.timeout(10), turns.turn():
        pass


async def test_what_fails_gives_its_turn_back() -> None:
    turns = Turns("comparisons", running=1, waiting=0)
    with pytest.raises(ValueError, match="no"):
        async with turns.turn():
            raise ValueError("no")
    async with asyncio.timeout(10), turns.turn():
        pass
