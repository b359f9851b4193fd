"""The commit of an Update, whatever happens around it: actors change, positions and counts do not (I6, I11)."""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace

import pytest

from service.domain.errors import Conflict, Invalid, NotFound
from service.domain.graph import GraphStatus, Wait
from service.domain.job import JobEvent, JobState
from service.domain.parallelism import Adaptive, Fixed, Parallelism
from service.operations.barriers import worker_calls
from service.operations.jobs import rescaling
from service.ports.records import NewJob
from service.protocol.barrier import Barrier, BarrierKind
from service.protocol.ids import DATABASE_GRAPH, ActorId, CommandId, Epoch, FragmentId, JobId, RelationId, WorkerId
from service.protocol.mutation import Add, Update
from service.protocol.plan import FragmentPlan, TableScanPlan, VnodePosition
from service.protocol.report import ActorReport
from service.protocol.vnodes import Runs, vnodes_of
from tests.support.leading import Leader, leading
from tests.support.meta_store import (
    A_TEST,
    NOW,
    WORKER,
    add_created,
    add_creating,
    at,
    collected,
    committed_rows,
    done,
    new_table,
    new_view,
    report,
    scan_of,
)

pytestmark = pytest.mark.postgres

READ = (done(0, rows=5), at(1, "k", "1", rows=7), at(5, "k", "2", rows=40))
"""What has been read of the upstream's 8 vnodes."""


@pytest.fixture
async def leader(database_url: str) -> AsyncGenerator[Leader]:
    async with leading(database_url) as made:
        yield made


def view(
    upstream: RelationId,
    parallelism: Parallelism | None = None,
    backfill: Parallelism | None = None,
    *,
    actors: int = 2,
) -> NewJob:
    asked = Fixed(actors) if parallelism is None else parallelism
    return replace(new_view("m", upstream, parallelism=actors), parallelism=asked, backfill_parallelism=backfill)


async def creating(
    leader: Leader, parallelism: Parallelism | None = None, backfill: Parallelism | None = None, *, actors: int = 2
) -> JobId:
    """A creating view that has read `READ`."""
    async with leader.stores.begin() as tx:
        upstream = (await add_created(tx, new_table("t"))).relation
        job = (await add_creating(tx, view(upstream, parallelism, backfill, actors=actors))).id
        (plan,) = await tx.plans.of([job])
    await leader.queue(Add(jobs=(plan,)))
    assert isinstance((await leader.barrier()).mutation, Add)
    await leader.queue(None)
    await leader.barrier(*reports(await scan_of(leader.stores, job), READ))
    return job


def reports(scan: FragmentPlan, positions: Sequence[VnodePosition], *, finished: bool = False) -> list[ActorReport]:
    """What the actors of a scan tell that has read so much."""
    told: list[ActorReport] = []
    for actor in scan.actors:
        mine = [position for position in positions if position.vnode in vnodes_of(actor.vnodes)]
        told.append(report(actor.id, scan.id, sum(one.rows for one in mine), *mine, finished=finished))
    return told


async def stood(leader: Leader, job: JobId) -> tuple[list[Runs], list[VnodePosition], int]:
    """Return the layout of a job's scan, its positions, and the rows that progress shows."""
    scan = await scan_of(leader.stores, job)
    async with leader.stores.begin() as tx:
        (progress,) = (await tx.fragments.scans([job]))[job]
        at = await tx.status.positions(scan.id)
    positions = sorted(at.values(), key=lambda one: one.vnode)
    return [actor.vnodes for actor in scan.actors], positions, progress.rows


async def alter(leader: Leader, job: JobId, **changes: Parallelism | None) -> CommandId:
    return await rescaling.alter(leader.world, job, changes, asked_by=A_TEST)


def layout(barrier: Barrier, fragment: FragmentId) -> list[Runs]:
    assert isinstance(barrier.mutation, Update), barrier.mutation
    return [actor.vnodes for actor in barrier.mutation.fragments[fragment]]


async def recovered(leader: Leader, worker: WorkerId = WORKER) -> None:
    """End the generation, and be ready to start the next."""
    async with leader.stores.begin() as tx:
        await tx.graphs.set_status(DATABASE_GRAPH, GraphStatus.RECOVERING, now=NOW, reason="a test")
        await tx.graphs.set_status(DATABASE_GRAPH, GraphStatus.RUNNING, now=NOW, worker=worker)


