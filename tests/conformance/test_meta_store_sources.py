"""The meta store's records of sources, of followed tables and of secrets. No decision needs them in memory."""

from dataclasses import replace
from datetime import timedelta
from itertools import pairwise

import pytest

from service.domain.errors import Conflict, NotFound
from service.domain.job import JobEvent
from service.domain.parallelism import blocks
from service.domain.source import Retention
from service.ports.meta_store import Stores
from service.ports.records import NewJob, NewSourceScan, NewSplitScan
from service.ports.source_records import Leftover, Measured, NewLakeSource, NewSource, Password, Source
from service.protocol.cdc import (
    CdcColumn,
    CdcScan,
    CdcSource,
    CdcTableReport,
    ExternalColumn,
    Published,
    Shape,
    SourceReport,
    Split,
    Sweep,
)
from service.protocol.connector import Connector
from service.protocol.ids import DATABASE_GRAPH, FragmentId, RelationId, Vnode
from service.protocol.plan import PositionState, VnodePosition
from service.protocol.relation import RelationKind
from service.protocol.report import ActorReport
from tests.conformance.conftest import ON_POSTGRES
from tests.support.meta_store import LEASE, NOW, add_created, collected, new_table, new_view, relation

pytestmark = ON_POSTGRES
LATER = timedelta(minutes=5)


def new_source(name: str, *, owns: bool = True, password: Password | None = None) -> NewSource:
    options = {"connector": "postgres-cdc", "hostname": "db", "database.name": "shop"}
    given = Password(value="pw") if password is None else password
    return NewSource(name, f"CREATE SOURCE {name}", options, given, None, None, owns_publication=owns)


async def made(stores: Stores, name: str = "pg") -> Source:
    async with stores.begin() as tx:
        source = await tx.sources.add(new_source(name), now=NOW, abandoned_at=NOW + LATER)
        await tx.sources.made(source.id, "0/10")
        found = await tx.sources.named(name)
    assert found is not None
    return found


def new_follower(source: Source, name: str, *, splits: int = 1, added: bool = True) -> NewJob:
    bounds = [None, *(str(number) for number in range(1, splits)), None]
    scan = CdcScan(
        source=CdcSource(
            id=source.id, name=source.name, slot=source.slot, publication=source.publication, offset="0/10"
        ),
        external_schema="public",
        external_table="orders",
        columns=(CdcColumn(name="id", external="id", type="bigint"),),
        split_column="id",
        splits=tuple(Split(left=left, right=right) for left, right in pairwise(bounds)),
        readable_after=700,
        total=50,
    )
    fragment = NewSourceScan(actors=blocks(splits, min(splits, 2)), cdc=scan, added=added)
    return NewJob(
        relation(name), f"CREATE TABLE {name}", background=False, fragments=(fragment,), views=(RelationId(source.id),)
    )


async def plan_of(stores: Stores, name: str) -> tuple[FragmentId, CdcScan]:
    async with stores.begin() as tx:
        entry = await tx.catalog.named(name)
        assert entry is not None
        (plan,) = await tx.plans.of([entry.job])
    fragment = plan.source_scan
    assert fragment is not None
    return fragment.id, fragment.cdc


async def test_a_source_has_a_name_among_the_relations(stores: Stores) -> None:
    async with stores.begin() as tx:
        await add_created(tx, new_table("t"))
        with pytest.raises(Conflict, match='table with name "t" exists'):
            await tx.sources.add(new_source("t"), now=NOW, abandoned_at=NOW)
    async with stores.begin() as tx:
        source = await tx.sources.add(new_source("pg"), now=NOW, abandoned_at=NOW + LATER)
        assert (source.shown, source.dropped, source.secret) == (False, False, None)
        assert source.slot == source.publication
        assert source.slot.startswith("tidefill_")
    for begun in (False, True):
        async with stores.begin() as tx:
            with pytest.raises(Conflict, match="still being created" if not begun else 'source with name "pg" exists'):
                await tx.jobs.add(new_table("pg"), now=NOW)
        async with stores.begin() as tx:
            await tx.sources.made(source.id, "0/10")
    async with stores.begin() as tx:
        other = await tx.sources.add(new_source("other"), now=NOW, abandoned_at=NOW)
        assert other.slot != source.slot
        assert [one.name for one in await tx.sources.all()] == ["pg", "other"]
        assert await tx.sources.password(source.id) == "pw"
        found = await tx.sources.get(source.id)
    assert found is not None
    assert (found.shown, found.standing.offset, found.options["hostname"]) == (True, "0/10", "db")


