"""Workers of serverless jobs: when one is started, kept and ended, whom it serves, and what happens when it hangs."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from types import SimpleNamespace
from typing import cast
from unittest.mock import AsyncMock

import pytest

from service.domain.errors import NotFound, Stale
from service.domain.graph import Abandon, Inject, Retire, RollBack
from service.domain.job import JobEvent, JobState
from service.operations.barriers import recovery
from service.operations.barriers.advance import advance
from service.operations.commands.fan_out import ask
from service.operations.jobs import lifecycle, queue
from service.operations.jobs.rescaling import slots
from service.operations.jobs.standing import standing_of
from service.operations.status.readiness import readiness
from service.operations.status.wait_reasons import waits_of
from service.operations.upkeep.launching import supervise
from service.operations.world import World
from service.ports.audit import itself
from service.ports.launcher import Ended
from service.ports.records import NewJob
from service.ports.signals import Topic
from service.ports.state_store import Reader
from service.protocol.ids import DATABASE_GRAPH, GraphId, JobId, RelationId, Term, WorkerId
from service.protocol.mutation import Stop
from service.protocol.plan import ScanType
from tests.support.fake_meta_store import FakeStores
from tests.support.fake_state_store import FakeFences, FakeTables, StateStore
from tests.support.http import StillClock, UnheardSignals, changed, world_of
from tests.support.meta_store import LEASE, NOW, WORKER, add_created, new_table, new_view, registration, running

OWN = WorkerId("own")


@dataclass
class Machine:
    """A launcher that notes what it is told, and says what a test tells it to."""

    kept: Collection[GraphId] = ()
    missing: Collection[GraphId] = ()
    given_up: Collection[WorkerId] = ()
    ended: list[Ended] = field(default_factory=list[Ended])

    async def supervise(
        self, given_up: Collection[WorkerId], *, kept: Collection[GraphId], missing: Collection[GraphId]
    ) -> Sequence[Ended]:
        self.given_up, self.kept, self.missing = given_up, kept, missing
        ended, self.ended = self.ended, []
        return ended

    async def stop(self) -> None:
        return


def serverless(name: str, table: RelationId) -> NewJob:
    new = new_view(name, table)
    scans = tuple(replace(one, scan_type=ScanType.SNAPSHOT_BACKFILL) for one in new.table_scans)
    return replace(new, fragments=scans, serverless=True)


@dataclass
class Cluster:
    """A leader, its launcher, and jobs `a` and `b`, of which one at a time is created."""

    stores: FakeStores
    world: World
    clock: StillClock
    term: Term
    a: JobId
    b: JobId
    machine: Machine = field(default_factory=Machine)

    async def look(self, *, leading: bool = True) -> tuple[list[GraphId], list[GraphId]]:
        """Have the launcher look; return the graphs whose workers it keeps, and those that it starts one for."""
        await supervise(self.world, self.machine, leading=leading)
        return list(self.machine.kept), list(self.machine.missing)

    async def start(self) -> GraphId:
        """Have the queue start what may start; return the graph of the job that did."""
        assert await queue.start_jobs(self.world, term=self.term) == 1
        async with self.stores.begin() as tx:
            (graph,) = await tx.partial_graphs.all()
        return graph

    async def register(self, worker: WorkerId, graph: GraphId) -> None:
        async with self.stores.begin() as tx:
            presented = registration(worker).model_copy(update={"graph": graph, "parallelism": 7})
            await tx.workers.register(presented, now=self.clock.now())

    async def alive(self, graph: GraphId) -> Collection[WorkerId]:
        async with self.stores.begin() as tx:
            return (await tx.graphs.view(graph, now=self.clock.now(), lease=LEASE)).alive

    async def step(self, graph: GraphId) -> object:
        return await advance(self.world, graph, term=self.term)

    async def injected(self, graph: GraphId) -> None:
        """Bring a graph to its first barrier."""
        assert isinstance(await self.step(graph), RollBack)
        assert isinstance(await self.step(graph), Inject)

    async def later(self, seconds: float) -> None:
        """Let time go by, with every worker alive."""
        self.clock.wall += timedelta(seconds=seconds)
        async with self.stores.begin() as tx:
            for record in await tx.workers.all(now=self.clock.now(), lease=timedelta(days=1)):
                if record.alive:
                    await tx.workers.seen(record.worker, now=self.clock.now())

    async def why(self) -> str:
        async with self.stores.begin() as tx:
            found = await tx.jobs.get(self.a)
            assert found is not None
            waiting = (await waits_of(self.world, tx, [found], await standing_of(tx, [found]))).get(self.a)
        return "" if waiting is None else f"{waiting.reason}: {waiting.text}"


@pytest.fixture
async def cluster() -> Cluster:
    clock = StillClock()
    stores, tables = FakeStores(clock.now), FakeTables(StateStore())
    world = world_of(stores, tables=tables, fences=FakeFences(tables.store), clock=clock, startable=True)
    async with stores.begin() as tx:
        table = await add_created(tx, new_table("t"))
        first, second = [await tx.jobs.add(serverless(name, table.relation), now=NOW) for name in "ab"]
        term = await tx.leases.gain("a", lease=LEASE)
    assert term is not None
    await world.state_store.fences.claim(term)
    await running(stores)
    return Cluster(stores, world, clock, term, first.id, second.id)


async def test_it_is_started_once_its_job_holds_a_permit_and_by_the_leader_alone(cluster: Cluster) -> None:
    assert await cluster.look() == ([DATABASE_GRAPH], [DATABASE_GRAPH])
    graph = await cluster.start()
    async with cluster.stores.begin() as tx:
        queued = await tx.jobs.get(cluster.b)
    assert queued is not None
    assert queued.state is JobState.QUEUED
    assert await cluster.look() == ([DATABASE_GRAPH, graph], [DATABASE_GRAPH, graph])
    assert await cluster.look(leading=False) == ([DATABASE_GRAPH, graph], [DATABASE_GRAPH])


async def test_a_job_queues_for_its_worker_and_lets_others_pass(cluster: Cluster) -> None:
    async with cluster.stores.begin() as tx:
        await tx.parameters.set("max_concurrent_creating_streaming_jobs", "0")
        await tx.parameters.set("serverless_workers_max", "1")
        table = await tx.catalog.named("t")
        assert table is not None
        shared = await tx.jobs.add(replace(serverless("c", table.relation.id), serverless=False), now=NOW)
    assert await queue.start_jobs(cluster.world, term=cluster.term) == 2
    async with cluster.stores.begin() as tx:
        assert [job.name for job in await tx.jobs.where({JobState.CREATING})] == ["a", shared.name]
        assert [one.job for one in await tx.queue.waiting()] == [cluster.b]
    assert await queue.start_jobs(cluster.world, term=cluster.term) == 0
    # The worker of the first job ends with its merge, before the job does.
    async with cluster.stores.begin() as tx:
        (graph,) = await tx.workers.wanted()
        await tx.partial_graphs.merge(graph)
    assert await queue.start_jobs(cluster.world, term=cluster.term) == 1
    async with cluster.stores.begin() as tx:
        assert not await tx.queue.waiting()


async def test_one_that_another_service_started_is_enough_and_is_kept(cluster: Cluster) -> None:
    """A new leader goes on with the worker of the last one; when that is gone, it starts its own."""
    graph = await cluster.start()
    await cluster.register(OWN, graph)
    assert await cluster.look() == ([DATABASE_GRAPH, graph], [DATABASE_GRAPH])
    cluster.clock.wall += LEASE
    assert await cluster.look() == ([DATABASE_GRAPH, graph], [DATABASE_GRAPH, graph])
    assert OWN in cluster.machine.given_up


async def test_it_serves_its_graph_and_no_other_and_no_other_serves_that(cluster: Cluster) -> None:
    graph = await cluster.start()
    assert (await cluster.alive(graph), await cluster.alive(DATABASE_GRAPH)) == (set(), {WORKER})
    assert await cluster.why() == "start: its barriers are about to begin"
    assert isinstance(await cluster.step(graph), RollBack)
    assert await cluster.why() == "worker: its own worker is being started"
    await cluster.register(OWN, graph)
    assert (await cluster.alive(graph), await cluster.alive(DATABASE_GRAPH)) == ({OWN}, {WORKER})
    async with cluster.stores.begin() as tx:
        assert await slots(tx, now=cluster.clock.now(), lease=LEASE) == 2, "those of the workers that all share"
    effect = await cluster.step(graph)
    assert isinstance(effect, Inject)
    assert effect.worker == OWN


async def test_the_job_says_why_it_waits_when_its_worker_cannot_be_started(cluster: Cluster) -> None:
    graph = await cluster.start()
    await cluster.step(graph)
    cluster.machine.ended.append(Ended(OWN, graph, "exit code 3", failures=2, wait=timedelta(seconds=4)))
    await cluster.look()
    assert await cluster.why() == "worker: its own worker failed 2 times in a row: exit code 3"
    async with cluster.stores.begin() as tx:
        found = await tx.jobs.get(cluster.a)
        assert found is not None
        assert (await waits_of(cluster.world, tx, [found], await standing_of(tx, [found])))[
            cluster.a
        ].until == NOW + timedelta(seconds=4)
        (*_, event) = await tx.events.since(0, limit=1000)
    assert (event.kind, event.facts["graph"], event.facts["failures"]) == ("worker.lost", graph, 2)
    cluster.world = changed(cluster.world, startable=False)
    assert "TIDEFILL_LAUNCHER" in await cluster.why()


async def test_nothing_keeps_it_once_the_job_goes_on_in_the_database_graph(cluster: Cluster) -> None:
    graph = await cluster.start()
    await cluster.register(OWN, graph)
    async with cluster.stores.begin() as tx:
        await tx.partial_graphs.merge(graph)
    assert await cluster.look() == ([DATABASE_GRAPH], [DATABASE_GRAPH])


@pytest.mark.parametrize("event", [JobEvent.CANCEL_ASKED, JobEvent.FAILED])
async def test_nothing_keeps_it_once_the_job_is_not_created_any_more(cluster: Cluster, event: JobEvent) -> None:
    graph = await cluster.start()
    await cluster.register(OWN, graph)
    async with cluster.stores.begin() as tx:
        await tx.jobs.move(cluster.a, event, now=NOW)
    assert await cluster.look() == ([DATABASE_GRAPH], [DATABASE_GRAPH])


async def test_it_is_told_that_its_graph_is_gone(cluster: Cluster) -> None:
    """I7, I9: nobody has to find its process for it to end."""
    graph = await cluster.start()
    await cluster.register(OWN, graph)
    async with cluster.stores.begin() as tx:
        await tx.jobs.move(cluster.a, JobEvent.FAILED, now=NOW)
    assert isinstance(await cluster.step(graph), Retire)
    async with cluster.stores.begin() as tx:
        with pytest.raises(Stale):
            await tx.workers.seen(OWN, now=NOW)
    with pytest.raises(Stale):
        await cluster.register(WorkerId("late"), graph)
    async with cluster.stores.begin() as tx:
        listed = {one.worker: one.graph for one in await tx.workers.all(now=NOW, lease=LEASE)}
    assert listed == {WORKER: DATABASE_GRAPH, OWN: graph}, "what it served is remembered"


async def test_one_that_hangs_is_given_up_and_the_database_graph_never_notices(cluster: Cluster) -> None:
    """I10: its graph recovers alone."""
    graph = await cluster.start()
    await cluster.register(OWN, graph)
    await cluster.injected(graph)
    await cluster.later(cluster.world.workers.barrier_deadline.total_seconds())
    assert isinstance(await cluster.step(graph), Abandon)
    assert (await cluster.alive(graph), await cluster.alive(DATABASE_GRAPH)) == (set(), {WORKER})
    await cluster.look()
    assert list(cluster.machine.given_up) == [OWN]
    async with cluster.stores.begin() as tx:
        state = await tx.graphs.state(DATABASE_GRAPH)
    assert (state.status, state.recoveries) == ("RUNNING", 0)


async def test_a_worker_that_all_share_is_not_given_up_for_one_of_them(cluster: Cluster) -> None:
    """I10: the same with a job that has no worker of its own."""
    tables = cluster.stores.tables
    tables.jobs.put(cluster.a, replace(row := tables.jobs[cluster.a], job=replace(row.job, serverless=False)))
    graph = await cluster.start()
    await cluster.injected(graph)
    await cluster.later(cluster.world.workers.barrier_deadline.total_seconds())
    assert isinstance(await cluster.step(graph), Abandon)
    assert await cluster.alive(graph) == await cluster.alive(DATABASE_GRAPH) == {WORKER}


async def test_a_cancel_asks_it_to_end_and_does_not_shoot(cluster: Cluster) -> None:
    graph = await cluster.start()
    await cluster.register(OWN, graph)
    await cluster.injected(graph)
    async with cluster.stores.begin() as tx:
        await tx.jobs.move(cluster.a, JobEvent.CANCEL_ASKED, now=NOW)
        await ask(tx, Stop(jobs=(cluster.a,)), asked_by=itself("a user"), now=NOW)
    assert isinstance(await cluster.step(graph), Abandon)
    assert await cluster.alive(graph) == {OWN}
    assert (await cluster.look())[0] == [DATABASE_GRAPH]
    assert list(cluster.machine.given_up) == []


async def test_a_service_is_not_ready_with_workers_of_single_jobs_alone(cluster: Cluster) -> None:
    graph = await cluster.start()
    await cluster.register(OWN, graph)
    probe = cast("Reader", SimpleNamespace(query=AsyncMock()))
    assert (await readiness(cluster.world, probe))["worker"] == "ok"
    async with cluster.stores.begin() as tx:
        await tx.workers.give_up(WORKER)
    assert (await readiness(cluster.world, probe))["worker"] == "no worker is alive"


@dataclass
class Driven(UnheardSignals):
    """Whoever waits sees the leader and the launcher go on; the worker ends some time after its graph is gone."""

    cluster: Cluster
    graph: GraphId
    waits_left: int = 3

    async def wait(self, timeout_seconds: float, *, topic: Topic = None, since: int | None = None) -> None:
        del topic, since
        self.cluster.clock.seconds += timeout_seconds
        await self.cluster.step(DATABASE_GRAPH)
        await recovery.clean_up(self.cluster.world, term=self.cluster.term)
        try:
            await self.cluster.step(self.graph)
        except NotFound:
            self.waits_left -= 1
        if self.waits_left == 0:
            self.cluster.machine.ended.append(Ended(OWN, self.graph, "it is needed no more", asked=True))
        await self.cluster.look()


async def test_a_cancel_is_answered_when_its_worker_has_ended(cluster: Cluster) -> None:
    """I9."""
    graph = await cluster.start()
    await cluster.register(OWN, graph)
    await cluster.injected(graph)
    driven = Driven(cluster, graph)
    world = changed(cluster.world, signals=driven)
    assert await lifecycle.cancel(world, [cluster.a], asked_by=itself("a user")) == [cluster.a]
    assert driven.waits_left == 0
    async with cluster.stores.begin() as tx:
        assert [one.worker for one in await tx.workers.all(now=NOW, lease=LEASE) if one.alive] == [WORKER]
        kinds = [event.kind for event in await tx.events.since(0, limit=1000)]
    assert kinds[-1] == "worker.stopped"


async def test_c7_a_worker_that_a_frozen_service_did_not_hear_is_not_given_up(cluster: Cluster) -> None:
    """Neither the launcher nor the graph's loop takes a worker for lost that this process could not have heard."""
    lease = cluster.world.workers.lease.total_seconds()
    cluster.world.workers.attention.awake(0.0)
    cluster.clock.seconds += 2 * lease
    cluster.clock.wall += timedelta(seconds=2 * lease)
    cluster.world.workers.attention.awake(cluster.clock.seconds)
    await cluster.look()
    assert list(cluster.machine.given_up) == []
    assert not isinstance(await cluster.step(DATABASE_GRAPH), Abandon)
    # It is silent for another lease, in which it could have been heard.
    for _ in range(int(lease) * 2 + 1):
        cluster.clock.seconds += 0.5
        cluster.clock.wall += timedelta(seconds=0.5)
        cluster.world.workers.attention.awake(cluster.clock.seconds)
    await cluster.look()
    assert list(cluster.machine.given_up) == [WORKER]
    assert isinstance(await cluster.step(DATABASE_GRAPH), Abandon)
