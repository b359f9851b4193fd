"""The catalog, jobs, fragments and their progress."""

import asyncio
import secrets
from dataclasses import replace
from datetime import timedelta

import pytest

from service.domain.cutting import cut
from service.domain.errors import Conflict, Invalid, NotFound
from service.domain.graph import Line
from service.domain.job import IllegalTransition, JobEvent, JobState
from service.domain.progress import ScanProgress
from service.ports.limits import Held
from service.ports.meta_store import Stores
from service.ports.records import NewJob, NewSplitScan
from service.protocol.connector import Connector
from service.protocol.ids import DATABASE_GRAPH, Epoch, FragmentId, GraphId, JobId, RelationId
from service.protocol.plan import ActorPlan, FragmentKind, PositionState, ScanType, TableScanPlan
from service.protocol.relation import RelationKind
from service.protocol.vnodes import vnodes_of
from tests.conformance.conftest import ON_POSTGRES
from tests.support.meta_store import (
    LEASE,
    NOW,
    add_created,
    add_creating,
    at,
    collected,
    committed,
    committed_rows,
    done,
    new_table,
    new_view,
    query_over,
    relation,
    report,
    running,
    scan_of,
    table_and_view,
)

# --- outputs ------------------------------------------------------------------------------------------------------


def with_hidden(name: str, upstream: RelationId) -> NewJob:
    """Return a view with two internal tables; the first is what its scan writes."""
    view = new_view(name, upstream)
    (scan,) = view.table_scans
    return replace(view, hidden=(relation("a"), relation("b")), fragments=(replace(scan, output=0),))


async def test_a_job_has_outputs_that_only_it_sees(stores: Stores) -> None:
    async with stores.begin() as tx:
        table = await add_created(tx, new_table("t"))
        view = await add_created(tx, with_hidden("m", table.relation))
        (plan,) = await tx.plans.of([view.id])
        outputs = await tx.plans.outputs([view.id, table.id, JobId(99)])
        shown = [one.name for one in await tx.visibility.unshown()]
        known = await tx.catalog.all(), await tx.catalog.get(plan.hidden[0].id), await tx.catalog.named("__m_1")
    first, second = plan.hidden
    assert plan.outputs == (first, second, plan.relation)
    assert [one.name for one in plan.outputs] == ["__m_1", "__m_2", "m"]
    assert [one.kind for one in plan.hidden] == [RelationKind.INTERNAL] * 2
    assert first.columns == relation("a").columns
    # The order of runners is by id: what is read has a lower one than its readers.
    assert table.relation < first.id < second.id < view.relation
    (scan,) = plan.table_scans
    assert (scan.output, plan.written_by(scan)) == (first.id, first)
    assert outputs == {view.id: [first.id, second.id, view.relation], table.id: [table.relation]}
    assert shown == ["t", "m"]
    assert [entry.relation.name for entry in known[0]] == ["t", "m"]
    assert known[1:] == (None, None)


async def test_i13_no_long_text_of_a_removed_relation_stays(stores: Stores) -> None:
    """A caller that creates and drops had the store grow by 9 GB in an hour, and nothing took that away."""
    long = "create /* " + secrets.token_hex(40_000)
    async with stores.begin() as tx:
        jobs = [await add_created(tx, replace(new_table(name), statement=long)) for name in ("kept", "removed")]
        await tx.catalog.remove(jobs[1].relation)
        for _ in range(2):  # repeatable
            await tx.cleanups.done(jobs[1].relation)
        kept, removed = [await tx.jobs.get(job.id) for job in jobs]
        entry = await tx.catalog.named("kept")
    assert (kept and kept.statement, entry and entry.definition) == (long, long)
    assert removed is not None
    assert removed.statement == cut(long)


async def test_hidden_outputs_go_with_their_job(stores: Stores) -> None:
    """I9."""
    async with stores.begin() as tx:
        table = await add_created(tx, new_table("t"))
        view = await add_created(tx, with_hidden("m", table.relation))
        outputs = (await tx.plans.outputs([view.id]))[view.id]
        for _ in range(2):  # repeatable
            await tx.catalog.remove(view.relation)
        left = {(cleanup.relation, cleanup.name) for cleanup in await tx.cleanups.all()}
        again = await tx.jobs.add(with_hidden("m", table.relation), now=NOW)
    assert left == set(zip(outputs, ("__m_1", "__m_2", "m"), strict=True))
    assert again.id != view.id


