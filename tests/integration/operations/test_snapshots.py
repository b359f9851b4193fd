"""A snapshot job's life, look by look: its own graph, its replay, its merge, and what is left of it (I4, I9, I10)."""

from collections.abc import AsyncGenerator, Collection
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import pytest

from service.domain.errors import Exhausted, Invalid, NotFound, Unavailable
from service.domain.graph import (
    Abandon,
    ApplyStops,
    BuildIndex,
    Commit,
    Effect,
    Inject,
    Publish,
    Retire,
    RollBack,
    Wait,
)
from service.domain.job import JobEvent, JobState
from service.domain.parallelism import Adaptive
from service.domain.waiting import Reason, Waiting
from service.operations.barriers.advance import advance
from service.operations.barriers.effects import progress_of
from service.operations.commands import mutations
from service.operations.commands.fan_out import ask
from service.operations.jobs import queue, snapshots
from service.operations.status import listing
from service.operations.upkeep import maintenance
from service.ports.snapshots import Snapshot
from service.protocol.barrier import Barrier, BarrierKind
from service.protocol.ids import DATABASE_GRAPH, Epoch, GraphId, JobId, RelationId, Vnode, WorkerId
from service.protocol.mutation import Add, Pause, Resume, Stop, Throttle
from service.protocol.plan import FragmentPlan, PositionState, ScanType, TableScanPlan, VnodePosition
from service.protocol.report import ActorReport, Collected, RelationReport
from service.protocol.vnodes import vnodes_of
from tests.support.http import StillClock, changed
from tests.support.leading import Leader, leading
from tests.support.meta_store import A_TEST, NOW, WORKER, add_created, new_table, new_view, registration

pytestmark = pytest.mark.postgres

MANY = 200_000
"""So many rows are loaded before the index is built."""


@dataclass
class Tables:
    """A state store that notes what it is told, and does what it does not fail."""

    said: list[tuple[str, Any]] = field(default_factory=list[tuple[str, Any]])
    fails: dict[str, Exception] = field(default_factory=dict[str, Exception])
    left: Collection[int] = ()
    """The generations whose sessions a fence cannot end."""

    def __getattr__(self, name: str) -> Any:
        async def note(*values: object, **named: object) -> Any:
            first: Any = values[0]
            told = {"roll_back": lambda: (tuple(first), values[2]), "vacuum": lambda: values[2]}
            self.said.append((name, told.get(name, lambda: first)()))
            if name in self.fails:
                raise self.fails[name]
            if name == "fence":
                return self.left
            return {} if name in {"publish", "foreign_readers"} else 0

        return note

    def last(self, name: str) -> Any:
        return next(value for said, value in reversed(self.said) if said == name)


