"""A call whose transaction Postgres ends as the victim of a deadlock is answered as if there had been none."""

from collections.abc import AsyncGenerator

import pytest

from service.domain.job import JobEvent
from service.operations.jobs import lifecycle
from tests.integration.operations.test_interleavings import waited_for
from tests.support.leading import Leader, leading
from tests.support.meta_store import A_TEST, NOW, new_view

pytestmark = pytest.mark.postgres


@pytest.fixture
async def leader(database_url: str) -> AsyncGenerator[Leader]:
    async with leading(database_url) as one:
        yield one


async def test_f2_the_victim_of_a_deadlock_runs_again_and_its_caller_sees_nothing(
    leader: Leader, database_url: str
) -> None:
    """The cancel waits first, so that it is the one whose wait Postgres finds to be without end."""
    async with leader.stores.begin() as tx:
        low, high = [(await tx.jobs.add(new_view(f"m{number}"), now=NOW)).id for number in range(2)]
    async with leader.stores.begin() as other:
        await other.jobs.hold(high)
        cancel = lifecycle.cancel(leader.world, [low, high], asked_by=A_TEST)
        async with waited_for(database_url, cancel) as cancelling:
            await other.jobs.hold(low)
        await other.jobs.move(low, JobEvent.QUEUED, now=NOW)
    assert await cancelling == [low, high]
    (family,) = leader.world.metrics.deadlocks.collect()
    assert family.samples[0].value == 1
    async with leader.stores.begin() as tx:
        asked = [one.facts["job"] for one in await tx.events.since(0, limit=100) if one.kind == "job.cancelled"]
    assert asked == [low, high], "each once: nothing is left of the first try"