@pytest.mark.parametrize("actors", [1, 3, 8])
async def test_an_altered_job_gets_other_actors_and_keeps_its_positions_and_rows(leader: Leader, actors: int) -> None:
    """I11, I6: neither does progress fall nor jump, and the caller learns the epoch."""
    job = await creating(leader)
    scan = await scan_of(leader.stores, job)
    before = await stood(leader, job)
    asked = await alter(leader, job, parallelism=Fixed(actors))
    barrier = await leader.barrier()
    layouts, positions, rows = await stood(leader, job)
    assert layouts == layout(barrier, scan.id)
    assert len(layouts) == actors
    assert sorted(vnode for runs in layouts for vnode in vnodes_of(runs)) == list(range(8))
    assert (positions, rows) == before[1:]
    assert await leader.epoch_of(asked) == barrier.curr
    after = await scan_of(leader.stores, job)
    assert {actor.id for actor in after.actors}.isdisjoint(actor.id for actor in scan.actors)
    assert [sum(one.rows for one in actor.positions) for actor in after.actors] == await stored_rows(leader, job)
    await leader.queue(None)
    assert (await leader.barrier()).mutation is None, "nothing is left to be changed"


async def stored_rows(leader: Leader, job: JobId) -> list[int]:
    """Return what each actor of a job's scan is known to have read."""
    scan = await scan_of(leader.stores, job)
    async with leader.stores.begin() as tx:
        return [await committed_rows(tx, scan.id, actor.id) for actor in scan.actors]


async def test_what_the_new_actors_read_in_the_epoch_of_the_update_counts_at_once(leader: Leader) -> None:
    job = await creating(leader)
    scan = await scan_of(leader.stores, job)
    await alter(leader, job, parallelism=Fixed(1))
    (new,) = (await waiting(leader))[scan.id]
    read = (READ[0], READ[1], at(5, "k", "9", rows=50))
    barrier = await leader.barrier(report(new, scan.id, 62, read[2]))
    assert isinstance(barrier.mutation, Update)
    assert await stood(leader, job) == ([((0, 7),)], list(read), 62)
    assert await stored_rows(leader, job) == [62]


async def waiting(leader: Leader) -> dict[FragmentId, list[ActorId]]:
    """Return the actors that the one waiting Update brings."""
    async with leader.stores.begin() as tx:
        (found,) = await tx.commands.waiting(DATABASE_GRAPH)
    assert isinstance(found.mutation, Update)
    return {one: [actor.id for actor in actors] for one, actors in found.mutation.fragments.items()}


async def test_new_actors_that_have_lost_rows_fail_the_epoch(leader: Leader) -> None:
    """I6, I11: what the old ones had read together, the new ones have read."""
    job = await creating(leader)
    scan = await scan_of(leader.stores, job)
    await alter(leader, job, parallelism=Fixed(1))
    (new,) = (await waiting(leader))[scan.id]
    await leader.look()
    async with leader.stores.begin() as tx:
        barrier = await tx.barriers.for_worker(WORKER)
    assert barrier is not None
    await worker_calls.answer(leader.world, collected(barrier.curr, report(new, scan.id, 51)))
    async with leader.stores.begin() as tx:
        found = await tx.graphs.view(DATABASE_GRAPH, now=NOW, lease=leader.world.workers.lease)
    assert found.in_flight is not None
    assert found.in_flight.failure is not None
    assert found.in_flight.failure.error == f"actor {new} of fragment {scan.id} reports 51 rows after 52"
    assert found.in_flight.failure.job == job


async def test_a_recovery_before_the_commit_rebuilds_the_old_actors_and_asks_again(leader: Leader) -> None:
    """I3, I4."""
    job = await creating(leader)
    before = await stood(leader, job)
    asked = await alter(leader, job, parallelism=Fixed(3))
    await leader.look()
    await recovered(leader)
    assert await stood(leader, job) == before
    assert await leader.epoch_of(asked) is None
    barrier = await leader.barrier()
    assert isinstance(barrier.mutation, Update)
    assert await leader.epoch_of(asked) == barrier.curr
    layouts, *rest = await stood(leader, job)
    assert (len(layouts), tuple(rest)) == (3, before[1:])


async def finish(leader: Leader, job: JobId) -> None:
    scan = await scan_of(leader.stores, job)
    whole = [done(vnode, rows=50) for vnode in range(8)]
    await leader.queue(None)
    await leader.barrier(*reports(scan, whole, finished=True))
    assert await leader.state_of(job) == JobState.CREATED


async def test_the_normal_parallelism_is_restored_once_it_is_created(leader: Leader) -> None:
    job = await creating(leader, Fixed(4), Fixed(1), actors=1)
    scan = await scan_of(leader.stores, job)
    assert len(scan.actors) == 1
    await finish(leader, job)
    barrier = await leader.barrier()
    assert len(layout(barrier, scan.id)) == 4
    layouts, positions, rows = await stood(leader, job)
    assert (len(layouts), len(positions), rows) == (4, 8, 400)
    plan = await scan_of(leader.stores, job)
    assert isinstance(plan, TableScanPlan)
    assert [sum(one.rows for one in actor.positions) for actor in plan.positioned] == [100] * 4
    async with leader.stores.begin() as tx:
        left = (await tx.status.unfinished_actors([job]))[job]
    assert {actor.id for actor in (await scan_of(leader.stores, job)).actors}.isdisjoint(left)
    assert isinstance(await leader.look(), Wait), "asked for once"


