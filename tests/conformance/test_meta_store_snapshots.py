"""Jobs in graphs of their own: what begins, moves and ends with them."""

from dataclasses import replace

import pytest

from service.domain.errors import NotFound, Stale
from service.domain.graph import FailedIndex, GraphStatus, OwnWorker
from service.domain.job import Job, JobEvent
from service.domain.launching import OwnJob
from service.ports.meta_store import Stores
from service.ports.snapshots import Snapshot
from service.protocol.ids import DATABASE_GRAPH, CommandId, Epoch, GraphId, WorkerId
from service.protocol.mutation import Mutation, Pause, Resume, Throttle
from service.protocol.plan import ScanType, SnapshotPlan
from tests.support.meta_store import (
    LEASE,
    NOW,
    WORKER,
    add_creating,
    barrier,
    collected,
    committed,
    inject,
    new_view,
    registration,
    report,
    running,
    scan_of,
    table_and_view,
)


async def ask(
    stores: Stores, mutation: Mutation | None, graph: GraphId = DATABASE_GRAPH, part_of: CommandId | None = None
) -> CommandId:
    async with stores.begin() as tx:
        return await tx.commands.add(graph, mutation, asked_by="a test", now=NOW, part_of=part_of)


async def started(stores: Stores, *, indexed: bool = True) -> tuple[Job, Snapshot]:
    """Start a job in a graph of its own, when the database graph has committed epoch 10."""
    _, view = await table_and_view(stores)
    await committed(stores)
    async with stores.begin() as tx:
        return view, await tx.partial_graphs.begin(view.id, indexed=indexed)


async def test_a_graph_of_its_own_begins_at_what_is_committed(stores: Stores) -> None:
    view, begun = await started(stores, indexed=False)
    assert (begun.job, begun.epoch, begun.consumed, begun.indexed, begun.merged) == (view.id, 10, None, False, False)
    assert begun.graph != DATABASE_GRAPH
    async with stores.begin() as tx:
        assert await tx.snapshots.of_graph(begun.graph) == begun
        assert await tx.snapshots.of_jobs([view.id]) == {view.id: begun}
        assert await tx.partial_graphs.all() == await tx.partial_graphs.unmerged() == [begun.graph]
        assert await tx.partial_graphs.of_jobs([view.id]) == {view.id: begun.graph}
        assert [job.id for job in await tx.jobs.where(graph=begun.graph)] == [view.id]
        assert (await tx.plans.of([view.id]))[0].snapshot == SnapshotPlan(epoch=Epoch(10))
        assert await tx.snapshots.pinned() == 10
        assert await tx.snapshots.settled() == {}
        seen = await tx.graphs.view(begun.graph, now=NOW, lease=LEASE)
        assert seen.alive == {WORKER}, "workers of the database graph run it"
        assert seen.newest == 10, "epochs are of one sequence"


async def test_f7_the_total_of_a_snapshot_is_that_of_its_pinned_epoch(stores: Stores) -> None:
    """And a total is never below what was read (I6)."""
    table, _ = await table_and_view(stores)
    await running(stores)
    async with stores.begin() as tx:
        await tx.fragments.record([collected(10, keys={table.relation: 100})], now=NOW)
        snapshot = new_view("s", table.relation, scan_type=ScanType.SNAPSHOT_BACKFILL)
        view = await add_creating(tx, snapshot)
        live = await add_creating(tx, new_view("l", table.relation))
        await tx.partial_graphs.pin_totals(view.id)
        begun = await tx.partial_graphs.begin(view.id, indexed=True)

    async def totals() -> list[int | None]:
        async with stores.begin() as tx:
            scans = await tx.fragments.scans([view.id, live.id])
        return [scan.total for one in (view, live) for scan in scans[one.id]]

    async def read(graph: GraphId, job: Job, rows: int, keys: int) -> None:
        scan = await scan_of(stores, job.id)
        told = collected(20, report(scan.actors[0].id, scan.id, rows), keys={table.relation: keys})
        async with stores.begin() as tx:
            await tx.fragments.record([told.model_copy(update={"graph": graph})], now=NOW)

    await read(begun.graph, view, 60, -90)
    assert await totals() == [100, 10]
    await read(DATABASE_GRAPH, live, 30, 0)
    assert await totals() == [100, 30]


