"""F6: ALTER TABLE .. RELOAD, from the statement to what its worker is told and what the meta store keeps."""

from collections.abc import AsyncGenerator, Iterator

import pytest

from service.domain.errors import Conflict, Invalid, NotFound
from service.operations.sources import growing, shown
from service.ports.records import NewLogicalView
from service.protocol.cdc import CdcTableReport, SourceReport, Sweep
from service.protocol.ids import Vnode
from service.protocol.plan import PositionState, SourceScanPlan, VnodePosition
from service.protocol.report import ActorReport
from tests.support.external import External, Following, external_database, following

pytestmark = pytest.mark.postgres


@pytest.fixture
def external(postgres_url: str) -> Iterator[External]:
    with external_database(postgres_url) as one:
        one.run("create table orders (id bigint primary key, who varchar(20), paid numeric(12, 2))")
        yield one


@pytest.fixture
async def here(database_url: str, external: External) -> AsyncGenerator[Following]:
    async with following(database_url, external) as one:
        await one.run(external.create_source())
        await one.run("CREATE TABLE t (*) FROM pg TABLE 'public.orders'")
        yield one


async def plan_of(here: Following) -> SourceScanPlan:
    async with here.world.stores.begin() as tx:
        entry = await tx.catalog.named("t")
        assert entry is not None
        (plan,) = await tx.plans.of([entry.job])
    assert plan.source_scan is not None
    return plan.source_scan


async def break_halfway(here: Following) -> SourceScanPlan:
    """Have the worker read a part of the history, and then report the table as broken."""
    plan = await plan_of(here)
    (actor,) = plan.actors
    at = VnodePosition(vnode=Vnode(0), state=PositionState.IN_PROGRESS, rows=50, key=("50",))
    read = ActorReport(
        actor=actor.id,
        fragment=plan.id,
        rows=50,
        snapshot_rows=50,
        upstream_rows=0,
        completed=False,
        finished=False,
        positions=(at,),
    )
    here.actors = [read]
    await here.barrier()
    here.actors = []
    broken = CdcTableReport(fragment=plan.id, broken="a column is gone")
    here.reports = [SourceReport(source=plan.cdc.source.id, offset="1/2", tables=(broken,))]
    await here.barrier()
    here.reports = []
    assert (await plan_of(here)).cdc.broken == "a column is gone"
    return plan


async def test_f6_a_broken_table_begins_anew_with_the_columns_of_now(here: Following) -> None:
    before = await break_halfway(here)
    here.external.run("alter table orders drop column who", "alter table orders add column who varchar(30)")
    assert (await here.run("ALTER TABLE t RELOAD")).tag == "ALTER_TABLE"
    after = await plan_of(here)
    (actor,) = after.actors
    assert actor.positions == ()
    assert (after.cdc.broken, after.cdc.sweep) == (None, Sweep())
    assert [(column.name, column.type) for column in after.cdc.columns][1] == ("who", "character varying(30)")
    assert after.cdc.published is not None
    assert after.cdc.published.shape is not None
    assert after.cdc.published.shape.named("who") != before.cdc.published.shape.named("who")  # type: ignore[union-attr]
    assert after.cdc.readable_after > before.cdc.readable_after
    assert after.cdc.reloaded_at > 0
    (source,) = await shown.sources(here.world)
    assert [table.state for table in source.tables] == ["backfilling"]
    # How far the stored keys are compared is kept with the epoch.
    sweep = CdcTableReport(fragment=after.id, sweep=Sweep(after=("0", "7")))
    here.reports = [SourceReport(source=after.cdc.source.id, offset="1/3", tables=(sweep,))]
    await here.barrier()
    assert (await plan_of(here)).cdc.sweep == Sweep(after=("0", "7"))


async def test_f6_what_cannot_be_reloaded_is_refused_with_the_reason(here: Following) -> None:
    await here.run("CREATE TABLE own (a int PRIMARY KEY)")
    with pytest.raises(Conflict, match='the history of "t" is being read'):
        await here.run("ALTER TABLE t RELOAD")
    with pytest.raises(Invalid, match='"own" does not follow an external table'):
        await here.run("ALTER TABLE own RELOAD")
    with pytest.raises(NotFound):
        await here.run("ALTER TABLE none RELOAD")
    await break_halfway(here)
    here.external.run("alter table orders rename column who to whom")
    with pytest.raises(Invalid, match='has no column "who": ALTER the table there, or DROP and CREATE t here'):
        await here.run("ALTER TABLE t RELOAD")
    here.external.run("alter table orders rename column whom to who", "alter table orders alter id type text")
    with pytest.raises(Invalid, match='"id"'):
        await here.run("ALTER TABLE t RELOAD")
    assert (await plan_of(here)).cdc.broken == "a column is gone"


