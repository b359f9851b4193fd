"""Sources and the tables that follow them, on a real meta store and beside a real external database."""

import asyncio
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from typing_extensions import override

from service.domain.errors import Conflict, Invalid, Refused, Unavailable
from service.domain.job import JobEvent
from service.domain.roles import Role
from service.operations.sources import registry, shown, upkeep
from service.operations.statements import dispatch
from service.operations.status import gauges, listing
from service.operations.status.staleness import degraded_of, notices_of
from service.operations.upkeep.adaptive import adapt
from service.ports.audit import Asker
from service.ports.records import NewLogicalView
from service.ports.sources import Address, SourceLoad
from service.protocol.cdc import CdcTableReport, SourceReport
from service.protocol.ids import DATABASE_GRAPH, FragmentId, Vnode
from service.protocol.plan import PositionState, SourceScanPlan, VnodePosition
from service.protocol.report import ActorReport
from service.sources.servers import PostgresExternalServers
from tests.support.external import PASSWORD, External, Following, external_database, following
from tests.support.http import CalmStore, changed
from tests.support.meta_store import A_TEST, NOW, add_created, new_view

pytestmark = pytest.mark.postgres

ORDERS = "create table orders (id bigint primary key, who varchar(20), paid numeric(12, 2), mood text[])"


@pytest.fixture
def external(postgres_url: str) -> Iterator[External]:
    with external_database(postgres_url) as one:
        one.run(ORDERS)
        yield one


@pytest.fixture
async def here(database_url: str, external: External) -> AsyncGenerator[Following]:
    async with following(database_url, external) as one:
        yield one


SIGNALS = {"source_active_queries", "source_replication_lag"}


def lsn(text: str) -> int:
    high, low = text.split("/")
    return (int(high, 16) << 32) + int(low, 16)


async def plan_of(here: Following, name: str) -> SourceScanPlan:
    async with here.world.stores.begin() as tx:
        entry = await tx.catalog.named(name)
        assert entry is not None
        (plan,) = await tx.plans.of([entry.job])
    assert plan.source_scan is not None
    return plan.source_scan


async def test_i13_a_caller_follows_an_external_table_with_four_tables(here: Following) -> None:
    """Each change is written for each of them, in one epoch with all others: 39 made that 35 s long."""
    await here.run(here.external.create_source())
    callers = [Asker(name, Role.OPERATOR) for name in ("mallory", "alice")]

    async def follow(name: str, caller: Asker) -> None:
        text = f"CREATE TABLE {name} (*) FROM pg TABLE 'public.orders'"
        await here.through(lambda: dispatch.run(here.world, text, session={}, asked_by=caller))

    for number in range(4):
        await follow(f"t{number}", callers[0])
    with pytest.raises(Invalid, match=r"mallory has 4 tables that follow public\.orders"):
        await follow("more", callers[0])
    await follow("other", callers[1])
    await here.run("DROP TABLE t0")
    await follow("again", callers[0])


async def test_a_table_follows_and_its_source_moves_on_with_the_epochs(here: Following) -> None:
    external = here.external
    assert (await here.run(external.create_source())).tag == "CREATE_SOURCE"
    (slot,) = external.slots()
    (publication,) = external.publications()
    assert (await here.run("CREATE TABLE t (*) FROM pg TABLE 'public.orders'")).tag == "CREATE_TABLE"
    assert external.published() == [(publication, "public", "orders")]
    fragment = await plan_of(here, "t")
    scan = fragment.cdc
    assert (scan.source.slot, scan.source.publication, scan.source.name) == (slot, publication, "pg")
    assert [(one.name, one.type) for one in scan.columns] == [
        ("id", "bigint"),
        ("who", "character varying(20)"),
        ("paid", "numeric(12,2)"),
        ("mood", "text[]"),
    ]
    assert (scan.split_column, len(scan.splits), scan.total) == ("id", 1, 0)
    report = SourceReport(source=scan.source.id, offset="1/2", undecided=(7, 9), lag_bytes=5, changes=3)
    here.reports = [report]
    await here.barrier()
    moved = (await plan_of(here, "t")).cdc
    assert moved is not None
    assert (moved.source.offset, moved.source.undecided) == ("1/2", (7, 9))
    connection = await registry.connection(here.world, scan.source.id)
    assert PASSWORD in connection.conninfo
    assert PASSWORD not in repr(connection)
    # A logical view goes within the transaction that removes the source, after its columns.
    async with here.world.stores.begin() as tx:
        t = await tx.catalog.named("t")
        assert t is not None
        await tx.views.add(NewLogicalView("v", "CREATE VIEW v", (("id", "bigint"),), (t.relation.id,)))
    await here.run("DROP SOURCE pg CASCADE")
    assert (external.slots(), external.publications()) == ([], [])