async def test_a_sink_stores_nothing(stores: Stores) -> None:
    sink = Connector(name="blackhole", options={"a": "b"})
    async with stores.begin() as tx:
        table = await add_created(tx, new_table("t"))
        view = new_view("s", table.relation)
        (scan,) = view.table_scans
        target = view.relation.model_copy(update={"kind": RelationKind.SINK})
        job = await tx.jobs.add(replace(view, relation=target, fragments=(replace(scan, sink=sink),)), now=NOW)
        (plan,) = await tx.plans.of([job.id])
        outputs = await tx.plans.outputs([job.id])
    assert (job.kind, plan.outputs, outputs) == (RelationKind.SINK, (), {})
    assert [one.sink for one in plan.table_scans] == [sink]
    assert plan.written_by(plan.table_scans[0]).columns == relation("s").columns


# --- the catalog --------------------------------------------------------------------------------------------------


async def test_a_relation_round_trips_with_its_types_and_key_order(stores: Stores) -> None:
    async with stores.begin() as tx:
        job = await tx.jobs.add(new_table("Odd \"name' %s"), now=NOW)
        entry = await tx.catalog.get(job.relation)
        assert await tx.catalog.named("Odd \"name' %s") == entry
        assert await tx.catalog.all() == [entry]
        assert await tx.catalog.named("other") is None
        assert await tx.catalog.get(RelationId(99)) is None
    assert entry is not None
    assert entry.relation == relation("Odd \"name' %s").model_copy(update={"id": job.relation})
    assert (entry.job, entry.state, entry.key_count, entry.upstreams) == (job.id, JobState.INITIAL, 0, ())


async def test_relations_are_found_by_their_names(stores: Stores) -> None:
    await table_and_view(stores)
    async with stores.begin() as tx:
        both = await tx.catalog.called({"m", "nobody", "t", "T", 'a"b'})
        assert [entry.relation.name for entry in both] == ["t", "m"]
        assert both == await tx.catalog.all()
        assert await tx.catalog.called(frozenset()) == []


async def test_outlines_say_of_every_relation_what_its_entry_says(stores: Stores) -> None:
    table, view = await table_and_view(stores)
    async with stores.begin() as tx:
        entries, outlines = await tx.catalog.all(), await tx.catalog.outlines()
    assert [(one.id, one.name, one.kind, one.job, one.state, one.upstreams, one.shown) for one in outlines] == [
        (one.relation.id, one.relation.name, one.relation.kind, one.job, one.state, one.upstreams, one.shown)
        for one in entries
    ]
    assert [(one.job, one.upstreams, one.location) for one in outlines] == [
        (table.id, (), None),
        (view.id, (table.relation,), None),
    ]


async def test_what_reads_a_relation_depends_on_it(stores: Stores) -> None:
    async with stores.begin() as tx:
        first, second = [(await add_created(tx, new_table(name))).relation for name in "ab"]
        view = await tx.jobs.add(new_view("m", second, first, second), now=NOW)
        (reader,) = await tx.catalog.dependents(first)
        assert await tx.catalog.dependents(view.relation) == []
    assert (reader.relation.id, reader.upstreams) == (view.relation, (first, second))


async def test_a_removed_relation_frees_its_name_and_leaves_a_cleanup_and_its_history(stores: Stores) -> None:
    """I9: nothing of it but the job's history is left once the state store was cleaned."""
    table, view = await table_and_view(stores)
    scan = await scan_of(stores, view.id)
    async with stores.begin() as tx:
        for _ in range(2):  # repeatable
            await tx.catalog.remove(view.relation)
        assert await tx.catalog.named("m") is None
        assert await tx.catalog.dependents(table.relation) == []
        assert (await tx.fragments.scans([view.id]), await tx.fragments.job_of([scan.id])) == ({view.id: []}, {})
        assert await tx.plans.of([view.id]) == []
        (cleanup,) = await tx.cleanups.all()
        assert (cleanup.relation, cleanup.name) == (view.relation, "m")
        assert (await tx.graphs.view(DATABASE_GRAPH, now=NOW, lease=LEASE)).cleanups_waiting
        again = await tx.jobs.add(new_view("m", table.relation), now=NOW)
        await tx.cleanups.done(view.relation)
        assert await tx.cleanups.all() == []
        old = await tx.jobs.get(view.id)
    assert old is not None
    assert (old.name, again.relation != view.relation) == ("m", True)