async def test_what_is_made_is_to_be_cleaned_up_until_it_is_made(stores: Stores) -> None:
    """I9."""
    async with stores.begin() as tx:
        source = await tx.sources.add(new_source("pg"), now=NOW, abandoned_at=NOW + LATER)
        assert await tx.source_cleanups.due(NOW) == []
        due = await tx.source_cleanups.due(NOW + LATER)
        assert [one.what for one in due] == [Leftover.SLOT, Leftover.PUBLICATION]
        await tx.sources.made(source.id, "0/10")
        assert await tx.source_cleanups.all() == []
        await tx.sources.remove(source.id, now=NOW)
    async with stores.begin() as tx:
        assert await tx.sources.named("pg") is None
        slot, publication = await tx.source_cleanups.due(NOW)
        await tx.source_cleanups.failed(slot.id, "away", due=NOW + LATER)
        assert [one.id for one in await tx.source_cleanups.due(NOW)] == [publication.id]
        assert await tx.source_cleanups.hold(slot.id, NOW) is None
        held = await tx.source_cleanups.hold(slot.id, NOW + LATER)
        assert held is not None
        assert (held.attempts, held.error) == (1, "away")
        await tx.source_cleanups.done(publication.id)
        assert await tx.sources.password(source.id) == "pw"
        await tx.source_cleanups.done(slot.id)
        assert await tx.sources.get(source.id) is None
    await made(stores)


async def test_what_is_somebody_elses_is_kept(stores: Stores) -> None:
    async with stores.begin() as tx:
        source = await tx.sources.add(new_source("pg", owns=False), now=NOW, abandoned_at=NOW)
        assert [one.what for one in await tx.source_cleanups.all()] == [Leftover.SLOT]
        await tx.sources.remove(source.id, now=NOW, keeping={Leftover.SLOT})
        assert await tx.source_cleanups.all() == []
        assert await tx.sources.get(source.id) is None


async def test_a_plan_begins_where_the_source_stands(stores: Stores) -> None:
    source = await made(stores)
    async with stores.begin() as tx:
        job = await add_created(tx, new_follower(source, "t", splits=3))
        assert [one.id for one in await tx.jobs.backfilling()] == [job.id]
    fragment, scan = await plan_of(stores, "t")
    assert (scan.source.offset, scan.source.undecided, scan.readable_after) == ("0/10", (), 700)
    report = SourceReport(source=source.id, offset="0/20", undecided=(5, 6), lag_bytes=3, retained_bytes=4, changes=2)
    async with stores.begin() as tx:
        assert await tx.following.record([report], now=NOW) == []
        again = report.model_copy(update={"offset": "0/30", "lag_bytes": None, "changes": 5})
        last = again.model_copy(update={"offset": "0/40", "changes": 1})
        assert await tx.following.record([again, last], now=NOW) == []
        found = await tx.sources.get(source.id)
    assert found is not None
    standing = found.standing
    assert (standing.offset, standing.undecided, standing.changes) == ("0/40", 2, 8)
    assert (standing.lag_bytes, standing.retained_bytes, standing.reported_at) == (3, 4, NOW)
    assert (await plan_of(stores, "t"))[1].source.offset == "0/40"
    assert (await plan_of(stores, "t"))[1].source.undecided == (5, 6)
    async with stores.begin() as tx:
        (table,) = await tx.following.tables(source.id)
        (plan,) = await tx.plans.of([job.id])
    assert (table.fragment, table.splits, table.external) == (fragment, 3, ("public", "orders"))
    assert [actor.vnodes for actor in plan.fragments[0].actors] == [((0, 0),), ((1, 2),)]


async def test_its_progress_is_that_of_a_scan(stores: Stores) -> None:
    """I6."""
    source = await made(stores)
    async with stores.begin() as tx:
        job = await add_created(tx, new_follower(source, "t"))
        (plan,) = await tx.plans.of([job.id])
    (actor,) = plan.fragments[0].actors
    done = VnodePosition(vnode=Vnode(0), state=PositionState.COMPLETED, rows=50)
    for finished in (False, True):
        report = ActorReport(
            actor=actor.id, fragment=plan.fragments[0].id, rows=50, positions=(done,), finished=finished
        )
        async with stores.begin() as tx:
            await tx.fragments.record([collected(10, report)], now=NOW)
            (scan,) = (await tx.fragments.scans([job.id]))[job.id]
            (table,) = await tx.following.tables()
            assert (scan.upstream, scan.rows, scan.total, scan.external) == ("public.orders", 50, 50, True)
            assert (scan.finished, table.finished, table.splits_completed) == (finished, finished, 1)
            assert [one.id for one in await tx.jobs.backfilling()] == ([] if finished else [job.id])
            layouts = await tx.actors.layouts([job.id])
            assert layouts[job.id] == {plan.fragments[0].id: [((0, 0),)]}