async def serverless(stores: Stores) -> Snapshot:
    """Start a job that shall have a worker of its own, beside one that shares that of the database graph."""
    table, _ = await table_and_view(stores)
    await running(stores)
    async with stores.begin() as tx:
        view = await add_creating(tx, replace(new_view("own", table.relation), serverless=True, resource_group="small"))
        assert (view.serverless, view.resource_group) == (True, "small")
        return await tx.partial_graphs.begin(view.id, indexed=True)


async def test_i10_a_worker_of_its_own_takes_no_worker_from_other_graphs(stores: Stores) -> None:
    """The graphs of other Snapshot jobs lost theirs while a serverless job ran, and the worker was evicted for it."""
    own = await serverless(stores)
    async with stores.begin() as tx:
        (table,) = await tx.catalog.called(["t"])
        snapshot = new_view("s", table.relation.id, scan_type=ScanType.SNAPSHOT_BACKFILL)
        shared = await tx.partial_graphs.begin((await add_creating(tx, snapshot)).id, indexed=True)
        graphs = [DATABASE_GRAPH, shared.graph, own.graph]
        views = await tx.graphs.views(graphs, now=NOW, lease=LEASE)
    alive = {graph: view.alive for graph, view in views.items()}
    assert alive == {DATABASE_GRAPH: {WORKER}, shared.graph: {WORKER}, own.graph: set()}


async def test_a_graph_with_a_worker_of_its_own_has_no_other(stores: Stores) -> None:
    own, other = await serverless(stores), WorkerId("own")
    async with stores.begin() as tx:
        assert (await tx.graphs.view(own.graph, now=NOW, lease=LEASE)).alive == frozenset()
        presented = registration(other).model_copy(update={"graph": own.graph})
        await tx.workers.register(presented, now=NOW)
        assert (await tx.graphs.view(own.graph, now=NOW, lease=LEASE)).alive == {other}
        assert (await tx.graphs.view(DATABASE_GRAPH, now=NOW, lease=LEASE)).alive == {WORKER}
        await tx.partial_graphs.retire(own.graph)
        with pytest.raises(Stale):
            await tx.workers.seen(other, now=NOW)
        with pytest.raises(Stale):
            await tx.workers.register(presented.model_copy(update={"worker": WorkerId("late")}), now=NOW)
        records = {record.worker: record.graph for record in await tx.workers.all(now=NOW, lease=LEASE)}
    assert records == {WORKER: DATABASE_GRAPH, other: own.graph}


@pytest.mark.parametrize("event", [None, JobEvent.CANCEL_ASKED, JobEvent.FAILED])
async def test_a_worker_of_its_own_is_wanted_until_its_job_merges_or_ends(
    stores: Stores, event: JobEvent | None
) -> None:
    own = await serverless(stores)
    async with stores.begin() as tx:
        assert await tx.workers.wanted() == {own.graph: OwnJob(own.job, "small")}
        if event is None:
            await tx.partial_graphs.merge(own.graph)
        else:
            await tx.jobs.move(own.job, event, now=NOW)
        assert await tx.workers.wanted() == {}


async def test_how_starting_it_goes_is_remembered_with_its_graph(stores: Stores) -> None:
    _, shared = await started(stores)
    async with stores.begin() as tx:
        table = await tx.catalog.named("t")
        assert table is not None
        view = await add_creating(tx, replace(new_view("own", table.relation.id), serverless=True))
        own = await tx.partial_graphs.begin(view.id, indexed=True)
        seen: list[OwnWorker | None] = []
        failed = OwnWorker(3, "exit\0code 3", NOW)
        for _ in range(2):
            for graph in (own.graph, shared.graph):
                policy = (await tx.graphs.view(graph, now=NOW, lease=LEASE)).policy
                seen.append(policy.own_worker)
            await tx.workers.start_failed(own.graph, failed)
    assert seen == [OwnWorker(), None, replace(failed, error="exit\N{REPLACEMENT CHARACTER}code 3"), None]