@dataclass
class Life:
    """A leader, a table whose rows are counted, and a view over it that is asked for."""

    leader: Leader
    tables: Tables
    job: JobId
    relation: RelationId
    scan: FragmentPlan

    async def look(self, graph: GraphId) -> Effect:
        return await advance(self.leader.world, graph, term=self.leader.term)

    async def start(self) -> Snapshot:
        """Have the queue start the job, and its graph fenced."""
        assert await queue.start_jobs(self.leader.world, term=self.leader.term) == 1
        snapshot = await self.snapshot()
        assert isinstance(await self.look(snapshot.graph), RollBack)
        return snapshot

    async def snapshot(self) -> Snapshot:
        async with self.leader.stores.begin() as tx:
            return (await tx.snapshots.of_jobs([self.job]))[self.job]

    async def injected(self, graph: GraphId) -> Barrier:
        assert isinstance(await self.look(graph), Inject)
        async with self.leader.stores.begin() as tx:
            barrier = await tx.barriers.for_worker(WORKER, {})
        assert barrier is not None
        assert barrier.graph == graph
        return barrier

    async def collected(self, barrier: Barrier, *actors: ActorReport, consumed: Epoch | None = None) -> None:
        answer = Collected(
            worker=WORKER,
            graph=barrier.graph,
            generation=barrier.generation,
            epoch=barrier.curr,
            reports=actors,
            consumed=consumed,
        )
        async with self.leader.stores.begin() as tx:
            assert await tx.barriers.answer(answer, now=NOW)
        assert isinstance(await self.look(barrier.graph), Commit)

    async def flushed(self, graph: GraphId) -> Barrier:
        """Have a graph's next barrier injected: a flush asks for it, as time stands still."""
        async with self.leader.stores.begin() as tx:
            await tx.commands.add(graph, None, asked_by="a test", now=NOW)
        return await self.injected(graph)

    async def barrier(self, graph: GraphId, *actors: ActorReport, consumed: Epoch | None = None) -> Barrier:
        """Have a graph's next barrier committed."""
        barrier = await self.flushed(graph)
        await self.collected(barrier, *actors, consumed=consumed)
        if graph == DATABASE_GRAPH:
            assert isinstance(await self.look(graph), Publish)
        return barrier

    def reports(self, *, finished: bool) -> list[ActorReport]:
        """Every actor read everything it owns, in this epoch or before it."""
        return [
            ActorReport(
                actor=actor.id,
                fragment=self.scan.id,
                rows=4,
                completed=not finished,
                finished=finished,
                positions=()
                if finished
                else tuple(
                    VnodePosition(vnode=Vnode(vnode), state=PositionState.COMPLETED, rows=1)
                    for first, last in actor.vnodes
                    for vnode in range(first, last + 1)
                ),
            )
            for actor in self.scan.actors
        ]

    async def loaded(self, graph: GraphId) -> None:
        """Have the snapshot read to its end, and told so."""
        await self.barrier(graph, *self.reports(finished=False))
        await self.barrier(graph, *self.reports(finished=True))

    async def text(self) -> str:
        async with self.leader.stores.begin() as tx:
            found = await tx.jobs.get(self.job)
            assert found is not None
            return (await progress_of(tx, [found]))[self.job].text

    async def state(self) -> str:
        return await self.leader.state_of(self.job)


@pytest.fixture
async def life(database_url: str, request: pytest.FixtureRequest) -> AsyncGenerator[Life]:
    rows = getattr(request, "param", 10)
    tables = Tables()
    async with leading(database_url) as leader:
        leader.world = changed(leader.world, tables=tables, fences=tables)  # pyright: ignore[reportArgumentType]
        async with leader.stores.begin() as tx:
            table = await add_created(tx, new_table("t"))
        await _counted(leader, table.relation, rows)
        async with leader.stores.begin() as tx:
            new = new_view("m", table.relation)
            scans = tuple(replace(one, scan_type=ScanType.SNAPSHOT_BACKFILL) for one in new.table_scans)
            job = await tx.jobs.add(replace(new, fragments=scans), now=NOW)
            (plan,) = await tx.plans.of([job.id])
        yield Life(leader, tables, job.id, job.relation, plan.fragments[0])


async def _counted(leader: Leader, table: RelationId, rows: int) -> None:
    await leader.queue(None)
    assert isinstance(await leader.look(), Inject)
    async with leader.stores.begin() as tx:
        barrier = await tx.barriers.for_worker(WORKER, {})
    assert barrier is not None
    answer = Collected(
        worker=WORKER,
        graph=DATABASE_GRAPH,
        generation=barrier.generation,
        epoch=barrier.curr,
        relations=(RelationReport(relation=table, key_count_delta=rows),),
    )
    async with leader.stores.begin() as tx:
        await tx.barriers.answer(answer, now=NOW)
    assert isinstance(await leader.look(), Commit)
    assert isinstance(await leader.look(), Publish)


async def committed(life: Life, graph: GraphId = DATABASE_GRAPH) -> Epoch:
    async with life.leader.stores.begin() as tx:
        return (await tx.graphs.state(graph)).committed


