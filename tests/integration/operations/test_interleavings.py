"""Two transactions in the order in which they once hurt each other."""

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

import psycopg
import pytest

from service.domain.errors import Conflict
from service.domain.graph import Commit, GraphStatus, Inject
from service.domain.job import JobEvent
from service.meta_store.barriers.commands import PostgresCommands
from service.meta_store.jobs import plans
from service.operations.commands import limits, mutations
from service.operations.jobs import lifecycle, snapshots
from service.operations.parameters import alter
from service.operations.sources import secrets
from service.protocol.barrier import BarrierKind
from service.protocol.ids import DATABASE_GRAPH, Epoch, GraphId, JobId, RelationId
from tests.support.http import StillClock
from tests.support.leading import Leader, leading
from tests.support.meta_store import A_TEST, NOW, WORKER, collected, new_table, report, scan_of
from tests.support.waiting import until

pytestmark = pytest.mark.postgres
T = TypeVar("T")


@pytest.fixture
async def leader(database_url: str) -> AsyncGenerator[Leader]:
    async with leading(database_url) as one:
        yield one


async def test_h1_a_limit_waits_for_the_drop_of_its_job_and_neither_fails(leader: Leader, database_url: str) -> None:
    """The drop has the job and takes its fragments; a limit that had the fragments and took the job was a deadlock."""
    (job,), _ = await leader.add_views(1, named="m")
    async with leader.stores.begin() as dropping:
        entry = await dropping.catalog.named("m0")
        assert entry is not None
        assert await dropping.jobs.hold(job) is not None
        limiting = asyncio.create_task(limits.throttle_job(leader.world, job, 5, asked_by=A_TEST))
        await asyncio.to_thread(until, lambda: waiting_for_a_lock(database_url), what="it waits for the job")
        for event in (JobEvent.CANCEL_ASKED, JobEvent.STOPPED):
            await dropping.jobs.move(job, event, now=NOW)
        await dropping.catalog.remove(RelationId(entry.relation.id))
    with pytest.raises(Conflict):
        await limiting


async def test_if_not_exists_finds_the_table_that_another_call_was_quicker_to_create(
    leader: Leader, database_url: str
) -> None:
    async with leader.stores.begin() as other:
        job = await other.jobs.add(new_table("t"), now=NOW)
        create = lifecycle.create(leader.world, new_table("t"), if_not_exists=True, asked_by=A_TEST)
        creating = asyncio.create_task(create)
        await asyncio.to_thread(until, lambda: waiting_for_a_lock(database_url), what="it waits for the name")
    assert await creating == lifecycle.Asked(job.id, existed=True)
    with pytest.raises(Conflict, match="still being created"):
        await lifecycle.create(leader.world, new_table("t"), if_not_exists=False, asked_by=A_TEST)


async def test_if_not_exists_finds_the_secret_that_another_call_was_quicker_to_create(
    leader: Leader, database_url: str
) -> None:
    async with leader.stores.begin() as other:
        await other.secrets.add("s", "first")
        create = secrets.create(leader.world, "s", "second", if_not_exists=True, asked_by=A_TEST)
        creating = asyncio.create_task(create)
        await asyncio.to_thread(until, lambda: waiting_for_a_lock(database_url), what="it waits for the name")
    assert await creating == ('secret "s" already exists, skipping',)
    with pytest.raises(Conflict, match="exists"):
        await secrets.create(leader.world, "s", "second", asked_by=A_TEST)


def waiting_for_a_lock(database_url: str, *, sessions: int = 1) -> bool:
    query = "select from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
    with psycopg.connect(database_url) as connection:
        return len(connection.execute(query).fetchall()) >= sessions


@asynccontextmanager
async def waited_for(
    database_url: str, other: Coroutine[Any, Any, T], *, sessions: int = 1
) -> AsyncGenerator[asyncio.Task[T]]:
    """Run `other` until it waits for a lock of the transaction that is open around this block, or ends without. It is
    one of so many `sessions` that wait.
    """
    task = asyncio.create_task(other)
    waits = partial(waiting_for_a_lock, database_url, sessions=sessions)
    await asyncio.to_thread(until, lambda: task.done() or waits(), what="it waits for a lock")
    yield task