async def test_no_secret_is_shown_anywhere(here: Following) -> None:
    external = here.external
    await here.run(f"CREATE SECRET hidden WITH (backend = 'meta') AS '{PASSWORD}'")
    await here.run(external.create_source("named", "secret hidden"))
    await here.run(external.create_source("plain"))
    texts = {name: (await here.run(f"SHOW CREATE SOURCE {name}")).rows[0][1] for name in ("named", "plain")}
    assert "password = secret hidden" in texts["named"]
    assert "password = '********'" in texts["plain"]
    assert (await here.run("SHOW SECRETS")).rows == (("hidden",),)
    assert (await here.run("SHOW SOURCES")).rows == (("named",), ("plain",))
    views = [name for (name,) in here.stored("select viewname from pg_views where schemaname = 'rw_catalog'")]
    held = [str(here.stored(f"select * from rw_catalog.{view}")) for view in views]
    held += [str(here.stored(f"select * from tidefill.{table}")) for table in ("relation", "job", "event", "source")]
    held += [repr(await shown.sources(here.world)), (await gauges.scrape(here.world)).decode()]
    assert "named" in " ".join(held)
    assert PASSWORD not in " ".join(held)
    assert len(here.stored(f"select from tidefill.secret where value = '{PASSWORD}'")) == 2
    with pytest.raises(Conflict, match='cannot drop secret "hidden": it is the password of named'):
        await here.run("DROP SECRET hidden")
    for name in ("named", "plain"):
        await here.run(f"DROP SOURCE {name}")
    await here.run("DROP SECRET hidden")
    assert here.stored(f"select from tidefill.secret where value = '{PASSWORD}'") == []


async def test_what_cannot_be_followed_is_refused_and_leaves_nothing(here: Following) -> None:
    """I9: neither a name that is taken, nor a table that is not published for anybody."""
    external = here.external
    external.run(
        "create table loose (id bigint, n int)",
        "create table big (id bigint primary key, n numeric)",
        "create unlogged table fast (id bigint primary key)",
        "create view seen as select * from orders",
        "create table mute (id bigint primary key)",
        "alter table mute replica identity nothing",
        "create type mood as enum ('ok')",
        "create table feeling (kind mood primary key)",
        "create table mixed (a int not null unique, b text, g int generated always as (a + 1) stored)",
    )
    # Not every build of Postgres makes such a collation, and whether one has it is not what is looked at.
    external.run(
        'create collation alike from "C"',
        "set allow_system_table_mods = on",
        "update pg_collation set collisdeterministic = false where collname = 'alike'",
        "create table alike (a text collate alike primary key)",
        "create table hidden (id bigint primary key)",
        "alter table hidden enable row level security",
        f"grant select on alike, hidden to {external.login}",
        superuser=True,
    )
    await here.run(external.create_source())
    refused = {
        "(*) FROM pg TABLE 'public.nowhere'": 'table "public.nowhere" does not exist',
        "(*) FROM nobody TABLE 'orders'": 'source "nobody" does not exist',
        "(*) FROM pg TABLE 'loose'": '"public.loose" has no primary key',
        "(*) FROM pg TABLE 'big'": 'column "n" of "public.big" is numeric: declare the columns',
        "(*) FROM pg TABLE 'fast'": "it is unlogged",
        "(*) FROM pg TABLE 'seen'": "it is a view",
        "(*) FROM pg TABLE 'mute'": "replica identity",
        "(*) FROM pg TABLE 'feeling'": "public.mood has an order of its own",
        "(id int primary key) FROM pg TABLE 'orders'": 'column "id" is bigint in "public.orders"',
        "(id bigint primary key, x text) FROM pg TABLE 'orders'": '"public.orders" has no column "x"',
        "(who text primary key) FROM pg TABLE 'orders'": "has no unique index of (who)",
        "(id bigint primary key, who text not null) FROM pg TABLE 'orders'": 'column "who" may be NULL',
        "(a int primary key) FROM pg TABLE 'mixed'": "the replica identity",
        "(*) FROM pg TABLE 'alike'": "its collation takes different texts for equal",
        "(*) FROM pg TABLE 'hidden'": "its row level security hides rows",
    }
    for what, why in refused.items():
        with pytest.raises(Refused) as error:
            await here.run(f"CREATE TABLE t {what}")
        assert why in error.value.message, (what, error.value.message)
    assert external.published() == []
    assert here.stored("select * from tidefill.job") == []
    assert here.stored("select * from rw_catalog.rw_source_cleanups") == []
    external.run("alter table mixed replica identity full")
    await here.run("CREATE TABLE t (a int primary key, b text, g int) FROM pg TABLE 'mixed'")
    await here.run("DROP TABLE t")
    assert external.published() == []