async def test_it_reads_one_epoch_replays_merges_and_is_created(life: Life) -> None:
    snapshot = await life.start()
    graph, pinned = snapshot.graph, await committed(life)
    assert graph != DATABASE_GRAPH
    assert (snapshot.epoch, snapshot.consumed, snapshot.indexed) == (pinned, None, True)
    first = await life.injected(graph)
    assert first.kind is BarrierKind.INITIAL
    assert isinstance(first.mutation, Add)
    (plan,) = first.mutation.jobs
    assert plan.snapshot is not None
    assert (plan.id, plan.snapshot.epoch, plan.snapshot.consumed) == (life.job, pinned, None)
    await life.collected(first)
    assert (await life.text()).startswith("0.0%")
    await life.barrier(graph, *life.reports(finished=False))
    assert (await life.text()) == "Snapshot [80.00% (8/10)]"
    # The database graph goes on, and the log is kept from the pinned epoch on.
    for _ in range(3):
        await life.barrier(DATABASE_GRAPH)
    await maintenance.vacuum(life.leader.world, term=life.leader.term)
    assert life.tables.last("vacuum") == pinned
    upto = await committed(life)
    told = await life.barrier(graph, *life.reports(finished=True), consumed=upto)
    assert told.replay_upto == upto
    # It merged in that commit.
    async with life.leader.stores.begin() as tx:
        found = await tx.jobs.get(life.job)
        assert found is not None
        assert (found.state, found.graph) == (JobState.CREATING, DATABASE_GRAPH)
    assert (await life.text()).startswith("Finishing [epoch lag: ")
    assert isinstance(await life.look(graph), Wait)
    merging = await life.injected(DATABASE_GRAPH)
    assert isinstance(merging.mutation, Add)
    (plan,) = merging.mutation.jobs
    assert plan.snapshot is not None
    assert plan.snapshot.consumed == upto
    assert merging.curr > told.curr, "what the job's own graph wrote is older"
    await maintenance.vacuum(life.leader.world, term=life.leader.term)
    assert life.tables.last("vacuum") == upto, "the log is kept until the database graph has read it"
    await life.collected(merging, *life.reports(finished=True))
    assert await life.state() == JobState.CREATED
    assert isinstance(await life.look(graph), Retire)
    assert life.tables.last("retire") == graph
    with pytest.raises(NotFound):
        await life.look(graph)
    async with life.leader.stores.begin() as tx:
        (plan,) = await tx.plans.of([life.job])
    assert plan.snapshot is None, "the next generation goes on from its own epochs"


@pytest.mark.parametrize("life", [MANY], indirect=True)
async def test_the_index_is_built_once_the_snapshot_is_loaded(life: Life) -> None:
    graph = (await life.start()).graph
    assert not (await life.snapshot()).indexed
    await life.collected(await life.injected(graph))
    await life.barrier(graph, *life.reports(finished=False))
    told = await life.barrier(graph, *life.reports(finished=True))
    assert told.replay_upto is None, "nothing is replayed into a table that cannot find its rows"
    assert await life.text() == "Snapshot finished"
    assert isinstance(await life.look(graph), BuildIndex)
    assert life.tables.last("end_load").id == life.relation
    snapshot = await life.snapshot()
    assert (snapshot.consumed, snapshot.merged) == (snapshot.epoch, True), "so little is left that nothing is replayed"


async def unindexed(life: Life) -> GraphId:
    """Load the snapshot of a job whose index comes afterwards."""
    graph = (await life.start()).graph
    await life.collected(await life.injected(graph))
    await life.loaded(graph)
    return graph


async def waiting(life: Life) -> Waiting:
    view = (await listing.job(life.leader.world, life.job)).job.waiting
    assert view is not None
    return view


async def later(life: Life, seconds: float) -> None:
    """Let time pass in which the worker lives."""
    assert isinstance(life.leader.world.clock, StillClock)
    life.leader.world.clock.wall += timedelta(seconds=seconds)
    async with life.leader.stores.begin() as tx:
        await tx.workers.seen(WORKER, now=life.leader.world.clock.now())


