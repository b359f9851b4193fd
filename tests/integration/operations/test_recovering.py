"""RECOVER is answered when the recovery that it asked for is over, so that it ends nothing that is asked for next; what
it does end is what a foreground CREATE has just asked for, and not what another one has found.
"""

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from datetime import timedelta

import psycopg
import pytest

from service.domain.errors import UnderRecovery
from service.domain.graph import Abandon, Commit, RollBack
from service.operations.commands import mutations
from service.operations.commands.mutations import RECOVERED_WAIT
from service.operations.jobs import lifecycle
from service.operations.parameters import alter, known
from service.operations.statements import dispatch, jobs
from service.operations.statements.outcome import Outcome
from service.operations.status import gauges
from service.ports.audit import itself
from service.ports.signals import Topic
from service.protocol.ids import DATABASE_GRAPH
from service.protocol.mutation import Add, Resume
from tests.support.http import StillClock, UnheardSignals, changed
from tests.support.leading import Leader, leading
from tests.support.meta_store import A_TEST

pytestmark = pytest.mark.postgres

STEPS = ["asked", "ended", "rolled back", "published"]


@pytest.fixture
async def leader(database_url: str) -> AsyncGenerator[Leader]:
    async with leading(database_url) as made:
        await made.queue(None)
        await made.barrier()
        yield made


async def test_an_epoch_that_another_version_has_collected_is_run_again(leader: Leader, database_url: str) -> None:
    await leader.queue(None)
    barrier = await leader.injected()
    with psycopg.connect(database_url, autocommit=True) as connection:
        older = 'update tidefill.barrier set answer = answer || \'{"type": "collected"}\' where epoch = %s'
        assert connection.execute(older, [barrier.curr]).rowcount == 1
    assert isinstance(await leader.look(), Commit)
    ended = await leader.look()
    assert ended == Abandon("another version of tidefill collected this epoch")
    assert isinstance(await leader.look(), RollBack)
    async with leader.stores.begin() as tx:
        assert (await tx.graphs.state(DATABASE_GRAPH)).committed < barrier.curr
    await leader.barrier()


@dataclass
class Stepping(UnheardSignals):
    """Whoever waits for a signal lets the leader go a step on, as long as it `goes_on`; then it is `patient` or not."""

    leader: Leader
    clock: StillClock
    goes_on: int = len(STEPS)
    patient: bool = True
    taken: list[str] = field(default_factory=list[str])

    async def wait(self, timeout_seconds: float, *, topic: Topic = None, since: int | None = None) -> None:
        del topic, since
        self.clock.seconds += timeout_seconds
        if len(self.taken) == self.goes_on:
            if not self.patient:
                raise TimeoutError
        else:
            step = STEPS[len(self.taken)]
            self.taken.append(step)
            match step:
                case "asked":
                    await mutations.recover(self.leader.world, asked_by=itself("an operator"))
                case "ended":
                    assert isinstance(await self.leader.look(), Abandon)
                case "rolled back":
                    assert isinstance(await self.leader.look(), RollBack)
                case "published":
                    await self.leader.barrier()
                case _:
                    raise AssertionError(step)


async def recovered(
    leader: Leader, goes_on: int, *, lease: timedelta = timedelta(minutes=5)
) -> tuple[Outcome, Stepping]:
    clock = StillClock()
    signals = Stepping(leader, clock, goes_on)
    world = changed(leader.world, clock=clock, signals=signals, lease=lease)
    return await dispatch.run(world, "RECOVER", session={}, asked_by=A_TEST), signals


async def test_it_is_answered_once_an_epoch_of_the_next_generation_is_published(leader: Leader) -> None:
    outcome, signals = await recovered(leader, len(STEPS))
    assert (outcome.tag, outcome.notices) == ("RECOVER", ())
    assert signals.taken == STEPS


async def test_it_does_not_wait_for_a_worker_that_is_gone(leader: Leader) -> None:
    """But for the end of what ran."""
    outcome, signals = await recovered(leader, len(STEPS), lease=timedelta(seconds=-1))
    assert outcome.notices == (jobs.RECOVERING,)
    assert signals.taken == ["asked", "ended"]


async def test_it_is_answered_in_the_end_whatever_becomes_of_the_recovery(leader: Leader) -> None:
    outcome, signals = await recovered(leader, 3)
    assert outcome.notices == (jobs.RECOVERING,)
    assert signals.taken == STEPS[:3]
    assert signals.clock.seconds >= RECOVERED_WAIT.total_seconds()


async def test_who_has_asked_for_a_job_hears_of_the_recovery_that_cancels_it(leader: Leader) -> None:
    (job,), _ = await leader.add_views(1, named="m")
    await leader.barrier()
    clock = StillClock()
    world = changed(leader.world, clock=clock, signals=Stepping(leader, clock, goes_on=3))
    with pytest.raises(UnderRecovery, match="adhoc recovery"):
        await lifecycle.created(world, job)
    assert await leader.state_of(job) == "Cancelling"


async def test_who_has_found_a_job_waits_over_a_recovery(leader: Leader) -> None:
    (job,), _ = await leader.add_views(1, named="m")
    await leader.barrier()
    clock = StillClock()
    world = changed(leader.world, clock=clock, signals=Stepping(leader, clock, patient=False))
    with pytest.raises(TimeoutError):
        await lifecycle.finished(world, job)
    assert await leader.state_of(job) == "Creating"


async def test_the_next_generation_begins_paused_where_it_shall(leader: Leader) -> None:
    """`pause_on_next_bootstrap` counts once, and what it has paused is resumed by nobody but a user."""
    await alter(leader.world, {"pause_on_next_bootstrap": "true"}, asked_by=A_TEST)
    await leader.recover()
    for generation in (1, 2):
        first = await leader.barrier()
        assert isinstance(first.mutation, Add)
        assert (first.generation, first.mutation.paused) == (generation, True)
        assert (await known(leader.world)).pause_on_next_bootstrap is False
        await leader.queue(None)
        await leader.barrier()
        await leader.recover()
    await leader.barrier()
    await mutations.inject(leader.world, Resume(), asked_by=A_TEST)
    await leader.barrier()
    await leader.recover()
    last = await leader.barrier()
    assert isinstance(last.mutation, Add)
    assert not last.mutation.paused


async def test_it_is_timed_until_it_commits_more_than_its_own_beginning(leader: Leader) -> None:
    async def timed() -> str:
        page = (await gauges.scrape(leader.world)).decode()
        (count,) = [line for line in page.splitlines() if line.startswith("recovery_latency_count")]
        return count.rpartition(" ")[2]

    before = float(await timed())
    await leader.recover()
    await leader.barrier()
    assert float(await timed()) == before
    for _ in range(2):
        await leader.queue(None)
        await leader.barrier()
        assert float(await timed()) == before + 1