async def test_f6_a_reload_begins_a_history_anew(stores: Stores) -> None:
    source = await made(stores)
    async with stores.begin() as tx:
        job = await add_created(tx, new_follower(source, "t"))
    fragment, before = await plan_of(stores, "t")
    async with stores.begin() as tx:
        (first,) = await tx.plans.of([job.id])
    assert first.source_scan is not None
    at = VnodePosition(vnode=Vnode(0), state=PositionState.COMPLETED, rows=50)
    read = ActorReport(
        actor=first.source_scan.actors[0].id,
        fragment=fragment,
        rows=50,
        snapshot_rows=50,
        upstream_rows=0,
        completed=False,
        finished=True,
        positions=(at,),
    )
    broken = CdcTableReport(fragment=fragment, broken="a column is gone")
    async with stores.begin() as tx:
        await tx.fragments.record([collected(10, read)], now=NOW)
        await tx.following.record([SourceReport(source=source.id, offset="0/20", tables=(broken,))], now=NOW)
    scan = before.model_copy(update={"sweep": Sweep(), "reloaded_at": 7, "broken": None})
    async with stores.begin() as tx:
        await tx.following.begin_reload(fragment)
    async with stores.begin() as tx:
        await tx.following.reload({fragment: scan})
        await tx.following.restart([fragment])
    swept = CdcTableReport(fragment=fragment, sweep=Sweep(after=("0", "5")), nulled=3)
    async with stores.begin() as tx:
        await tx.following.record([SourceReport(source=source.id, offset="0/30", tables=(swept,))], now=NOW)
        (table,) = await tx.following.tables()
        assert (table.broken, table.finished, table.splits_completed, table.nulled) == (None, False, 0, 3)
        (plan,) = await tx.plans.of([job.id])
        (progress,) = (await tx.fragments.scans([job.id]))[job.id]
    assert plan.source_scan is not None
    cdc = plan.source_scan.cdc
    assert (cdc.sweep, cdc.reloaded_at, cdc.nulled) == (Sweep(after=("0", "5")), 7, 3)
    assert [actor.positions for actor in plan.source_scan.actors] == [()]
    assert (progress.rows, progress.finished) == (0, False)


async def test_f6_a_table_that_lacks_columns_of_the_external_one_is_found(stores: Stores) -> None:
    source = await made(stores)
    async with stores.begin() as tx:
        for name in ("t", "u"):
            await add_created(tx, new_follower(source, name))
    fragment, scan = await plan_of(stores, "t")
    other, named = await plan_of(stores, "u")
    one = ExternalColumn(number=1, name="c", type="bigint", version="1", collation="0", sent=True)
    there = (one, *(one.model_copy(update={"number": n, "name": f"c{n}"}) for n in range(len(scan.columns))))
    shape = Shape(digest="d", storage="s", columns=there[1:])
    place = Published(system=None, table="1", publication="1", entries=(), shape=shape)

    async def lacking() -> list[tuple[FragmentId, str | None]]:
        async with stores.begin() as tx:
            return [(table.fragment, table.note) for table in await tx.following.lacking()]

    async with stores.begin() as tx:
        await tx.following.reload({fragment: scan.model_copy(update={"all_columns": True})})
    assert await lacking() == []
    more = place.model_copy(update={"shape": shape.model_copy(update={"columns": there})})
    for now, expected in ((place, []), (more, [(fragment, None)])):
        told = tuple(CdcTableReport(fragment=id_, published=now) for id_ in (fragment, other))
        async with stores.begin() as tx:
            await tx.following.record([SourceReport(source=source.id, offset="0/30", tables=told)], now=NOW)
        assert await lacking() == expected
    async with stores.begin() as tx:
        await tx.following.note(fragment, "why\0")
        await tx.following.record([SourceReport(source=source.id, offset="0/40", tables=told[:1])], now=NOW)
    assert [len(note or "") >= 3 for _, note in await lacking()] == [True]
    async with stores.begin() as tx:
        await tx.following.reload({other: named})
        await tx.following.note(fragment, None)
    assert await lacking() == [(fragment, None)]