@pytest.mark.parametrize("life", [MANY], indirect=True)
async def test_a_job_whose_index_lacks_space_again_and_again_fails(life: Life) -> None:
    """I13: it holds a permit, so that nothing else is created meanwhile."""
    graph = await unindexed(life)
    life.tables.fails["end_load"] = Exhausted("no space left on device")
    for _ in range(2):
        assert isinstance(await life.look(graph), BuildIndex)
        assert await life.state() == JobState.CREATING
        told = await waiting(life)
        assert (told.reason, "no space left" in told.text) == (Reason.INDEX, True)
        assert told.until == life.leader.world.clock.now() + snapshots.INDEX_PAUSE
        # Meanwhile barriers carry what is asked of the job.
        await life.barrier(graph)
        await later(life, snapshots.INDEX_PAUSE.total_seconds())
    assert isinstance(await life.look(graph), BuildIndex)
    async with life.leader.stores.begin() as tx:
        found = await tx.jobs.get(life.job)
    assert found is not None
    assert found.state is JobState.FAILED
    assert found.error == "the index of its table could not be built: no space left on device"
    assert isinstance(await life.look(graph), Retire)


@pytest.mark.parametrize("life", [MANY], indirect=True)
async def test_a_job_whose_index_is_refused_fails_at_once(life: Life) -> None:
    graph = await unindexed(life)
    life.tables.fails["end_load"] = Invalid("index row size 2712 exceeds the maximum")
    assert isinstance(await life.look(graph), BuildIndex)
    assert await life.state() == JobState.FAILED


@pytest.mark.parametrize("life", [MANY], indirect=True)
async def test_a_store_that_is_away_fails_no_job(life: Life) -> None:
    graph = await unindexed(life)
    life.tables.fails["end_load"] = Unavailable("connection refused")
    for _ in range(5):
        assert isinstance(await life.look(graph), BuildIndex)
        assert "connection refused" in (await waiting(life)).text
        await later(life, 5)
    life.tables.fails.clear()
    assert isinstance(await life.look(graph), BuildIndex)
    assert (await life.snapshot()).merged


async def test_it_replays_until_little_is_left(life: Life) -> None:
    graph = (await life.start()).graph
    pinned = (await life.snapshot()).epoch
    await life.collected(await life.injected(graph))
    await life.loaded(graph)
    behind = Epoch(pinned - (60_000 << 16))
    await life.barrier(graph, consumed=behind)
    assert not (await life.snapshot()).merged
    assert (await life.text()).startswith("LogStore [actor: 0/2, avg lag 60")
    await life.barrier(graph, consumed=await committed(life))
    assert (await life.snapshot()).merged


async def test_a_recovery_of_its_graph_goes_on_from_what_was_committed(life: Life) -> None:
    """I3: and a recovery of one graph is none of the other (I10)."""
    graph = (await life.start()).graph
    await life.collected(await life.injected(graph))
    await life.loaded(graph)
    consumed = Epoch((await life.snapshot()).epoch - (60_000 << 16))
    last = await life.barrier(graph, consumed=consumed)
    async with life.leader.stores.begin() as tx:
        await tx.graphs.ask_recovery(graph, "a test")
    assert isinstance(await life.look(graph), Abandon)
    assert isinstance(await life.look(graph), RollBack)
    assert life.tables.last("roll_back") == ((life.relation,), last.curr)
    again = await life.injected(graph)
    assert isinstance(again.mutation, Add)
    (plan,) = again.mutation.jobs
    assert plan.snapshot is not None
    assert plan.snapshot.consumed == consumed
    scan = plan.fragments[0]
    assert isinstance(scan, TableScanPlan)
    assert (scan.finished, scan.actors[0].positions) == (True, ()), "no barrier carries what is read to its end"
    assert [len(actor.positions) for actor in scan.positioned] == [4, 4]
    async with life.leader.stores.begin() as tx:
        assert (await tx.graphs.state(DATABASE_GRAPH)).recoveries == 0