async def report(here: Following, *, finished: bool = True) -> None:
    """Have the worker report how the external table is now, and that its history is read."""
    plan = await plan_of(here)
    at, cdc = here.external.address, plan.cdc
    _, published = await here.world.external.replication.publish(at, cdc.source.publication, "public", "orders")
    (actor,) = plan.actors
    read = ActorReport(
        actor=actor.id,
        fragment=plan.id,
        rows=0,
        snapshot_rows=0,
        upstream_rows=0,
        completed=finished,
        finished=finished,
        positions=(VnodePosition(vnode=Vnode(0), state=PositionState.COMPLETED, rows=0),) if finished else (),
    )
    told = CdcTableReport(fragment=plan.id, published=published)
    here.actors, here.reports = [read], [SourceReport(source=cdc.source.id, offset="1/2", tables=(told,))]
    await here.run("FLUSH")
    here.actors, here.reports = [], []


async def grown(here: Following) -> tuple[list[str], list[str], str | None]:
    """Let the leader look for new columns. Return those of the catalog and of the scan, and the note on show."""
    await growing.grow(here.world, term=here.leader.term)
    await here.run("FLUSH")
    async with here.world.stores.begin() as tx:
        entry = await tx.catalog.named("t")
    assert entry is not None
    (source,) = await shown.sources(here.world)
    carried = (await plan_of(here)).cdc.columns
    return [one.name for one in entry.relation.columns], [one.name for one in carried], source.tables[0].note


async def test_f6_the_leader_takes_up_new_columns_when_the_history_is_read(here: Following) -> None:
    before = ["id", "who", "paid"]
    here.external.run("create domain dollars as numeric(9, 2)", superuser=True)
    here.external.run(
        "alter table orders add column c int, add column d dollars not null default 5, add column e numeric",
        "alter table orders add column _vnode int, add column f int generated always as (1) stored",
    )
    await report(here, finished=False)
    assert await grown(here) == (before, before, None)
    await report(here)
    all_of_them = [*before, "c", "d"]
    columns, carried, note = await grown(here)
    assert (columns, carried) == (all_of_them, all_of_them)
    assert note is not None
    assert 'new column "e" is left out: numeric has to be declared' in note
    (source,) = await shown.sources(here.world)
    assert source.tables[0].state == "backfilling"
    async with here.world.stores.begin() as tx:
        entry = await tx.catalog.named("t")
    assert entry is not None
    assert [str(one.type) for one in entry.relation.columns[3:]] == ["integer", "numeric(9,2)"]
    assert all(one.nullable for one in entry.relation.columns[3:])
    assert entry.definition == "CREATE TABLE t (*) FROM pg TABLE 'public.orders'"
    # Once is enough.
    reloads = "select count(*) from event where kind = 'source.table_reloaded'"
    assert here.stored(reloads) == [(1,)]
    await report(here)
    assert await grown(here) == (all_of_them, all_of_them, note)
    assert here.stored(reloads) == [(1,)]
    # A column that is not wanted there any more needs no note.
    here.external.run("alter table orders drop column e, drop column _vnode")
    await report(here)
    assert await grown(here) == (all_of_them, all_of_them, None)


async def test_f6_a_named_list_of_columns_ignores_new_ones(here: Following) -> None:
    await here.run("DROP TABLE t")
    await here.run("CREATE TABLE t (id bigint PRIMARY KEY, who text) FROM pg TABLE 'public.orders'")
    here.external.run("alter table orders add column c int")
    await report(here)
    assert await grown(here) == (["id", "who"], ["id", "who"], None)
    await here.run("ALTER TABLE t RELOAD")
    assert await grown(here) == (["id", "who"], ["id", "who"], None)


async def test_f6_a_reload_takes_up_new_columns_unless_a_view_selects_a_star(here: Following) -> None:
    """The scan of a table from before does not say that it has all columns. Its definition does."""
    before = ["id", "who", "paid"]
    await report(here)
    here.external.run("alter table orders add column c int")
    plan = await plan_of(here)
    async with here.world.stores.begin() as tx:
        await tx.following.reload({plan.id: plan.cdc.model_copy(update={"all_columns": False})})
        entry = await tx.catalog.named("t")
        assert entry is not None
        star = NewLogicalView("v", "CREATE VIEW v AS SELECT * FROM t", (), (entry.relation.id,))
        view = await tx.views.add(star)
        await tx.views.show(view)
    await here.run("ALTER TABLE t RELOAD")
    await report(here)
    assert await grown(here) == (
        before,
        before,
        'new column "c" is left out: view "v" selects *: name its columns, or DROP it',
    )
    async with here.world.stores.begin() as tx:
        await tx.catalog.remove(view)
    await here.run("ALTER TABLE t RELOAD")
    await report(here)
    assert await grown(here) == ([*before, "c"], [*before, "c"], None)