async def test_a_created_relation_is_shown_once_its_epoch_is_published(stores: Stores) -> None:
    table, view = await table_and_view(stores)
    await committed(stores)
    async with stores.begin() as tx:
        assert [one.id for one in await tx.visibility.unshown()] == [table.relation]
        await tx.visibility.publish(DATABASE_GRAPH, Epoch(10), now=NOW)
        assert await tx.visibility.unshown() == []
        shown = {entry.relation.id: entry.shown for entry in await tx.catalog.all()}
    assert shown == {table.relation: True, view.relation: False}


# --- jobs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("created", "words"),
    [
        (True, 'table with name "x" exists'),
        (False, "table named x already exists and is still being created"),
    ],
)
async def test_a_name_is_taken_once(stores: Stores, created: bool, words: str) -> None:
    async with stores.begin() as tx:
        await (add_created if created else add_creating)(tx, new_table("x"))
        upstream = (await add_created(tx, new_table("t"))).relation
    with pytest.raises(Conflict) as error:
        async with stores.begin() as tx:
            await tx.jobs.add(new_view("x", upstream), now=NOW)
    assert str(error.value) == words


async def test_of_two_creations_of_one_name_at_once_one_wins(stores: Stores) -> None:
    async def create() -> bool:
        async with stores.begin() as tx:
            await tx.jobs.add(new_table("x"), now=NOW)
        return True

    results = await asyncio.gather(create(), create(), return_exceptions=True)
    assert sorted(type(result).__name__ for result in results) == ["Conflict", "bool"]


async def test_a_reader_is_not_added_to_what_is_being_dropped(stores: Stores) -> None:
    async with stores.begin() as tx:
        table = await add_created(tx, new_table("t"))
        await tx.jobs.move(table.id, JobEvent.DROP_ASKED, now=NOW)
        with pytest.raises(Conflict, match='table "t" cannot be read: it is Dropping'):
            await tx.jobs.add(new_view("m", table.relation), now=NOW)


async def test_a_drop_that_looks_for_readers_sees_the_one_that_is_just_being_added(stores: Stores) -> None:
    async with stores.begin() as tx:
        table = await add_created(tx, new_table("t"))

    async def readers() -> int:
        async with stores.begin() as tx:
            await tx.catalog.hold([table.relation])
            return len(await tx.catalog.dependents(table.relation))

    async with stores.begin() as tx:
        await tx.jobs.add(new_view("m", table.relation), now=NOW)
        looking = asyncio.create_task(readers())
        await asyncio.wait({looking}, timeout=0.2)
    assert await looking == 1


async def test_a_job_moves_along_its_table_and_keeps_its_instants(stores: Stores) -> None:
    later = NOW + timedelta(minutes=1)
    async with stores.begin() as tx:
        added = await tx.jobs.add(new_table("t"), now=NOW)
        assert (added.state, added.initialized_at, added.kind) == (JobState.INITIAL, NOW, RelationKind.TABLE)
        assert await tx.jobs.get(added.id) == added
        await tx.jobs.move(added.id, JobEvent.QUEUED, now=NOW)
        started = await tx.jobs.move(added.id, JobEvent.STARTED, now=later)
        assert (started.started_at, started.finished_at) == (later, None)
        with pytest.raises(IllegalTransition):
            await tx.jobs.move(added.id, JobEvent.QUEUED, now=later)
        created = await tx.jobs.move(added.id, JobEvent.FINISHED, now=later)
        assert (created.state, created.finished_at) == (JobState.CREATED, later)
        failed = await tx.jobs.move(added.id, JobEvent.FAILED, now=later, error="bad \0 cast")
        assert (failed.state, failed.error) == (JobState.FAILED, "bad \N{REPLACEMENT CHARACTER} cast")
        with pytest.raises(NotFound):
            await tx.jobs.move(JobId(99), JobEvent.QUEUED, now=NOW)


async def test_jobs_come_in_the_order_of_the_queue(stores: Stores) -> None:
    async with stores.begin() as tx:
        jobs = [await tx.jobs.add(new_table(name), now=NOW) for name in "abc"]
        await tx.jobs.move(jobs[1].id, JobEvent.QUEUED, now=NOW)
        assert [job.id for job in await tx.jobs.where()] == [job.id for job in jobs]
        assert [job.id for job in await tx.jobs.where({JobState.QUEUED})] == [jobs[1].id]
        assert [job.id for job in await tx.jobs.where(ids=[jobs[1].id, JobId(999)])] == [jobs[1].id]
        assert await tx.jobs.where({JobState.QUEUED}, ids=[jobs[0].id]) == []
        both = await tx.jobs.where({JobState.QUEUED, JobState.INITIAL})
    assert [job.id for job in both] == [job.id for job in jobs]