@pytest.mark.parametrize(("slots", "actors"), [(1, 1), (3, 3)])
async def test_h5_a_recovery_gives_it_as_many_actors_as_the_next_worker_has_slots(
    life: Life, slots: int, actors: int
) -> None:
    """I11: what was read stays read, whoever owns it now."""
    async with life.leader.stores.begin() as tx:
        await tx.rescaling.set_parallelism(life.job, Adaptive(), None)
    graph = (await life.start()).graph
    await life.collected(await life.injected(graph))
    await life.barrier(graph, *life.reports(finished=False))
    before = await life.text()
    async with life.leader.stores.begin() as tx:
        await tx.workers.register(registration(WorkerId("other")).model_copy(update={"parallelism": slots}), now=NOW)
        await tx.graphs.ask_recovery(graph, "a test")
        await tx.workers.give_up(WORKER)
    assert isinstance(await life.look(graph), Abandon)
    assert isinstance(await life.look(graph), RollBack)
    assert isinstance(await life.look(graph), Inject)
    async with life.leader.stores.begin() as tx:
        again = await tx.barriers.for_worker(WorkerId("other"), {})
    assert again is not None
    assert isinstance(again.mutation, Add)
    scan = again.mutation.jobs[0].fragments[0]
    assert len(scan.actors) == actors
    assert sorted(vnode for actor in scan.actors for vnode in vnodes_of(actor.vnodes)) == list(range(8))
    assert len([one for actor in scan.actors for one in actor.positions]) == 8
    assert await life.text() == before


async def test_a_recovery_between_merge_and_creation_keeps_what_the_job_s_graph_wrote(life: Life) -> None:
    """I3: the database graph has committed less than the job's own graph, whose rows stay."""
    graph = (await life.start()).graph
    await life.collected(await life.injected(graph))
    await life.loaded(graph)
    upto = await committed(life)
    last = await life.barrier(graph, consumed=upto)
    assert last.curr > upto
    await life.injected(DATABASE_GRAPH)
    async with life.leader.stores.begin() as tx:
        await tx.graphs.ask_recovery(DATABASE_GRAPH, "a test")
    assert isinstance(await life.look(DATABASE_GRAPH), Abandon)
    assert isinstance(await life.look(DATABASE_GRAPH), RollBack)
    assert ("roll_back", ((life.relation,), last.curr)) in life.tables.said
    initial = await life.injected(DATABASE_GRAPH)
    assert isinstance(initial.mutation, Add)
    plan = next(job for job in initial.mutation.jobs if job.id == life.job)
    assert plan.snapshot is not None
    assert plan.snapshot.consumed == upto
    await life.collected(initial, *life.reports(finished=True))
    assert await life.state() == JobState.CREATED


async def test_a_cancel_needs_no_barrier_and_leaves_nothing(life: Life) -> None:
    """I9: even with an epoch in flight that nobody answers."""
    graph = (await life.start()).graph
    await life.injected(graph)
    async with life.leader.stores.begin() as tx:
        await tx.jobs.move(life.job, JobEvent.CANCEL_ASKED, now=NOW)
        await ask(tx, Stop(jobs=(life.job,)), asked_by=A_TEST, now=NOW)
    assert isinstance(await life.look(graph), Abandon)
    assert isinstance(await life.look(graph), RollBack)
    assert isinstance(await life.look(graph), ApplyStops)
    assert await life.state() == JobState.CANCELLED
    assert isinstance(await life.look(graph), Retire)
    async with life.leader.stores.begin() as tx:
        assert await tx.partial_graphs.all() == []
        assert await tx.snapshots.pinned() is None
        assert [one.relation for one in await tx.cleanups.all()] == [life.relation]