@pytest.mark.parametrize("finished", [False, True])
async def test_a_limit_and_the_commit_of_an_earlier_one_wait_for_each_other_in_one_order(
    leader: Leader, database_url: str, *, finished: bool
) -> None:
    """The commit takes the scans and then writes the job's progress, or finishes the job."""
    (job,), _ = await leader.add_views(1, named="m")
    await leader.barrier()
    await limits.throttle_job(leader.world, job, 5, asked_by=A_TEST)
    scan = await scan_of(leader.stores, job)
    await leader.injected(*[report(actor.id, scan.id, 7, finished=finished) for actor in scan.actors])
    async with leader.stores.begin() as asking:
        await limits.scans_of(asking, job)
        async with waited_for(database_url, leader.look()) as commit:
            await asking.limits.hold([scan.id])
    assert isinstance(await commit, Commit)


async def test_a_limit_does_not_hold_up_a_commit_that_writes_progress(leader: Leader) -> None:
    (job,), _ = await leader.add_views(1, named="m")
    await leader.barrier()
    scan = await scan_of(leader.stores, job)
    await leader.queue(None)
    await leader.injected(*[report(actor.id, scan.id, 7) for actor in scan.actors])
    async with leader.stores.begin() as asking, asyncio.timeout(10):
        await limits.scans_of(asking, job)
        assert isinstance(await leader.look(), Commit)


@dataclass(frozen=True)
class Decoupled:
    """A job in a graph of its own."""

    job: JobId
    graph: GraphId


@pytest.fixture
async def decoupled(leader: Leader) -> Decoupled:
    (job,), _ = await leader.add_views(1, named="m")
    async with leader.stores.begin() as tx:
        begun = await tx.partial_graphs.begin(job, indexed=True)
        await tx.graphs.set_status(begun.graph, GraphStatus.WAITING, now=NOW)
        await tx.graphs.set_status(begun.graph, GraphStatus.RUNNING, now=NOW, worker=WORKER)
    return Decoupled(job, begun.graph)


async def test_a_limit_and_a_replay_wait_for_each_other_in_one_order(
    leader: Leader, decoupled: Decoupled, database_url: str
) -> None:
    """The replay's commit, which may merge the job, needs the job and what is kept of its snapshot."""

    async def replay() -> None:
        answer = collected(1).model_copy(update={"graph": decoupled.graph, "consumed": Epoch(1)})
        async with leader.stores.begin() as tx:
            await snapshots.follow(tx, decoupled.graph, [answer], lag_max=timedelta(0), now=NOW)

    async with leader.stores.begin() as asking:
        await limits.scans_of(asking, decoupled.job)
        async with waited_for(database_url, replay()) as replaying:
            assert await asking.partial_graphs.unmerged() == [decoupled.graph]
    await replaying


async def test_a_recovery_and_a_replay_that_merges_wait_for_each_other_in_one_order(
    leader: Leader, decoupled: Decoupled, database_url: str
) -> None:
    """The replay's commit has the graph's row, and goes on to that of the database graph."""
    async with leader.stores.begin() as replaying:
        await replaying.graphs.set_paused(decoupled.graph, paused=False, now=NOW)
        async with waited_for(database_url, mutations.recover(leader.world, asked_by=A_TEST)) as recovery:
            await replaying.snapshots.replayed(decoupled.graph, Epoch(1))
            await replaying.partial_graphs.merge(decoupled.graph)
    await recovery


async def test_a_recovery_and_the_end_of_a_graph_wait_for_each_other_in_one_order(
    leader: Leader, decoupled: Decoupled, database_url: str
) -> None:
    async def retire() -> None:
        async with leader.stores.begin() as tx:
            await tx.partial_graphs.retire(decoupled.graph)

    async with leader.stores.begin() as recovering:
        await recovering.graphs.ask_recovery(decoupled.graph, "a test")
        async with waited_for(database_url, retire()) as retiring:
            await recovering.graphs.ask_recovery(DATABASE_GRAPH, "a test")
    await retiring