async def test_what_is_new_is_told_once(stores: Stores) -> None:
    source = await made(stores)
    async with stores.begin() as tx:
        job = await add_created(tx, new_follower(source, "t"))
    fragment, _ = await plan_of(stores, "t")
    broken = CdcTableReport(fragment=fragment, broken="a column is gone\0")
    waits = CdcTableReport(fragment=fragment, waiting="a long transaction")
    report = SourceReport(source=source.id, offset="0/20")
    async with stores.begin() as tx:
        found = await tx.following.record([report.model_copy(update={"waiting": "away"})], now=NOW)
        assert [(one.source, one.table, one.text) for one in found] == [("pg", None, "away")]
        (scan,) = (await tx.fragments.scans([job.id]))[job.id]
        assert scan.source_waiting == "away"
        found = await tx.following.record([report.model_copy(update={"tables": (waits,)})], now=NOW)
        assert [(one.table, one.text) for one in found] == [(None, None)]
        (scan,) = (await tx.fragments.scans([job.id]))[job.id]
        assert scan.source_waiting == "a long transaction"
        found = await tx.following.record([report.model_copy(update={"tables": (broken,)})], now=NOW)
        assert [(one.table, one.text) for one in found] == [("t", "a column is gone\N{REPLACEMENT CHARACTER}")]
        later = broken.model_copy(update={"broken": "something else"})
        assert await tx.following.record([report.model_copy(update={"tables": (later,)})], now=NOW + LEASE) == []
        assert await tx.following.broke(source.id, "all of them", now=NOW + LEASE) == []
        assert [one.broken_since for one in await tx.following.tables()] == [NOW]
        (scan,) = (await tx.fragments.scans([job.id]))[job.id]
        assert (scan.stopped, scan.source_waiting) == ("a column is gone\N{REPLACEMENT CHARACTER}", None)
        unknown = SourceReport(source=source.id.__class__(10**6), offset="0/1")
        assert await tx.following.record([unknown], now=NOW) == []


async def test_what_follows_no_longer_hurries_no_barrier(stores: Stores) -> None:
    """Its history is never read to its end."""
    source = await made(stores)
    async with stores.begin() as tx:
        await add_created(tx, new_follower(source, "t"))
        view = await tx.graphs.view(DATABASE_GRAPH, now=NOW, lease=LEASE)
        assert (view.backfilling, view.hurries) == (True, True)
        assert await tx.following.broke(source.id, "the slot is gone", now=NOW) == ["t"]
        view = await tx.graphs.view(DATABASE_GRAPH, now=NOW, lease=LEASE)
        assert (view.backfilling, view.hurries) == (False, False)


async def test_a_source_is_idle_until_something_follows(stores: Stores) -> None:
    source = await made(stores)
    async with stores.begin() as tx:
        assert await tx.slots.idle(source.id)
        assert set(await tx.following.followed()) == set()
        await tx.slots.skipped(source.id, "1/0", 900)
        await tx.slots.measured(source.id, Measured(1, 2, "slow"), now=NOW)
        await tx.slots.retained(source.id, Retention.WARNING)
        job = await add_created(tx, new_follower(source, "t"))
        assert not await tx.slots.idle(source.id)
        assert set(await tx.following.followed()) == {source.id}
        found = await tx.sources.get(source.id)
    assert found is not None
    expected = replace(
        found.standing,
        offset="1/0",
        undecided=0,
        lag_bytes=1,
        retained_bytes=2,
        waiting="slow",
        reported_at=NOW,
        retention=Retention.WARNING,
    )
    assert found.standing == expected
    _, scan = await plan_of(stores, "t")
    assert (scan.source.offset, scan.readable_after) == ("1/0", 900)
    async with stores.begin() as tx:
        await tx.slots.measured(source.id, Measured(followed=True), now=NOW + LATER)
        found = await tx.sources.get(source.id)
        assert found is not None
        assert found.standing == replace(expected, reported_at=NOW + LATER)
        assert await tx.following.broke(source.id, "the slot is gone", now=NOW) == ["t"]
        (scan_now,) = (await tx.fragments.scans([job.id]))[job.id]
        await tx.jobs.move(job.id, JobEvent.FAILED, now=NOW, error="a row")
        assert await tx.slots.idle(source.id)
    assert scan_now.stopped == "the slot is gone"