async def test_a_pause_reaches_it_and_one_that_starts_later(life: Life) -> None:
    """I4: acknowledged once every graph has applied it."""
    world = life.leader.world
    asked = await mutations.inject(world, Pause(), asked_by=A_TEST)
    graph = (await life.start()).graph
    first = await life.injected(graph)
    assert isinstance(first.mutation, Add)
    assert first.mutation.paused, "the pause was asked for before it started"
    await life.collected(first)
    paused = await life.injected(DATABASE_GRAPH)
    assert isinstance(paused.mutation, Pause)
    await life.collected(paused)
    assert isinstance(await life.look(DATABASE_GRAPH), Publish)
    assert await life.leader.epoch_of(asked) == paused.curr
    later = await mutations.inject(world, Pause(), asked_by=A_TEST)
    in_database = await life.injected(DATABASE_GRAPH)
    await life.collected(in_database)
    assert isinstance(await life.look(DATABASE_GRAPH), Publish)
    assert await life.leader.epoch_of(later) is None, "its other half has not been carried"
    own = await life.injected(graph)
    await life.collected(own)
    assert await life.leader.epoch_of(later) == own.curr, "from then on not one row of history is read"
    resumed = await mutations.inject(world, Resume(), asked_by=A_TEST)
    in_database = await life.injected(DATABASE_GRAPH)
    assert isinstance(in_database.mutation, Resume)
    await life.collected(in_database)
    assert isinstance(await life.look(DATABASE_GRAPH), Publish)
    assert await life.leader.epoch_of(resumed) is None, "its other half has not been carried"
    own = await life.injected(graph)
    assert isinstance(own.mutation, Resume)
    await life.collected(own)
    assert await life.leader.epoch_of(resumed) == in_database.curr


async def test_what_waits_for_it_when_it_merges_goes_along(life: Life) -> None:
    """I4: a Throttle that its own graph never carried is carried by the database graph."""
    graph = (await life.start()).graph
    await life.collected(await life.injected(graph))
    await life.loaded(graph)
    barrier = await life.flushed(graph)
    asked = await mutations.inject(life.leader.world, Throttle(fragments={life.scan.id: 7}), asked_by=A_TEST)
    await life.collected(barrier, consumed=await committed(life))
    assert (await life.snapshot()).merged
    carried = [await life.injected(DATABASE_GRAPH)]
    await life.collected(carried[0])
    assert isinstance(await life.look(DATABASE_GRAPH), Publish)
    carried.append(await life.injected(DATABASE_GRAPH))
    await life.collected(carried[1])
    assert {type(one.mutation) for one in carried} == {Add, Throttle}
    assert await life.leader.epoch_of(asked) in {one.curr for one in carried}


async def test_no_epoch_is_given_twice(life: Life) -> None:
    """Two graphs make barriers from one sequence."""
    graph = (await life.start()).graph
    own = await life.injected(graph)
    async with life.leader.stores.begin() as tx:
        await tx.commands.add(DATABASE_GRAPH, None, asked_by="a test", now=NOW)
    assert isinstance(await life.look(DATABASE_GRAPH), Inject)
    async with life.leader.stores.begin() as tx:
        other = await tx.barriers.for_worker(WORKER, {graph: own.curr})
    assert other is not None
    assert other.graph == DATABASE_GRAPH
    assert other.curr > own.curr


@pytest.mark.parametrize(("left", "state"), [({1}, "Creating"), ({1, 2}, "Failed")])
async def test_i13_a_job_whose_sessions_cannot_be_ended_fails(life: Life, left: Collection[int], state: str) -> None:
    snapshot = await life.start()
    life.tables.left = left
    await life.injected(snapshot.graph)
    async with life.leader.stores.begin() as tx:
        await tx.graphs.ask_recovery(snapshot.graph, "a test")
    assert isinstance(await life.look(snapshot.graph), Abandon)
    assert isinstance(await life.look(snapshot.graph), RollBack)
    assert await life.leader.state_of(life.job) == state