async def test_a_table_that_follows_is_changed_by_nobody_else(here: Following) -> None:
    await here.run(here.external.create_source())
    await here.run("CREATE TABLE t (*) FROM pg TABLE 'orders'")
    for change in ("INSERT INTO t VALUES (1)", "UPDATE t SET who = 'x'", "DELETE FROM t"):
        with pytest.raises(Invalid, match='cannot change table "t"') as error:
            await here.run(change)
        assert error.value.position == change.index(" t") + 2
    await here.run("ALTER TABLE t SET BACKFILL_RATE_LIMIT = 7")
    assert (await plan_of(here, "t")).rate_limit == 7
    assert here.stored("select node_name, rate_limit from rw_catalog.rw_rate_limit") == [("CDC_SCAN", 7)]
    await here.run("CREATE TABLE own (id int primary key)")
    with pytest.raises(Invalid, match='"own" is not a CDC table'):
        await here.run("ALTER TABLE own SET BACKFILL_RATE_LIMIT = 7")


async def test_history_is_cut_into_splits_and_dealt_to_actors(here: Following) -> None:
    external = here.external
    external.run(
        "insert into orders select n, 'w' || n from generate_series(1, 1000) n",
        'create table words (word text collate "C" primary key)',
        "insert into words select 'w' || lpad(n::text, 6, '0') from generate_series(1, 1000) n",
        "analyze orders",
        "analyze words",
    )
    await here.run(external.create_source())
    options = "backfill.parallelism = 3, backfill.num_rows_per_split = 250"
    await here.run(f"CREATE TABLE even (*) WITH ({options}) FROM pg TABLE 'orders'")
    fragment = await plan_of(here, "even")
    assert fragment.cdc is not None
    assert [(one.left, one.right) for one in fragment.cdc.splits] == [
        (None, "251"),
        ("251", "501"),
        ("501", "751"),
        ("751", None),
    ]
    assert (fragment.cdc.total, [actor.vnodes for actor in fragment.actors]) == (
        1000,
        [((0, 0),), ((1, 1),), ((2, 3),)],
    )
    await here.run(f"CREATE TABLE w (*) WITH ({options}) FROM pg TABLE 'words'")
    words = (await plan_of(here, "w")).cdc
    assert words is not None
    edges = [one.right for one in words.splits[:-1]]
    assert (len(edges), edges) == (3, sorted(edge for edge in edges if edge is not None))
    await here.run("ALTER TABLE even SET BACKFILL_PARALLELISM = 2")
    assert len((await plan_of(here, "even")).actors) == 2
    with pytest.raises(Invalid, match="should not exceed max parallelism 4"):
        await here.run("ALTER TABLE even SET BACKFILL_PARALLELISM = 5")


