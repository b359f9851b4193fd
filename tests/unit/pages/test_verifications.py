"""Verifications that were begun on a page."""

import asyncio
from datetime import UTC, datetime
from typing import Any

from service.domain.errors import Conflict
from service.pages.running import Verifications
from service.protocol.ids import JobId

NOW = datetime(2026, 5, 1, tzinfo=UTC)


async def test_i13_a_verification_that_waits_keeps_no_other_caller_from_one() -> None:
    """Another caller's waited in its turn, and might for half an hour."""
    kept, ends = Verifications(), asyncio.Event()

    async def waits() -> Any:
        await ends.wait()
        raise Conflict("it waited")

    async def fails() -> Any:
        raise Conflict("unequal")

    assert kept.begin(JobId(1), "mallory", NOW, waits)
    assert not kept.begin(JobId(1), "mallory", NOW, waits)
    seen = kept.of(JobId(1), "alice")
    assert seen is not None
    assert (seen.by, seen.runs) == ("mallory", True)
    assert kept.begin(JobId(1), "alice", NOW, fails)
    await asyncio.sleep(0)  # noqa: TID251 - lets the task run
    mine = kept.of(JobId(1), "alice")
    assert mine is not None
    assert (mine.by, mine.error) == ("alice", "unequal")
    assert kept.of(JobId(11), "alice") is None
    ends.set()