async def test_a_job_whose_relation_was_removed_is_not_among_those_kept(stores: Stores) -> None:
    async with stores.begin() as tx:
        never_created, created = await add_creating(tx, new_table("a")), await add_created(tx, new_table("b"))
        for job in (never_created, created):
            await tx.jobs.move(job.id, JobEvent.FAILED, now=NOW, error="a row")
        await tx.catalog.remove(never_created.relation)
        assert [job.id for job in await tx.jobs.where({JobState.FAILED})] == [never_created.id, created.id]
        assert [job.id for job in await tx.jobs.where({JobState.FAILED}, kept=True)] == [created.id]


@ON_POSTGRES
async def test_jobs_come_in_pages(stores: Stores) -> None:
    async with stores.begin() as tx:
        first, second, third = [await tx.jobs.add(new_table(name), now=NOW) for name in "abc"]
        await tx.jobs.move(second.id, JobEvent.STARTED, now=NOW)
        page = await tx.status.jobs(None, after=0, limit=2)
        assert [job.name for job in page] == ["a", "b"]
        assert [job.name for job in await tx.status.jobs(None, after=second.id, limit=2)] == ["c"]
        initial = {JobState.INITIAL}
        assert [job.id for job in await tx.status.jobs(initial, after=0, limit=2)] == [first.id, third.id]
        assert await tx.status.jobs(initial, after=third.id, limit=2) == []


async def test_who_stands_in_line_and_who_is_served(stores: Stores) -> None:
    async with stores.begin() as tx:
        assert await tx.queue.line() == Line(new=False, queued=False, held=0)
        table = await add_created(tx, new_table("t"))
        first, second, third = [await tx.jobs.add(new_view(name, table.relation), now=NOW) for name in "abc"]
        assert await tx.queue.line() == Line(new=True, queued=False, held=0)
        await tx.jobs.move(third.id, JobEvent.QUEUED, now=NOW)
        await tx.jobs.move(second.id, JobEvent.QUEUED, now=NOW)
        await tx.jobs.move(first.id, JobEvent.STARTED, now=NOW)
        assert [one.job for one in await tx.queue.waiting()] == [second.id, third.id]
        await add_creating(tx, new_table("u"))
        assert await tx.queue.line() == Line(new=False, queued=True, held=1), "a table takes no permit"
        view = await tx.graphs.view(DATABASE_GRAPH, now=NOW, lease=LEASE)
        assert view.line == await tx.queue.line(), "what is seen at every look"
        await tx.jobs.move(first.id, JobEvent.CANCEL_ASKED, now=NOW)
        assert (await tx.queue.line()).held == 1, "it is held until the actors have stopped"
        await tx.jobs.move(first.id, JobEvent.STOPPED, now=NOW)
        assert (await tx.queue.line()).held == 0


async def test_a_plan_has_everything_a_worker_needs(stores: Stores) -> None:
    table, view = await table_and_view(stores)
    async with stores.begin() as tx:
        first, second = await tx.plans.of([view.id, table.id])
    assert (first.id, second.id) == (table.id, view.id)
    (dml,) = first.fragments
    (scan,) = second.table_scans
    assert (dml.kind, scan.kind) == (FragmentKind.DML, FragmentKind.STREAM_SCAN)
    assert scan.upstream == first.relation
    assert (scan.query, scan.scan_type, scan.rate_limit) == (
        query_over(scan.upstream.id),
        ScanType.ARRANGEMENT_BACKFILL,
        None,
    )
    assert [actor.vnodes for actor in scan.actors] == [((0, 3),), ((4, 7),)]
    assert scan.actors[0].id < scan.actors[1].id
    assert second.relation == relation("m", RelationKind.MATERIALIZED_VIEW).model_copy(update={"id": view.relation})


async def test_what_a_pause_holds_back_is_kept_until_somebody_asks_for_more(stores: Stores) -> None:
    _, view = await table_and_view(stores)
    scan = (await scan_of(stores, view.id)).id
    async with stores.begin() as tx:
        before = (await tx.limits.hold([scan]))[scan]
        found: list[Held] = []
        for limit in (7, None, 0):
            await tx.limits.pause({scan: limit})
            found.append((await tx.limits.hold([scan]))[scan])
        await tx.limits.unpause([scan, FragmentId(999)])
        after = (await tx.limits.hold([scan]))[scan]
    assert [(one.paused, one.resumes_at) for one in found] == [(True, 7), (True, None), (True, 0)]
    assert (before.paused, after) == (False, before)