async def test_progress_is_told_until_the_history_is_read(here: Following) -> None:
    """I6: the table can be read at once, and says how far its history is."""
    external = here.external
    external.run("insert into orders select n, 'w' from generate_series(1, 100) n", "analyze orders")
    await here.run(external.create_source())
    await here.run("CREATE TABLE t (*) FROM pg TABLE 'orders'")
    fragment = await plan_of(here, "t")
    (actor,) = fragment.actors
    half = VnodePosition(vnode=Vnode(0), state=PositionState.IN_PROGRESS, key=("50",), rows=50)
    here.actors = [ActorReport(actor=actor.id, fragment=fragment.id, rows=50, positions=(half,))]
    await here.barrier()
    (job,) = await listing.ddl_progress(here.world)
    assert (job.state, job.phase, job.rows, job.total, job.progress) == (
        "Created",
        "backfilling",
        50,
        100,
        "50.00% (50/100)",
    )
    assert here.stored("select progress from rw_catalog.rw_ddl_progress") == [("50.00% (50/100)",)]
    listed = "select upstream_table_name, progress from rw_catalog.rw_fragment_backfill_progress"
    assert here.stored(listed) == [("public.orders", "50.00% (50/100)")]
    assert here.stored("select backfill_type from rw_catalog.rw_backfill_info") == [("SOURCE",)]
    counts = "select split_total_count, split_backfilled_count, split_completed_count from rw_catalog.rw_cdc_progress"
    assert here.stored(counts) == [(1, 0, 0)]
    scan = fragment.cdc
    assert scan is not None
    told = CdcTableReport(fragment=fragment.id, waiting="a long transaction")
    here.reports = [SourceReport(source=scan.source.id, offset="0/9", tables=(told,))]
    await here.barrier()
    (job,) = await listing.ddl_progress(here.world)
    assert job.waiting is not None
    assert (job.waiting.reason, job.waiting.text) == ("source", "a long transaction")
    done = VnodePosition(vnode=Vnode(0), state=PositionState.COMPLETED, rows=100)
    here.actors = [ActorReport(actor=actor.id, fragment=fragment.id, rows=100, positions=(done,), finished=True)]
    here.reports = []
    await here.barrier()
    assert await listing.ddl_progress(here.world) == []
    assert here.stored("select * from rw_catalog.rw_ddl_progress") == []
    assert here.stored(counts) == [(1, 1, 1)]


@dataclass
class Loaded(PostgresExternalServers):
    """A database that is as busy as the test says."""

    found: SourceLoad | Unavailable

    @override
    async def load(self, at: Address) -> SourceLoad:
        assert at.name == "pg"
        if isinstance(self.found, Unavailable):
            raise self.found
        return self.found


@pytest.mark.parametrize(
    ("found", "signal", "reason"),
    [
        (SourceLoad(None, 10), None, "all signals are healthy; only 0 rows/s are used"),
        (SourceLoad(None, 200), "source_active_queries", "200 queries of 50 are active"),
        (SourceLoad(200 << 20, 10), "source_replication_lag", "a replica is 200.0 MB behind of 64 MB"),
        (Unavailable("it is away"), "source_active_queries", "it is away"),
    ],
    ids=["calm", "queries", "lag", "away"],
)
async def test_an_adaptive_limit_looks_at_the_database_it_reads_from(
    here: Following, found: SourceLoad | Unavailable, signal: str | None, reason: str
) -> None:
    await here.run(here.external.create_source())
    await here.run("CREATE TABLE t (*) WITH (backfill_rate_limit = 'auto') FROM pg TABLE 'orders'")
    fragment = await plan_of(here, "t")
    (actor,) = fragment.actors
    none = ActorReport(actor=actor.id, fragment=fragment.id, rows=0, positions=actor.positions)
    here.actors = [none]
    ports: dict[str, Any] = {"servers": Loaded(found), "gauge": CalmStore()}
    world = changed(here.world, **ports)
    for _ in range(2):
        await here.barrier()
        await adapt(world, DATABASE_GRAPH, term=here.leader.term)
    (job,) = await listing.ddl_progress(here.world)
    (scan,) = job.auto
    assert (scan.limit.signal, scan.limit.reason) == (signal, reason)
    outside = {one.signal for one in scan.limit.readings if one.signal.startswith("source_")}
    asked = {"source_active_queries"} if isinstance(found, Unavailable) else SIGNALS
    assert outside == asked


async def test_without_a_snapshot_there_is_no_history(here: Following) -> None:
    await here.run(here.external.create_source())
    await here.run("CREATE TABLE t (*) WITH (snapshot = 'false') FROM pg TABLE 'orders'")
    fragment = await plan_of(here, "t")
    assert [one.state for one in fragment.actors[0].positions] == [PositionState.COMPLETED]


