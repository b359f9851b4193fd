"""Views of one caller that hold up the statements of others come one by one, and not in a row (I13)."""

from collections.abc import AsyncGenerator
from dataclasses import replace
from datetime import timedelta

import pytest

from service.domain.graph import Abandon, Inject
from service.domain.job import JobEvent, JobState
from service.domain.slow_views import SLOW_VIEW
from service.operations.jobs import queue
from service.ports.records import NewJob
from service.protocol.ids import DATABASE_GRAPH, JobId
from service.protocol.relation import RelationKind
from service.protocol.report import Failed, JobFailure
from tests.support.http import StillClock
from tests.support.leading import Leader, leading
from tests.support.meta_stages import new_operators, new_stages
from tests.support.meta_store import NOW, WORKER, add_created, new_table, new_view, relation

pytestmark = pytest.mark.postgres

LIMIT_MS = 30_000
FLOWS_BACK = timedelta(seconds=150)


@pytest.fixture
async def leader(database_url: str) -> AsyncGenerator[Leader]:
    async with leading(database_url) as made:
        async with made.stores.begin() as tx:
            await tx.parameters.set("max_concurrent_creating_streaming_jobs", "0")
        yield made


async def ask(leader: Leader, new: NewJob, name: str, *, by: str) -> JobId:
    """Store the job of a view that a caller asked for."""
    async with leader.stores.begin() as tx:
        named = replace(new, relation=relation(name, RelationKind.MATERIALIZED_VIEW))
        return (await tx.jobs.add(named, now=NOW, by=by)).id


async def too_slow(leader: Leader, first: JobId, *others: JobId) -> None:
    """Have jobs created in the database graph until they are found too slow there."""
    async with leader.stores.begin() as tx:
        for job in (first, *others):
            await tx.jobs.move(job, JobEvent.STARTED, now=NOW)
    await leader.queue(None)
    await leader.barrier()
    await leader.queue(None)
    assert isinstance(await leader.look(), Inject)
    async with leader.stores.begin() as tx:
        barrier = await tx.barriers.for_worker(WORKER)
        assert barrier is not None
        failed = Failed(
            worker=WORKER,
            graph=DATABASE_GRAPH,
            generation=barrier.generation,
            epoch=barrier.curr,
            error="too slow",
            job=first,
            deterministic=True,
            too_slow=True,
            others=tuple(JobFailure(job=job, error="too slow", too_slow=True) for job in others),
        )
        assert await tx.barriers.answer(failed, now=NOW)
    assert isinstance(await leader.look(), Abandon)


async def waiting(leader: Leader) -> dict[str, str]:
    """Start what may start. Return for what each job waits that has not started because of a slow view."""
    for _ in range(2):
        await queue.start_jobs(leader.world, term=leader.term)
    async with leader.stores.begin() as tx:
        jobs = await tx.jobs.where({JobState.INITIAL, JobState.QUEUED})
    return {job.name: job.preparing or "" for job in jobs if (job.preparing or "").startswith(SLOW_VIEW)}


async def test_a17_the_next_view_of_a_caller_waits_until_the_time_that_one_took_has_flowed_back(leader: Leader) -> None:
    """Each began with a whole budget, because a view that exceeds it ends the generation. A row of them held up all
    statements for as long as it lasted.
    """
    async with leader.stores.begin() as tx:
        left, right = [(await add_created(tx, new_table(name))).relation for name in ("l", "r")]
    arranged = new_operators(left, right)
    slow = [await ask(leader, arranged, name, by="greedy") for name in ("slow", "slower")]
    await ask(leader, arranged, "next", by="greedy")
    await ask(leader, arranged, "other", by="another")
    await ask(leader, new_stages(left, right), "apart", by="greedy")
    await ask(leader, new_view("simple", left), "simple", by="greedy")
    await too_slow(leader, *slow)
    assert await waiting(leader) == {
        "next": f"{SLOW_VIEW} slower held up the statements of others for longer than stage_timeout_ms ({LIMIT_MS})"
        " allows. This one starts at 03:06:35 UTC at the earliest; with streaming_use_snapshot_backfill = true it would"
        " not wait"
    }
    clock = leader.world.clock
    assert isinstance(clock, StillClock)
    clock.wall = NOW + FLOWS_BACK
    assert await waiting(leader) == {}


async def test_a17_the_last_slow_view_of_a_caller_counts(leader: Leader) -> None:
    async with leader.stores.begin() as tx:
        table = await add_created(tx, new_table("t"))
        jobs = [await tx.jobs.add(new_view(name, table.relation), now=NOW, by=by) for name, by in _VIEWS]
        await tx.queue.too_slow([], now=NOW)
        await tx.queue.too_slow([one.id for one in jobs[:2]], now=NOW)
        await tx.queue.too_slow([one.id for one in jobs[2:]], now=NOW + FLOWS_BACK)
        found = [await tx.queue.slow_view(by) for by in ("a", "b", "c")]
    assert [one and (one.name, one.at - NOW) for one in found] == [("z", FLOWS_BACK), ("y", timedelta()), None]


_VIEWS = (("x", "a"), ("y", "b"), ("z", "a"))