async def test_blame_counts_consecutive_failures_of_one_job(stores: Stores) -> None:
    table, view = await table_and_view(stores)
    async with stores.begin() as tx:
        counts = [
            await tx.failures.blame(job, graph=DATABASE_GRAPH)
            for job in (view.id, view.id, table.id, view.id, None, view.id)
        ]
        found = await tx.jobs.get(view.id)
        idle = await tx.jobs.get(table.id)
        assert await tx.failures.blamed(DATABASE_GRAPH)
        assert not await tx.failures.blamed(GraphId(DATABASE_GRAPH + 1))
        await tx.failures.blame(None, graph=DATABASE_GRAPH)
        assert not await tx.failures.blamed(DATABASE_GRAPH)
    assert counts == [1, 2, 1, 1, 0, 1]
    assert found is not None
    assert idle is not None
    assert (found.failures, found.recoveries, idle.failures, idle.recoveries) == (1, 6, 0, 0)


# --- fragments ----------------------------------------------------------------------------------------------------


async def test_positions_and_row_counts_round_trip(stores: Stores) -> None:
    """I11, I6: what was committed is what the next generation starts from."""
    _, view = await table_and_view(stores)
    scan = await scan_of(stores, view.id)
    one, two = scan.actors
    keys: tuple[str | None, ...] = (None, "7")
    text = ('ä"\\u0000 {,}', "-0.0")
    async with stores.begin() as tx:
        first = collected(10, report(one.id, scan.id, 3, at(0, *keys, rows=3)), report(two.id, scan.id, 0))
        second = collected(
            20,
            report(one.id, scan.id, 9, at(0, *text, rows=5), done(1, rows=4)),
            report(two.id, scan.id, 2, at(7, *keys, rows=2)),
        )
        await tx.fragments.record([first, second], now=NOW)
        await tx.fragments.record([collected(30, report(two.id, scan.id, 3, done(7, rows=3)))], now=NOW)
    again = await scan_of(stores, view.id)
    assert [actor.positions for actor in again.actors] == [
        (at(0, *text, rows=5), done(1, rows=4)),
        (done(7, rows=3),),
    ]
    async with stores.begin() as tx:
        (progress,) = (await tx.fragments.scans([view.id]))[view.id]
        rows = [await committed_rows(tx, scan.id, actor.id) for actor in scan.actors]
    assert (progress.rows, progress.finished, progress.at) == (12, False, NOW)
    assert rows == [9, 3]


async def test_i3_scans_of_splits_go_on_from_where_they_were(stores: Stores) -> None:
    """They have no progress, because they read for ever."""
    scan = NewSplitScan(actors=(((0, 1),),), connector=Connector(name="datagen", options={"a": "b"}))
    new = NewJob(relation("t"), "CREATE TABLE t", background=False, fragments=(scan,))
    async with stores.begin() as tx:
        job = await add_creating(tx, new)
        (plan,) = await tx.plans.of([job.id])
    (fragment,) = plan.fragments
    (actor,) = fragment.actors
    async with stores.begin() as tx:
        told = report(actor.id, fragment.id, 9, at(0, "7", rows=5), done(1, rows=4))
        await tx.fragments.record([collected(10, told)], now=NOW)
    async with stores.begin() as tx:
        (plan,) = await tx.plans.of([job.id])
        assert not (await tx.fragments.scans([job.id]))[job.id]
    assert plan.fragments[0].actors[0].positions == (at(0, "7", rows=5), done(1, rows=4))


@ON_POSTGRES
@pytest.mark.parametrize("name", ["deltalake", "file"])
async def test_a_relation_of_a_lake_is_where_its_scan_reads(stores: Stores, name: str) -> None:
    lake = Connector(name=name, options={"location": "/lake/t"}, secrets={"s3.secret.key": "key"})
    scan = NewSplitScan(actors=(((0, 0),),), connector=lake.model_copy(update={"secrets": {}}))
    new = NewJob(relation("t"), "CREATE TABLE t", background=False, fragments=(scan,))
    async with stores.begin() as tx:
        job = await add_created(tx, new)
        (plan,) = await tx.plans.of([job.id])
        entry, missing = await tx.catalog.named("t"), await tx.secrets.value("key")
        (unshown,) = await tx.visibility.unshown()
    assert missing is None
    assert entry is not None
    found = [plan.relation.lake, entry.relation.lake, unshown.lake]
    assert found == [scan.connector] * 3
    with pytest.raises(NotFound):
        async with stores.begin() as tx:
            await tx.jobs.add(replace(new, relation=relation("u"), fragments=(replace(scan, connector=lake),)), now=NOW)


