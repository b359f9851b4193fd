"""A20: changes of limits wait for the rows of their scans, and hold a connection to the meta store meanwhile (I13)."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, cast

import pytest

from service.operations.commands import limits
from service.operations.world import World
from service.ports.meta_store import Stores, Transaction
from service.protocol.ids import JobId
from tests.support.leading import leading
from tests.support.meta_store import A_TEST

pytestmark = pytest.mark.postgres


class Slow:
    """A meta store whose transactions do not end. `begun` has who began them."""

    def __init__(self) -> None:
        self.begun: list[str] = []

    @asynccontextmanager
    async def begin(self, *_: object, by: Any = None) -> AsyncGenerator[Transaction]:
        self.begun.append(by.actor)
        await asyncio.Event().wait()
        yield cast("Transaction", None)


async def test_a20_changes_of_limits_of_one_caller_take_two_connections(database_url: str) -> None:
    slow = Slow()
    async with leading(database_url) as leader:
        world: World = replace(leader.world, stores=cast("Stores", slow))
        calls = [
            asyncio.create_task(limits.throttle_job(world, JobId(1), 5, asked_by=replace(A_TEST, actor=actor)))
            for actor in (*["flood"] * 50, "other")
        ]
        for _ in range(10):
            await asyncio.sleep(0)  # noqa: TID251 - lets the calls begin
        assert sorted(slow.begun) == ["flood", "flood", "other"]
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