async def test_what_broke_stays_broken_and_is_told_once(here: Following) -> None:
    await here.run(here.external.create_source())
    await here.run("CREATE TABLE t (*) FROM pg TABLE 'orders'")
    fragment = await plan_of(here, "t")
    assert fragment.cdc is not None
    for reason in ("a column was dropped", "it follows from that"):
        told = CdcTableReport(fragment=fragment.id, broken=reason)
        here.reports = [SourceReport(source=fragment.cdc.source.id, offset="0/9", waiting="why", tables=(told,))]
        await here.barrier()
    after = (await plan_of(here, "t")).cdc
    assert after is not None
    assert after.broken == "a column was dropped"
    events = "select kind from tidefill.event where kind like 'source.%' order by id"
    kinds = [kind for (kind,) in here.stored(events)]
    assert kinds == ["source.asked", "source.created", "source.waiting", "source.table_broken"]
    (view,) = (await shown.source(here.world, "pg")).tables
    assert (view.state, view.reason) == ("broken", "a column was dropped")


async def test_u2_a_broken_table_and_all_that_reads_it_are_shown_as_such(here: Following) -> None:
    """In jobs, metrics, readiness, and to those who read: also through views of views; other tables are not named."""
    await here.run(here.external.create_source())
    await here.run("CREATE TABLE t (*) FROM pg TABLE 'orders'")
    await here.run("CREATE TABLE other (id int PRIMARY KEY)")
    async with here.world.stores.begin() as tx:
        entry = await tx.catalog.named("t")
        assert entry is not None
        m = await add_created(tx, new_view("m", entry.relation.id))
        n = await add_created(tx, new_view("n", m.relation))
        view = await tx.views.add(NewLogicalView("v", "CREATE VIEW v", (("id", "bigint"),), (n.relation,)))
        await tx.views.show(view)
        assert await notices_of(tx, ["t", "m", "n", "v"]) == ()
    assert await degraded_of(here.world) == {}
    fragment = await plan_of(here, "t")
    assert fragment.cdc is not None
    told = CdcTableReport(fragment=fragment.id, broken="a column was dropped")
    here.reports = [SourceReport(source=fragment.cdc.source.id, offset="0/9", tables=(told,))]
    await here.barrier()
    (since,) = here.stored("select broken_since from tidefill.fragment where broken is not null")[0]
    assert since == here.world.clock.now()
    page = await listing.jobs(here.world, None, after=0, limit=10)
    shown = {one.name: one.broken and (one.broken.state, one.broken.because_of) for one in page.items}
    assert shown == {"t": ("broken", None), "other": None, "m": ("stale", "t"), "n": ("stale", "t")}
    found = (await listing.job(here.world, n.id)).job.broken
    assert found is not None
    assert (found.reason, found.since) == ('it reads "t": a column was dropped', since)
    assert await degraded_of(here.world) == {"t": "broken", "m": "stale", "n": "stale"}
    measured = await gauges.measure(here.world)
    assert [(name, state) for _, name, state in measured.broken] == [("t", "broken"), ("m", "stale"), ("n", "stale")]
    assert 'name="m",state="stale"} 1.0' in (await gauges.scrape(here.world)).decode()
    async with here.world.stores.begin() as tx:
        said = await notices_of(tx, ["other", "v", "t", "t"])
    then = f"since {since:%Y-%m-%d %H:%M:%S}Z"
    assert said == (
        f'"v" is stale {then}: it reads "t": a column was dropped; its rows are as of then',
        f'"t" is broken {then}: a column was dropped; its rows are as of then',
    )


async def test_u2_what_reads_a_source_that_is_waited_for_is_stale_until_it_goes_on(here: Following) -> None:
    await here.run(here.external.create_source())
    await here.run("CREATE TABLE t (*) FROM pg TABLE 'orders'")
    fragment = await plan_of(here, "t")
    assert fragment.cdc is not None
    for why, names in (("it does not answer", {"t": "stale"}), (None, {})):
        here.reports = [SourceReport(source=fragment.cdc.source.id, offset="0/9", waiting=why)]
        await here.barrier()
        assert await degraded_of(here.world) == names


async def test_d10_a_view_that_failed_is_told_to_its_readers(here: Following) -> None:
    await here.run("CREATE TABLE a (id int PRIMARY KEY)")
    async with here.world.stores.begin() as tx:
        entry = await tx.catalog.named("a")
        assert entry is not None
        bad = await add_created(tx, new_view("bad", entry.relation.id))
        await tx.jobs.move(bad.id, JobEvent.FAILED, now=NOW, error="division by zero")
        (said,) = await notices_of(tx, ["a", "bad"])
    assert said.startswith('"bad" is failed since ')
    assert "division by zero" in said