async def test_a_scan_is_finished_once_all_its_actors_are(stores: Stores) -> None:
    _, view = await table_and_view(stores)
    scan = await scan_of(stores, view.id)
    one, two = scan.actors
    finished: list[bool] = []
    for actors in ([(one, False), (two, True)], [(one, True)]):
        async with stores.begin() as tx:
            reports = [report(actor.id, scan.id, 5, finished=ended) for actor, ended in actors]
            await tx.fragments.record([collected(10, *reports)], now=NOW)
            finished.append((await tx.fragments.scans([view.id]))[view.id][0].finished)
    assert finished == [False, True]


@ON_POSTGRES
async def test_i13_nobody_takes_a_name_of_the_catalog(stores: Stores) -> None:
    """A table called `rw_ddl_progress` was what everybody read in its place."""
    with pytest.raises(Invalid, match='name "rw_ddl_progress" is reserved'):
        async with stores.begin() as tx:
            await tx.jobs.add(new_table("rw_ddl_progress"), now=NOW)


@ON_POSTGRES
async def test_who_has_not_finished(stores: Stores) -> None:
    table, view = await table_and_view(stores)
    scan = await scan_of(stores, view.id)
    first, second = scan.actors
    async with stores.begin() as tx:
        (plan,) = await tx.plans.of([view.id])
        others = [actor.id for one in plan.fragments if one.id != scan.id for actor in one.actors]
        (writer,) = [actor.id for one in (await tx.plans.of([table.id]))[0].fragments for actor in one.actors]
        left = await tx.status.unfinished_actors([table.id, view.id])
        assert left == {table.id: [writer], view.id: sorted([first.id, second.id, *others])}
        await tx.fragments.record(
            [collected(10, report(first.id, scan.id, 1, done(0, rows=1), finished=True))], now=NOW
        )
        assert list((await tx.status.positions(scan.id)).values()) == [done(0, rows=1)]
        assert await tx.status.positions(scan.id, [1]) == {}
        assert await tx.status.position_counts([scan.id]) == {first.id: (0, 1, 1)}
        left = await tx.status.unfinished_actors([view.id])
        assert left == {view.id: sorted([second.id, *others])}


async def test_an_outline_is_a_plan_without_positions(stores: Stores) -> None:
    _, view = await table_and_view(stores)
    scan = await scan_of(stores, view.id)
    async with stores.begin() as tx:
        await tx.fragments.record([collected(10, report(scan.actors[0].id, scan.id, 1, done(0, rows=1)))], now=NOW)
        (plan,), (outline,) = await tx.plans.of([view.id]), await tx.plans.outlines([view.id])
    assert plan != outline
    assert [actor.positions for one in outline.fragments for actor in one.actors if actor.positions] == []
    dropped = {"fragments": {"__all__": {"actors": {"__all__": {"positions"}}}}}
    assert plan.model_dump(exclude=dropped) == outline.model_dump(exclude=dropped)


async def test_progress_has_the_present_key_count_as_its_total_and_a_rate(stores: Stores) -> None:
    table, view = await table_and_view(stores)
    scan = await scan_of(stores, view.id)
    one, two = scan.actors
    async with stores.begin() as tx:
        assert (await tx.fragments.scans([view.id, table.id])) == {
            view.id: [ScanProgress(scan.id, "t", total=0)],
            table.id: [],
        }
        keys = {table.relation: 100}
        await tx.fragments.record([collected(10, report(one.id, scan.id, 10), keys=keys)], now=NOW)
        later = NOW + timedelta(seconds=5)
        both = (report(one.id, scan.id, 20), report(two.id, scan.id, 40))
        await tx.fragments.record([collected(20, *both, keys={table.relation: -30})], now=later)
        (progress,) = (await tx.fragments.scans([view.id]))[view.id]
        entry = await tx.catalog.get(table.relation)
    assert progress == ScanProgress(scan.id, "t", rows=60, total=70, rate=10.0, at=later)
    assert entry is not None
    assert entry.key_count == 70