async def test_why_an_index_could_not_be_built_is_remembered_with_its_graph(stores: Stores) -> None:
    _, begun = await started(stores, indexed=False)
    failed = FailedIndex(2, "no\0space", NOW)
    seen: list[FailedIndex | None] = []
    async with stores.begin() as tx:
        for _ in range(2):
            policy = (await tx.graphs.view(begun.graph, now=NOW, lease=LEASE)).policy
            seen.append(policy.index_failed)
            await tx.snapshots.index_failed(begun.graph, failed)
    assert seen == [None, replace(failed, error="no\N{REPLACEMENT CHARACTER}space")]


async def test_several_graphs_are_seen_at_once_as_each_is_alone(stores: Stores) -> None:
    _, begun = await started(stores, indexed=False)
    await ask(stores, Throttle(fragments={}), begun.graph)
    gone = GraphId(begun.graph + 1)
    async with stores.begin() as tx:
        await tx.graphs.set_paused(begun.graph, paused=True, now=NOW)
        views = await tx.graphs.views([begun.graph, DATABASE_GRAPH, gone], now=NOW, lease=LEASE)
        states = await tx.graphs.states([begun.graph, DATABASE_GRAPH, gone])
        assert views.keys() == states.keys() == {DATABASE_GRAPH, begun.graph}
        for graph in (DATABASE_GRAPH, begun.graph):
            assert views[graph] == await tx.graphs.view(graph, now=NOW, lease=LEASE)
            assert states[graph] == await tx.graphs.state(graph)
    assert (views[begun.graph].commands_waiting, views[DATABASE_GRAPH].commands_waiting) == (True, False)
    assert (states[begun.graph].paused, states[DATABASE_GRAPH].paused) == (True, False)
    assert (views[begun.graph].policy.shared, views[DATABASE_GRAPH].policy.shared) == (False, True)
    assert (views[begun.graph].backfilling, views[DATABASE_GRAPH].backfilling) == (True, False)


@pytest.mark.parametrize("asked", [[Pause()], [Resume(), Pause()], [Pause(), Resume()]])
async def test_it_begins_paused_as_the_database_graph_will_be(stores: Stores, asked: list[Mutation]) -> None:
    for mutation in asked:
        await ask(stores, mutation)
    _, begun = await started(stores)
    async with stores.begin() as tx:
        assert (await tx.graphs.state(begun.graph)).paused is isinstance(asked[-1], Pause)


async def test_it_hurries_while_it_may_read_as_fast_as_it_can(stores: Stores) -> None:
    view, begun = await started(stores)
    scan = (await scan_of(stores, view.id)).id

    async def hurries() -> bool:
        async with stores.begin() as tx:
            return (await tx.graphs.view(begun.graph, now=NOW, lease=LEASE)).hurries

    assert await hurries()
    for limit in (5, None):
        async with stores.begin() as tx:
            await tx.limits.put({scan: limit}, auto=(), epoch=Epoch(11))
        assert await hurries() is (limit is None)
    for paused in (True, False):
        async with stores.begin() as tx:
            await tx.graphs.set_paused(begun.graph, paused=paused, now=NOW)
        assert await hurries() is not paused


async def test_what_it_has_replayed_moves_its_pin(stores: Stores) -> None:
    view, begun = await started(stores, indexed=False)
    async with stores.begin() as tx:
        await tx.snapshots.index_built(begun.graph)
        await tx.snapshots.replayed(begun.graph, Epoch(15))
        snapshot = await tx.snapshots.of_graph(begun.graph)
        assert snapshot is not None
        assert (snapshot.indexed, snapshot.consumed) == (True, 15)
        assert await tx.snapshots.pinned() == 15
        assert (await tx.plans.of([view.id]))[0].snapshot == SnapshotPlan(epoch=Epoch(10), consumed=Epoch(15))


async def test_a_merge_moves_the_job_and_what_waits_for_it(stores: Stores) -> None:
    view, begun = await started(stores)
    waiting = await ask(stores, Throttle(fragments={}), begun.graph)
    async with stores.begin() as tx:
        await tx.partial_graphs.merge(begun.graph)
        assert await tx.partial_graphs.of_jobs([view.id]) == {view.id: DATABASE_GRAPH}
        assert await tx.partial_graphs.unmerged() == []
        assert await tx.partial_graphs.all() == [begun.graph]
        assert await tx.snapshots.settled() == {view.relation: 0}
        assert [one.id for one in await tx.commands.waiting(DATABASE_GRAPH)] == [waiting]
        policy = (await tx.graphs.view(begun.graph, now=NOW, lease=LEASE)).policy
        assert policy.merged


