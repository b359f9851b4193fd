"""What runs for a caller alone ends when he leaves (S6)."""

import asyncio

import pytest

from service.domain.errors import Unavailable
from service.operations.leaving import unless


async def test_s6_what_runs_for_a_caller_that_left_is_cancelled() -> None:
    left, cancelled = asyncio.Event(), asyncio.Event()

    async def gone() -> None:
        await left.wait()

    async def query() -> int:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return 1

    call = asyncio.create_task(unless(gone, query()))
    await asyncio.wait({call}, timeout=1)
    assert not call.done()
    left.set()
    with pytest.raises(Unavailable, match="the caller has left"):
        async with asyncio.timeout(60):
            await call
    assert cancelled.is_set()


async def test_s6_the_result_of_a_caller_that_stays_is_his() -> None:
    async def never() -> None:
        await asyncio.Event().wait()

    async def query() -> int:
        return 7

    assert await unless(never, query()) == 7
    assert await unless(None, query()) == 7