async def test_a_scan_that_has_not_reported_has_no_instant_and_one_that_falls_silent_slows_down(stores: Stores) -> None:
    table, view = await table_and_view(stores)
    scan = await scan_of(stores, view.id)
    async with stores.begin() as tx:
        other = await add_creating(tx, new_view("n", table.relation))
        for seconds in (0, 5):
            reports = [report(scan.actors[0].id, scan.id, seconds * 10)]
            await tx.fragments.record([collected(10, *reports)], now=NOW + timedelta(seconds=seconds))
        await tx.fragments.record([collected(20)], now=NOW + timedelta(seconds=10))
        scans = await tx.fragments.scans([view.id, other.id])
    assert (scans[view.id][0].rate, scans[view.id][0].at) == (0.0, NOW + timedelta(seconds=10))
    assert scans[other.id][0].at is None


async def test_what_a_dropped_or_finished_scan_still_reports_is_ignored(stores: Stores) -> None:
    table, view = await table_and_view(stores)
    scan = await scan_of(stores, view.id)
    last = [report(actor.id, scan.id, 5, finished=True) for actor in scan.actors]
    late = collected(20, report(scan.actors[0].id, scan.id, 9, done(0, rows=9)), keys={table.relation: 1})
    async with stores.begin() as tx:
        await tx.fragments.record([collected(10, *last)], now=NOW)
        await tx.fragments.record([late], now=NOW)
        (progress,) = (await tx.fragments.scans([view.id]))[view.id]
        await tx.catalog.remove(view.relation)
        await tx.fragments.record([late], now=NOW)
        entry = await tx.catalog.get(table.relation)
    assert (progress.rows, progress.finished) == (10, True)
    assert entry is not None
    assert entry.key_count == 2


async def test_the_plan_of_a_finished_scan_leaves_its_positions_out_and_keeps_its_rows(stores: Stores) -> None:
    """I11: whoever needs them gets a completed position for every vnode, also after a rescale."""
    _, view = await table_and_view(stores)
    scan = await scan_of(stores, view.id)
    read = [done(vnode, rows=vnode) for vnode in range(8)]
    halves = zip(scan.actors, (read[:4], read[4:]), strict=True)
    told = [report(actor.id, scan.id, sum(at.rows for at in half), *half) for actor, half in halves]
    ended = [report(one.actor, scan.id, one.rows, finished=True) for one in told]
    async with stores.begin() as tx:
        await tx.fragments.record([collected(10, *told)], now=NOW)
        assert [len(actor.positions) for actor in (await tx.plans.of([view.id]))[0].fragments[0].actors] == [4, 4]
        await tx.fragments.record([collected(20, *ended)], now=NOW)
        (plan,) = await tx.plans.of([view.id])
        ids = await tx.actors.reserve(3)
        rescaled = [
            ActorPlan(id=one, vnodes=runs) for one, runs in zip(ids, (((0, 1),), ((2, 2),), ((3, 7),)), strict=True)
        ]
        await tx.actors.replace({scan.id: rescaled})
        (after,) = await tx.plans.of([view.id])
    for found, rows in ((plan, [6, 22]), (after, [1, 2, 25])):
        finished = found.fragments[0]
        assert isinstance(finished, TableScanPlan)
        assert finished.finished
        assert [(actor.positions, actor.rows) for actor in finished.actors] == [((), one) for one in rows]
        assert [sum(at.rows for at in actor.positions) for actor in finished.positioned] == rows
        owned = [vnode for actor in finished.actors for vnode in vnodes_of(actor.vnodes)]
        assert [at.vnode for actor in finished.positioned for at in actor.positions] == owned
        assert {at.state for actor in finished.positioned for at in actor.positions} == {PositionState.COMPLETED}


async def test_rate_limits_reach_the_plan(stores: Stores) -> None:
    _, view = await table_and_view(stores)
    scan = await scan_of(stores, view.id)
    for limit in (0, 500, None):
        async with stores.begin() as tx:
            await tx.limits.put({scan.id: limit, FragmentId(999): 1}, auto=(), epoch=Epoch(1))
            (progress,) = (await tx.fragments.scans([view.id]))[view.id]
        assert (await scan_of(stores, view.id)).rate_limit == progress.rate_limit == limit