async def test_a_job_stays_in_its_graph_while_that_is_asked_of_it(
    leader: Leader, decoupled: Decoupled, database_url: str
) -> None:
    """I4: the command is for the graph that the job is in."""

    async def retire() -> None:
        async with leader.stores.begin() as tx:
            await tx.partial_graphs.retire(decoupled.graph)

    async with leader.stores.begin() as asking:
        assert await asking.partial_graphs.of_jobs([decoupled.job]) == {decoupled.job: decoupled.graph}
        async with waited_for(database_url, retire()) as retiring:
            assert not retiring.done()
    await retiring


async def test_two_cancels_of_the_same_jobs_wait_for_each_other_in_one_order(leader: Leader, database_url: str) -> None:
    (low, high), _ = await leader.add_views(2, named="m")
    async with leader.stores.begin() as first:
        await first.jobs.move(low, JobEvent.CANCEL_ASKED, now=NOW)
        cancel = lifecycle.cancel(leader.world, [high, low], asked_by=A_TEST)
        async with waited_for(database_url, cancel) as second:
            await first.jobs.move(high, JobEvent.CANCEL_ASKED, now=NOW)
    assert await second == []


async def test_progress_waits_for_no_call_that_has_locked_a_job_and_is_stored_by_the_next_commit(
    leader: Leader, database_url: str
) -> None:
    (low, high), _ = await leader.add_views(2, named="m")
    texts = {high: {"text": "2%"}, low: {"text": "1%"}}

    async def stored() -> list[tuple[str | None]]:
        async with leader.stores.begin() as tx, asyncio.timeout(10):
            await tx.fragments.store_texts(texts)
        with psycopg.connect(database_url) as connection:
            query = "select progress_text from tidefill.job where id = any(%s) order by id"
            return connection.execute(query, [[low, high]]).fetchall()

    async with leader.stores.begin() as cancelling:
        await cancelling.jobs.hold(low)
        assert await stored() == [(None,), ("2%",)]
    assert await stored() == [("1%",), ("2%",)]


async def test_c15_a_flush_that_comes_while_a_barrier_is_made_rides_on_a_checkpoint(
    leader: Leader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I4: the kind is decided by the commands that the barrier carries, not by those of a moment before."""
    await leader.barrier()
    await alter(leader.world, {"checkpoint_frequency": "10"}, asked_by=A_TEST)
    async with leader.stores.begin() as tx:
        await tx.commands.add(DATABASE_GRAPH, None, asked_by="the adaptive limit", now=NOW, hurried=False)
    read = PostgresCommands.waiting

    async def late(self: PostgresCommands, *args: Any) -> Any:
        monkeypatch.setattr(PostgresCommands, "waiting", read)
        async with leader.stores.begin() as other:
            await other.commands.add(DATABASE_GRAPH, None, asked_by="a test", now=NOW)
        return await read(self, *args)

    monkeypatch.setattr(PostgresCommands, "waiting", late)
    leader.world = replace(leader.world, clock=StillClock(NOW + timedelta(seconds=2)))
    assert isinstance(await leader.look(), Inject)
    async with leader.stores.begin() as tx:
        barrier = await tx.barriers.for_worker(WORKER)
    assert barrier is not None
    assert barrier.kind is BarrierKind.CHECKPOINT


@pytest.mark.parametrize("read", ["read_actors", "read_positions", "read_relations"])
async def test_n9_a_drop_between_two_reads_of_the_plans_leaves_the_plan_out(
    leader: Leader, monkeypatch: pytest.MonkeyPatch, read: str
) -> None:
    """Each read of one transaction sees what was committed before it."""
    dropped, kept = (await leader.add_views(2, named="m"))[0]
    original = getattr(plans, read)

    async def after_a_drop(*args: object) -> object:
        async with leader.stores.begin() as dropping:
            entry = await dropping.catalog.named("m0")
            if entry is not None:
                await dropping.catalog.remove(RelationId(entry.relation.id))
        return await original(*args)

    monkeypatch.setattr(plans, read, after_a_drop)
    async with leader.stores.begin() as tx:
        assert [plan.id for plan in await tx.plans.of([dropped, kept])] == [kept]


async def test_n9_a_drop_of_what_a_view_reads_leaves_its_plan_out(leader: Leader) -> None:
    (job,), _ = await leader.add_views(1, named="m")
    async with leader.stores.begin() as tx:
        (plan,) = await tx.plans.of([job])
        await tx.catalog.remove(plan.table_scans[0].upstream.id)
        assert await tx.plans.of([job]) == []
