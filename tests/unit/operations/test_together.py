"""One caller reads for all who wait for the same kind of thing (C12)."""

import asyncio
from collections.abc import Collection, Mapping
from contextlib import suppress

import pytest

from service.domain.errors import Unavailable
from service.operations.shared_reads import Together
from service.turns import CALLER


class Reads:
    """Counts reads, each of which lasts until the test lets it end."""

    def __init__(self) -> None:
        self.asked: list[set[int]] = []
        self.go_on = asyncio.Event()

    async def __call__(self, wanted: Collection[int]) -> Mapping[int, str]:
        self.asked.append(set(wanted))
        await self.go_on.wait()
        if 999 in wanted:
            raise Unavailable("the meta store is away")
        return {key: str(key) for key in wanted if key < 100}


async def _soon() -> None:
    """Let every task run until it waits."""
    with suppress(TimeoutError):
        async with asyncio.timeout(1):
            await asyncio.Event().wait()


async def test_i13_a_shared_read_takes_no_turn_of_the_caller_who_began_it() -> None:
    """Others wait for it as well, and would wait for the turns of one who has taken its share."""
    began: list[str | None] = []

    async def read(wanted: Collection[int]) -> Mapping[int, str]:
        began.append(CALLER.get())
        return {key: str(key) for key in wanted}

    CALLER.set("one")
    assert await Together[int, str]().get(1, read) == "1"
    assert began == [None]
    assert CALLER.get() == "one"


async def test_c12_a_thousand_callers_take_two_reads_one_after_the_other() -> None:
    together, reads = Together[int, str](), Reads()
    first = asyncio.create_task(together.get(1, reads))
    await _soon()
    others = [asyncio.create_task(together.get(key % 50, reads)) for key in range(1000)]
    await _soon()
    assert reads.asked == [{1}]
    reads.go_on.set()
    assert await first == "1"
    assert await asyncio.gather(*others) == [str(key % 50) for key in range(1000)]
    assert reads.asked == [{1}, set(range(50))]
    assert await together.get(100, reads) is None


async def test_c12_a_read_that_fails_fails_for_those_who_joined_it_alone() -> None:
    together, reads = Together[int, str](), Reads()
    reads.go_on.set()
    with pytest.raises(Unavailable):
        await together.get(999, reads)
    assert await together.get(1, reads) == "1"


async def test_c12_a_caller_that_leaves_takes_no_read_along() -> None:
    together, reads = Together[int, str](), Reads()
    leaving, staying = (asyncio.create_task(together.get(1, reads)) for _ in range(2))
    await _soon()
    leaving.cancel()
    reads.go_on.set()
    assert await staying == "1"