async def test_no_limit_is_adapted_of_what_follows_no_longer(here: Following) -> None:
    await here.run(here.external.create_source())
    await here.run("CREATE TABLE t (*) WITH (backfill_rate_limit = 'auto') FROM pg TABLE 'orders'")
    fragment = await plan_of(here, "t")
    assert fragment.cdc is not None
    adapted: list[list[FragmentId]] = []
    for broken in (None, "a column was dropped"):
        told = CdcTableReport(fragment=fragment.id, broken=broken)
        here.reports = [SourceReport(source=fragment.cdc.source.id, offset="0/9", tables=(told,))]
        here.actors = [ActorReport(actor=fragment.actors[0].id, fragment=fragment.id, rows=10)]
        await here.barrier()
        async with here.world.stores.begin() as tx:
            adapted.append([one.fragment for one in await tx.adaptations.adapted(DATABASE_GRAPH)])
    assert adapted == [[fragment.id], []]


@pytest.mark.parametrize("statement", ["WAIT", "WAIT TABLE t"])
async def test_a_wait_is_for_the_history_too(here: Following, statement: str) -> None:
    await here.run(here.external.create_source())
    await here.run("CREATE TABLE t (*) FROM pg TABLE 'orders'")
    fragment = await plan_of(here, "t")
    (actor,) = fragment.actors
    waiting = asyncio.ensure_future(dispatch.run(here.world, statement, session={}, asked_by=A_TEST))
    for rows, finished in ((10, False), (20, True)):
        assert not waiting.done()
        here.actors = [ActorReport(actor=actor.id, fragment=fragment.id, rows=rows, finished=finished)]
        await here.barrier()
    assert (await waiting).tag == "WAIT"


async def test_nobody_waits_for_a_history_that_is_read_no_more(here: Following) -> None:
    await here.run(here.external.create_source())
    await here.run("CREATE TABLE t (*) FROM pg TABLE 'orders'")
    fragment = await plan_of(here, "t")
    assert fragment.cdc is not None
    told = CdcTableReport(fragment=fragment.id, broken="a column was dropped")
    here.reports = [SourceReport(source=fragment.cdc.source.id, offset="0/9", tables=(told,))]
    await here.barrier()
    with pytest.raises(Conflict, match='the history of "t" is read no more: a column was dropped'):
        await here.run("WAIT TABLE t")
    assert (await here.run("WAIT")).tag == "WAIT"


async def test_a_source_that_nothing_follows_keeps_no_log(here: Following) -> None:
    external = here.external
    await here.run(external.create_source())
    before = (await shown.source(here.world, "pg")).offset
    external.run("insert into orders select n from generate_series(1, 100) n")
    await upkeep.watch(here.world, term=here.leader.term)
    after = await shown.source(here.world, "pg")
    assert before is not None
    assert after.offset is not None
    assert lsn(after.offset) > lsn(before)
    (confirmed,) = external.rows(
        f"select confirmed_flush_lsn::text from pg_replication_slots where slot_name = '{after.slot}'"
    )
    assert confirmed == (after.offset,)
    await here.run("CREATE TABLE t (*) FROM pg TABLE 'orders'")
    scan = (await plan_of(here, "t")).cdc
    assert scan is not None
    assert scan.source.offset == after.offset
    (readable,) = here.stored("select readable_after from tidefill.source")
    assert scan.readable_after > readable[0] > 0
    await upkeep.watch(here.world, term=here.leader.term)
    async with here.world.stores.begin() as tx:
        source = await tx.sources.get(after.id)
    assert source is not None
    # Whoever looked before it was followed has it forget nothing by now.
    external.run("insert into orders select n from generate_series(101, 200) n")
    await upkeep.skip_idle(here.world, source, term=here.leader.term)
    assert (await shown.source(here.world, "pg")).offset == after.offset