async def test_s2_a_created_job_that_stays_gets_a_graph_that_goes_on_from_what_is_committed(stores: Stores) -> None:
    table, view = await table_and_view(stores)
    await committed(stores)
    async with stores.begin() as tx:
        await tx.partial_graphs.leave()
        assert await tx.partial_graphs.all() == [], "nobody stays"
        await tx.jobs.move(view.id, JobEvent.FINISHED, now=NOW)
        await tx.jobs.stay(view.id, "it is slow")
        await tx.partial_graphs.leave()
        (graph,) = await tx.partial_graphs.all()
        assert await tx.partial_graphs.of_jobs([table.id, view.id]) == {table.id: DATABASE_GRAPH, view.id: graph}
        assert (await tx.plans.of([view.id]))[0].snapshot == SnapshotPlan(epoch=Epoch(10), consumed=Epoch(10))
        assert await tx.snapshots.pinned() == 10
        seen = await tx.graphs.view(graph, now=NOW, lease=LEASE)
        assert (seen.status, seen.committed, seen.newest) == (GraphStatus.RECOVERING, 10, 10)
        assert (seen.policy.stays, seen.policy.created, seen.policy.over) == (True, True, False)
        await tx.partial_graphs.leave()
        assert await tx.partial_graphs.all() == [graph]


async def test_a_graph_that_is_retired_is_gone_and_its_commands_are_done(stores: Stores) -> None:
    view, begun = await started(stores)
    refused, flush = [await ask(stores, one, begun.graph) for one in (Throttle(fragments={}), None)]
    whole = await ask(stores, Pause())
    part = await ask(stores, Pause(), begun.graph, part_of=whole)
    async with stores.begin() as tx:
        parts = await tx.commands.parts([whole, part])
        assert {one: [its.id for its in of] for one, of in parts.items()} == {whole: [part]}
        await tx.commands.finish([whole], epoch=Epoch(9))
        found = await tx.commands.get(whole)
        assert found is not None
        assert not found.done, "a part is left"
        await tx.partial_graphs.retire(begun.graph)
        assert [(one.id, one.done) for one in (await tx.commands.parts([whole]))[whole]] == [(part, True)]
        done = [await tx.commands.get(one) for one in (refused, flush, whole)]
        assert [(one.done, one.epoch) for one in done if one is not None] == [(True, 10)] * 3
        assert [one is not None and one.error is not None for one in done] == [True, False, False]
        assert await tx.snapshots.of_jobs([view.id]) == {}
        assert await tx.partial_graphs.all() == []
        assert await tx.partial_graphs.of_jobs([view.id]) == {view.id: DATABASE_GRAPH}
        with pytest.raises(NotFound):
            await tx.graphs.view(begun.graph, now=NOW, lease=LEASE)


async def test_a_resume_is_over_with_its_first_part(stores: Stores) -> None:
    _, begun = await started(stores)
    whole = await ask(stores, Resume())
    part = await ask(stores, Resume(), begun.graph, part_of=whole)
    async with stores.begin() as tx:
        await tx.commands.finish([whole], epoch=Epoch(12))
        await tx.commands.finish([part], epoch=Epoch(11))
        found = await tx.commands.get(whole)
    assert found is not None
    assert (found.done, found.epoch) == (True, 11)


async def test_a_worker_is_given_each_graphs_barrier_once(stores: Stores) -> None:
    _, begun = await started(stores)
    async with stores.begin() as tx:
        generation = (await tx.graphs.view(begun.graph, now=NOW, lease=LEASE)).generation
    # Every statement waits for the database graph, so it comes first (A23).
    sent = [
        barrier(13, 10),
        barrier(12).model_copy(update={"graph": begun.graph, "generation": generation}),
    ]
    for one in reversed(sent):
        await inject(stores, one)
    async with stores.begin() as tx:
        taken: dict[GraphId, Epoch] = {}
        for one in sent:
            assert await tx.barriers.for_worker(WORKER, taken) == one
            taken[one.graph] = one.curr
        assert await tx.barriers.for_worker(WORKER, taken) is None
        assert await tx.barriers.for_worker(WORKER, {DATABASE_GRAPH: Epoch(12)}) == sent[0]