async def test_what_was_published_is_taken_back_with_what_follows(stores: Stores) -> None:
    """I9: slot and publication after the last that follows."""
    source = await made(stores)
    async with stores.begin() as tx:
        await tx.source_cleanups.expect(source.id, "public", "orders", now=NOW, due=NOW + LATER)
        one = await add_created(tx, new_follower(source, "one"))
        assert await tx.source_cleanups.all() == []
        other = await add_created(tx, new_follower(source, "other", added=False))
        dependents = [entry.relation.name for entry in await tx.catalog.dependents(RelationId(source.id))]
        assert dependents == ["one", "other"]
        await tx.sources.remove(source.id, now=NOW)
        assert await tx.source_cleanups.due(NOW + LATER) == []
    async with stores.begin() as tx:
        for job in (one, other):
            await tx.jobs.move(job.id, JobEvent.DROP_ASKED, now=NOW)
            await tx.jobs.move(job.id, JobEvent.STOPPED, now=NOW)
            await tx.catalog.remove(job.relation)
        due = {one.what: one for one in await tx.source_cleanups.due(NOW)}
        assert due.keys() == set(Leftover)
        table = due[Leftover.TABLE]
        assert (table.external_schema, table.external_table) == ("public", "orders")
        for cleanup in due.values():
            await tx.source_cleanups.done(cleanup.id)
        assert await tx.sources.get(source.id) is None


async def test_whoever_is_about_to_follow_has_it_taken_back_himself(stores: Stores) -> None:
    source = await made(stores)
    async with stores.begin() as tx:
        job = await add_created(tx, new_follower(source, "one"))
        await tx.source_cleanups.expect(source.id, "public", "orders", now=NOW, due=NOW + LATER)
        await tx.jobs.move(job.id, JobEvent.DROP_ASKED, now=NOW)
        await tx.jobs.move(job.id, JobEvent.STOPPED, now=NOW)
        await tx.catalog.remove(job.relation)
        assert await tx.source_cleanups.due(NOW) == []
        await tx.source_cleanups.expect(source.id, "public", "orders", now=NOW, due=NOW)
        assert [one.what for one in await tx.source_cleanups.due(NOW)] == [Leftover.TABLE]


async def test_nothing_follows_a_source_that_was_dropped(stores: Stores) -> None:
    source = await made(stores)
    async with stores.begin() as tx:
        await tx.sources.remove(source.id, now=NOW)
        assert not await tx.slots.idle(source.id)
        with pytest.raises(Conflict, match='source "pg" cannot be read: it was dropped'):
            await tx.jobs.add(new_follower(source, "t"), now=NOW)


async def test_a_catalog_entry_says_what_follows(stores: Stores) -> None:
    source = await made(stores)
    async with stores.begin() as tx:
        follower = await add_created(tx, new_follower(source, "t"))
        await add_created(tx, new_table("own"))
        await add_created(tx, new_view("m", follower.relation))
        entries = {entry.relation.name: entry.follows for entry in await tx.catalog.all()}
    assert entries == {"t": True, "own": False, "m": False}


async def test_a_scan_without_history_is_completed(stores: Stores) -> None:
    source = await made(stores)
    new = new_follower(source, "t")
    (fragment,) = new.fragments
    async with stores.begin() as tx:
        job = await add_created(tx, replace(new, fragments=(replace(fragment, completed=True),)))
        (plan,) = await tx.plans.of([job.id])
    (position,) = plan.fragments[0].actors[0].positions
    assert (position.state, position.rows) == (PositionState.COMPLETED, 0)


async def test_a_secret_that_a_sink_uses_stays(stores: Stores) -> None:
    sink = Connector(name="deltalake", options={"a": "b"}, secrets={"s3.secret.key": "k"})

    def reading(table: RelationId) -> NewJob:
        view = new_view("s", table)
        (scan,) = view.table_scans
        target = view.relation.model_copy(update={"kind": RelationKind.SINK})
        return replace(view, relation=target, fragments=(replace(scan, sink=sink),))

    async with stores.begin() as tx:
        table = (await add_created(tx, new_table("t"))).relation
    with pytest.raises(NotFound, match='secret "k" does not exist'):
        async with stores.begin() as tx:
            await tx.jobs.add(reading(table), now=NOW)
    async with stores.begin() as tx:
        await tx.secrets.add("k", "told")
        await tx.secrets.add("other", "told")
        job = await tx.jobs.add(reading(table), now=NOW)
        (plan,) = await tx.plans.of([job.id])
        assert plan.table_scans[0].sink == sink
        assert "told" not in plan.model_dump_json()
        with pytest.raises(Conflict, match='cannot drop secret "k": it is used by s'):
            await tx.secrets.remove("k")
        assert await tx.secrets.remove("other")
        await tx.catalog.remove(job.relation)
        assert await tx.secrets.remove("k")