async def test_a_restoration_that_got_lost_is_asked_for_again(leader: Leader) -> None:
    """What is there is compared with what is asked for; a recovery or a lost command is only a delay."""
    job = await creating(leader, Fixed(4), Fixed(1), actors=1)
    await finish(leader, job)
    async with leader.stores.begin() as tx:
        (found,) = await tx.commands.waiting(DATABASE_GRAPH)
        await tx.commands.finish([found.id], epoch=Epoch(1), error="lost")
    await recovered(leader)
    await leader.queue(None)
    await leader.barrier()
    assert isinstance((await leader.barrier()).mutation, Update)
    assert len((await stood(leader, job))[0]) == 4


async def test_an_adaptive_job_follows_the_slots_of_the_next_worker(leader: Leader) -> None:
    job = await creating(leader, Adaptive())
    before = await stood(leader, job)
    other = await leader.replaced(WorkerId("w-5"), parallelism=5)
    barrier = await leader.barrier(worker=other)
    assert barrier.kind is BarrierKind.INITIAL
    async with leader.stores.begin() as tx:
        (found,) = await tx.commands.waiting(DATABASE_GRAPH)
    assert isinstance(found.mutation, Update)
    await leader.barrier(worker=other)
    layouts, *rest = await stood(leader, job)
    assert (len(layouts), tuple(rest)) == (5, before[1:])


async def test_a_change_that_does_not_hold_yet_moves_nothing(leader: Leader) -> None:
    job = await creating(leader, Fixed(4), Fixed(2))
    before = await stood(leader, job)
    asked = await alter(leader, job, parallelism=Fixed(8))
    barrier = await leader.barrier()
    assert (barrier.mutation, await leader.epoch_of(asked)) == (None, barrier.curr)
    assert await stood(leader, job) == before
    await finish(leader, job)
    await leader.barrier()
    assert len((await stood(leader, job))[0]) == 8
    await alter(leader, job, backfill_parallelism=Fixed(1))
    assert (await leader.barrier()).mutation is None


@pytest.mark.parametrize("in_flight", [False, True], ids=["waiting", "in flight"])
async def test_the_last_of_two_changes_counts_and_is_answered_where_it_holds(leader: Leader, in_flight: bool) -> None:
    """I4: also where the second takes the first back."""
    job = await creating(leader)
    first = await alter(leader, job, parallelism=Fixed(5))
    if in_flight:
        await leader.look()
    second = await alter(leader, job, parallelism=Fixed(2))
    barriers = [await leader.answered() if in_flight else await leader.barrier(), await leader.barrier()]
    assert [await leader.epoch_of(one) for one in (first, second)] == [one.curr for one in barriers]
    assert len((await stood(leader, job))[0]) == 2
    assert isinstance(await leader.look(), Wait)


async def test_a_queued_job_starts_with_the_actors_it_was_given_meanwhile(leader: Leader) -> None:
    async with leader.stores.begin() as tx:
        upstream = (await add_created(tx, new_table("t"))).relation
        job = (await tx.jobs.add(view(upstream), now=NOW)).id
        await tx.jobs.move(job, JobEvent.QUEUED, now=NOW)
    await alter(leader, job, backfill_parallelism=Fixed(7))
    assert len((await scan_of(leader.stores, job)).actors) == 7
    async with leader.stores.begin() as tx:
        (found,) = await tx.commands.waiting(DATABASE_GRAPH)
    assert found.mutation is None


async def test_what_is_refused_changes_nothing(leader: Leader) -> None:
    job = await creating(leader)
    table = JobId(1)
    with pytest.raises(Invalid, match="specified parallelism 9 should not exceed max parallelism 8"):
        await alter(leader, job, parallelism=Fixed(9))
    with pytest.raises(Invalid, match="specified backfill parallelism 9 should not exceed max parallelism 8"):
        await alter(leader, job, backfill_parallelism=Fixed(9))
    with pytest.raises(Invalid, match="stream scan node or source node not found"):
        await alter(leader, table, parallelism=Fixed(1))
    with pytest.raises(NotFound):
        await alter(leader, JobId(99), parallelism=Fixed(1))
    async with leader.stores.begin() as tx:
        await tx.jobs.move(job, JobEvent.CANCEL_ASKED, now=NOW)
        assert await tx.commands.waiting(DATABASE_GRAPH) == []
    with pytest.raises(Conflict, match="Cancelling"):
        await alter(leader, job, parallelism=Fixed(1))


async def test_an_update_of_a_job_that_was_dropped_meanwhile_does_nothing(leader: Leader) -> None:
    job = await creating(leader)
    await alter(leader, job, parallelism=Fixed(3))
    async with leader.stores.begin() as tx:
        found = await tx.jobs.get(job)
        assert found is not None
        await tx.catalog.remove(found.relation)
    assert isinstance((await leader.barrier()).mutation, Update)