async def test_a_scan_behind_an_arrow_waits_until_it_is_released(stores: Stores) -> None:
    async with stores.begin() as tx:
        a, b, c = [(await add_created(tx, new_table(name))).relation for name in "abc"]
        view = await add_creating(tx, new_view("m", a, b, a, c, order=((a, b), (b, c))))
        queued = await tx.jobs.add(new_view("later", a, b, order=((a, b),)), now=NOW)
        await tx.fragments.record([collected(10)], now=NOW)
        (plan,) = await tx.plans.of([view.id])
        scans = (await tx.fragments.scans([view.id]))[view.id]
        assert await tx.fragments.held(DATABASE_GRAPH) == [view.id], "a job that has not started holds nothing up"
    assert [one.waiting for one in plan.table_scans] == [False, True, False, True]
    assert [(scan.waiting, scan.awaits) for scan in scans] == [
        (False, ()),
        (True, ("a",)),
        (False, ()),
        (True, ("b",)),
    ]
    first, second, third, fourth = plan.fragments
    async with stores.begin() as tx:
        finished = [report(actor.id, one.id, 1, finished=True) for one in (first, third) for actor in one.actors]
        await tx.fragments.record([collected(20, *finished)], now=NOW)
        scans = (await tx.fragments.scans([view.id]))[view.id]
        assert (scans[1].waiting, scans[1].awaits, scans[3].awaits) == (True, (), ("b",))
        await tx.fragments.release([second.id, FragmentId(999)])
        scans = (await tx.fragments.scans([view.id]))[view.id]
        assert [scan.waiting for scan in scans] == [False, False, False, True]
        await tx.fragments.release([fourth.id])
        assert await tx.fragments.held(DATABASE_GRAPH) == []
        (other,) = await tx.plans.of([queued.id])
    assert [one.waiting for one in other.table_scans] == [False, True], "the other job's scan still waits"


async def test_a_scan_that_waits_does_not_make_statements_wait(stores: Stores) -> None:
    """I5: only history that moves needs long slices."""
    async with stores.begin() as tx:
        a, b = [(await add_created(tx, new_table(name))).relation for name in "ab"]
        view = await add_creating(tx, new_view("m", a, b, order=((a, b),)))
        (plan,) = await tx.plans.of([view.id])
        assert (await tx.graphs.view(DATABASE_GRAPH, now=NOW, lease=LEASE)).backfilling
        await tx.limits.put({plan.fragments[0].id: 0}, auto=(), epoch=Epoch(1))
        assert not (await tx.graphs.view(DATABASE_GRAPH, now=NOW, lease=LEASE)).backfilling


async def test_a_fragment_knows_its_job(stores: Stores) -> None:
    _, view = await table_and_view(stores)
    scan = await scan_of(stores, view.id)
    async with stores.begin() as tx:
        known = await tx.fragments.job_of([scan.id, FragmentId(999)])
    assert known == {scan.id: (view.id, FragmentKind.STREAM_SCAN)}


# --- traces -------------------------------------------------------------------------------------------------------


async def test_a_traced_job_is_taken_once_after_its_creation_has_ended(stores: Stores) -> None:
    asked = f"00-{'a' * 32}-{'b' * 16}-01"
    async with stores.begin() as tx:
        await add_created(tx, new_table("t"))
        job = await tx.jobs.add(replace(new_table("u"), traceparent=asked), now=NOW)
        assert await tx.jobs.take_traced() == []
        await tx.jobs.move(job.id, JobEvent.CANCEL_ASKED, now=NOW + timedelta(seconds=5))
        ended = await tx.jobs.get(job.id)
        assert await tx.jobs.take_traced() == [(ended, asked)]
    async with stores.begin() as tx:
        assert await tx.jobs.take_traced() == []


async def test_s7_n8_views_that_have_stored_many_rows_are_found_by_their_state(stores: Stores) -> None:
    table, view = await table_and_view(stores)
    await running(stores)
    async with stores.begin() as tx:
        await tx.fragments.record([collected(10, keys={table.relation: 100, view.relation: 7})], now=NOW)
        assert await tx.jobs.grown(6, JobState.CREATING) == {view.id: 7}
        assert await tx.jobs.grown(7, JobState.CREATING) == await tx.jobs.grown(6, JobState.CREATED) == {}
        await tx.jobs.move(view.id, JobEvent.FINISHED, now=NOW)
        # The rows of a table are its users' own.
        assert await tx.jobs.grown(6, JobState.CREATED) == {view.id: 7}
        assert await tx.jobs.grown(7, JobState.CREATED) == await tx.jobs.grown(6, JobState.CREATING) == {}