async def test_a_slot_that_is_dropped_for_what_it_holds_ends_what_followed_until_it_is_made_anew(
    here: Following, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The leader measures for itself.
    monkeypatch.setattr(upkeep, "MEASURED_EVERY", timedelta(0))
    external = here.external
    create = external.create_source().replace(
        "WITH (", "WITH (wal.retained.max.bytes = '1000000', wal.retained.action = 'drop_slot', "
    )
    await here.run(create)
    await here.run("CREATE TABLE t (*) FROM pg TABLE 'orders'")
    await upkeep.watch(here.world, term=here.leader.term)
    assert len(external.slots()) == 1
    # The log is the whole server's: far more than what other databases write meanwhile.
    external.run("insert into orders select n, 'w' from generate_series(1, 50000) n")
    await upkeep.watch(here.world, term=here.leader.term)
    assert external.slots() == []
    source = await shown.source(here.world, "pg")
    (table,) = source.tables
    assert (source.retention, table.state) == ("slot_dropped", "broken")
    assert "DROP the table and the source, and make both anew" in str(table.reason)
    with pytest.raises(Invalid, match=r"source pg can be followed no more: replication slot .* is gone"):
        await here.run("CREATE TABLE again (*) FROM pg TABLE 'orders'")
    await here.run("DROP SOURCE pg CASCADE")
    await here.run(create.replace("1000000", "100000000"))
    await here.run("CREATE TABLE t (*) FROM pg TABLE 'orders'")
    await upkeep.watch(here.world, term=here.leader.term)
    source = await shown.source(here.world, "pg")
    assert (source.retention, source.tables[0].state, len(external.slots())) == (None, "backfilling", 1)


@pytest.mark.parametrize("publication", ["for all tables", "for tables in schema public"])
async def test_a_publication_of_whole_schemas_is_used_as_it_is(here: Following, publication: str) -> None:
    external = here.external
    via_root = "with (publish_via_partition_root = true)"
    external.run(f"create publication theirs {publication} {via_root}", superuser=True)
    external.run("create table lines (id bigint primary key)")
    before = external.rows("select p, r from pg_publication p left join pg_publication_rel r on true")
    await here.run(external.create_source(publication__name="theirs"))
    await here.run("CREATE TABLE t (*) FROM pg TABLE 'orders'")
    scan = (await plan_of(here, "t")).cdc
    assert scan is not None
    assert scan.published is not None
    assert len(scan.published.entries) == (publication != "for all tables")
    await here.run("DROP TABLE t")
    await here.run("CREATE TABLE t (*) FROM pg TABLE 'orders'")
    external.run("drop table lines")
    assert external.published() == [("theirs", "public", "orders")]
    await here.run("DROP SOURCE pg CASCADE")
    assert here.stored("select * from rw_catalog.rw_source_cleanups") == []
    assert external.rows("select p, r from pg_publication p left join pg_publication_rel r on true") == before
    external.run("drop publication theirs", superuser=True)


@pytest.mark.parametrize(("action", "state"), [("pause", "exceeded"), ("drop_slot", "slot_dropped")])
async def test_a_slot_that_holds_too_much_does_what_its_user_chose(here: Following, action: str, state: str) -> None:
    external = here.external
    given = {"wal.retained.warning.bytes": "10", "wal.retained.max.bytes": "1000", "wal.retained.action": action}
    text = external.create_source()
    more = ", ".join(f"{name} = '{value}'" for name, value in given.items())
    await here.run(text.replace("WITH (", f"WITH ({more}, "))
    await here.run("CREATE TABLE t (*) FROM pg TABLE 'orders'")
    fragment = await plan_of(here, "t")
    assert fragment.cdc is not None
    for retained in (500, 2000):
        report = SourceReport(source=fragment.cdc.source.id, offset="0/9", retained_bytes=retained)
        here.reports = [report]
        await here.barrier()
        await upkeep.watch(here.world, term=here.leader.term)
    events = "select facts ->> 'retention' from tidefill.event where kind = 'source.retention' order by id"
    assert here.stored(events) == [("warning",), (state,)]
    assert bool(external.slots()) == (action == "pause")
    broken = (await shown.source(here.world, "pg")).tables[0].state == "broken"
    assert broken == (action == "drop_slot")
    # What was held is read: the alarm is over, and what is for good stays.
    here.reports = [SourceReport(source=fragment.cdc.source.id, offset="0/9", retained_bytes=5)]
    await here.barrier()
    await upkeep.watch(here.world, term=here.leader.term)
    left = (await shown.source(here.world, "pg")).retention
    assert left == (None if action == "pause" else state)