async def test_secrets(stores: Stores) -> None:
    async with stores.begin() as tx:
        await tx.secrets.add("b", "one")
        await tx.secrets.add("a", "two")
        assert await tx.secrets.names() == ["a", "b"]
        assert (await tx.secrets.value("b"), await tx.secrets.value("c")) == ("one", None)
        await tx.secrets.change("b", "three")
        source = await tx.sources.add(new_source("pg", password=Password(name="b")), now=NOW, abandoned_at=NOW)
        assert source.secret == "b"
        assert await tx.sources.password(source.id) == "three"
        for refused in (tx.secrets.add("a", "x"), tx.secrets.remove("b")):
            with pytest.raises(Conflict):
                await refused
        with pytest.raises(NotFound):
            await tx.secrets.change("c", "x")
    async with stores.begin() as tx:
        with pytest.raises(NotFound, match='secret "c" does not exist'):
            await tx.sources.add(new_source("other", password=Password(name="c")), now=NOW, abandoned_at=NOW)
    async with stores.begin() as tx:
        assert await tx.secrets.remove("a")
        assert not await tx.secrets.remove("a")
        await tx.sources.remove(source.id, now=NOW, keeping=set(Leftover))
        assert await tx.secrets.remove("b")
        assert await tx.secrets.names() == []


async def test_a_place_in_a_lake_is_a_source_that_keeps_its_secrets(stores: Stores) -> None:
    connector = Connector(name="deltalake", options={"location": "s3://b/lake"}, secrets={"s3.secret.key": "key"})
    new = NewLakeSource("lake", "CREATE SOURCE lake", connector)
    with pytest.raises(NotFound):
        async with stores.begin() as tx:
            await tx.lakes.add(new)
    async with stores.begin() as tx:
        await tx.secrets.add("key", "x")
        source = await tx.lakes.add(new)
        with pytest.raises(Conflict, match='source with name "lake" exists'):
            await tx.sources.add(new_source("lake"), now=NOW, abandoned_at=NOW)
    scan = NewSplitScan(actors=(((0, 0),),), connector=connector)
    table = NewJob(relation("t"), "CREATE TABLE t", background=False, fragments=(scan,), views=(source,))
    async with stores.begin() as tx:
        job = await add_created(tx, table)
        (found,) = await tx.lakes.all()
        assert (found.id, found.connector) == (source, connector)
        assert [one.relation.name for one in await tx.catalog.dependents(source)] == ["t"]
        with pytest.raises(Conflict, match="it is used by lake, t"):
            await tx.secrets.remove("key")
        await tx.catalog.remove(job.relation)
        assert not await tx.catalog.dependents(source)
        assert await tx.lakes.remove(source)
        assert not await tx.lakes.remove(source)
        assert await tx.lakes.named("lake") is None
        assert await tx.secrets.remove("key")
        await tx.lakes.add(NewLakeSource("lake", "CREATE SOURCE lake", connector.model_copy(update={"secrets": {}})))


async def test_a_table_waits_for_its_storage_since_that_is_away(stores: Stores) -> None:
    scan = NewSplitScan(actors=(((0, 0),),), connector=Connector(name="deltalake", options={"location": "/lake/t"}))
    async with stores.begin() as tx:
        job = await add_created(tx, NewJob(relation("t"), "CREATE TABLE t", background=False, fragments=(scan,)))
        (plan,) = await tx.plans.of([job.id])
    (fragment,) = plan.fragments
    (actor,) = fragment.actors
    told = [("away", NOW), ("still\x00away", NOW), (None, None), ("again", NOW + 3 * LATER)]
    for number, (reason, since) in enumerate(told):
        at = VnodePosition(vnode=Vnode(0), state=PositionState.IN_PROGRESS, key=("7",), rows=1)
        report = ActorReport(actor=actor.id, fragment=fragment.id, rows=1, positions=(at,), waiting=reason)
        async with stores.begin() as tx:
            await tx.fragments.record([collected(10, report)], now=NOW + number * LATER)
            found = [(one.relation, one.job, one.reason, one.since) for one in await tx.lakes.away()]
        shown = None if reason is None else reason.replace("\x00", "\ufffd")
        assert found == ([] if reason is None else [(job.relation, job.id, shown, since)])
