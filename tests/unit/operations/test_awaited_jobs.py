"""A recovery soon after a foreground CREATE cancels what that call has begun, and nothing else."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import pytest

from service.domain.barrier import GraphStatus
from service.domain.errors import UnderRecovery
from service.domain.job import Job, JobState
from service.operations import jobs
from service.operations.world import World
from service.ports.meta_store import Stores
from service.ports.signals import Topic
from service.protocol.ids import DATABASE_GRAPH, JobId
from tests.support.fake_meta_store import FakeStores
from tests.support.http import PatientSignals, StillClock, world_of
from tests.support.meta_store import NOW, table_and_view


class StillWaiting(Exception):
    """Nothing has ended the wait for minutes."""


@dataclass
class Recovering(PatientSignals):
    """The graph is recovered as soon as somebody waits."""

    stores: Stores = field(kw_only=True)

    async def wait(self, timeout_seconds: float, *, topic: Topic = None, since: int | None = None) -> None:
        if self.clock.seconds == 0:
            async with self.stores.begin() as tx:
                await tx.graphs.set_status(DATABASE_GRAPH, GraphStatus.RECOVERING, now=NOW, reason="worker lost")
        if self.clock.seconds > 600:
            raise StillWaiting
        await super().wait(timeout_seconds, topic=topic, since=since)


@pytest.mark.parametrize(
    ("wait", "ends", "state"),
    [(jobs.created, UnderRecovery, JobState.CANCELLING), (jobs.finished, StillWaiting, JobState.CREATING)],
)
async def test_a_recovery_cancels_no_job_that_a_repeated_create_has_found(
    wait: Callable[[World, JobId], Awaitable[Job]], ends: type[Exception], state: JobState
) -> None:
    stores, clock = FakeStores(lambda: NOW), StillClock()
    _, view = await table_and_view(stores)
    world = world_of(stores, clock=clock, signals=Recovering(clock, stores=stores))
    with pytest.raises(ends):
        await wait(world, view.id)
    async with stores.begin() as tx:
        after = await tx.jobs.get(view.id)
    assert after is not None
    assert after.state is state
