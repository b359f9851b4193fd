"""Views of stages on a real meta store and a real state store: what is planned, refused, stored and indexed."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from service.domain.errors import Conflict, Invalid, MetaError, NotFound
from service.domain.job import JobState
from service.operations.jobs import queue
from service.operations.jobs.stages import lookups_of
from service.operations.statements import dispatch
from service.operations.upkeep.lookup_indexes import Builds, reconcile
from service.operations.verify import worker_rpc
from service.ports.records import NewDml, NewJob
from service.protocol.ids import DATABASE_GRAPH, JobId
from service.protocol.plan import JobPlan, Prefix, ScanType
from service.protocol.stage import Engine
from service.protocol.table_format import Capabilities
from service.sql.parse import parse
from service.sql.statements.tables import CreateTable, table_relation
from tests.support.both_stores import BothStores
from tests.support.http import StillClock, changed
from tests.support.meta_store import A_TEST, NOW

pytestmark = pytest.mark.postgres

TABLES = (
    "create table orders (id bigint primary key, customer bigint, amount numeric(12,2), at timestamp)",
    "create table customers (id bigint primary key, region text)",
    "create table regions (name text, tax numeric(4,2), primary key (name))",
)
JOINED = "create materialized view m as select o.id, c.region from orders o join customers c on o.customer = c.id"
SUMMED = (
    "create materialized view m as select c.region, sum(o.amount) as total, count(*) as n"
    " from orders o join customers c on o.customer = c.id group by c.region"
)
RANKED = "create materialized view m as select id, amount from orders order by amount desc limit 3"
TIED = f"{RANKED.removesuffix('limit 3')}offset 1 fetch first 2 rows with ties"


ARRANGEMENT = {"streaming_use_snapshot_backfill": "false"}
THRICE = (
    "create materialized view m WITH select c.region, count(*) as n, max(r.tax) as tax from orders o"
    " join customers c on o.customer = c.id join regions r on r.name = c.region"
    " join customers d on d.region = r.name group by c.region"
)


class Here(BothStores):
    """Both stores with three tables."""

    async def explained(self, text: str) -> str:
        return "\n".join(line for (line,) in (await self.run(f"explain {text}")).rows)

    async def stored(self, text: str, **session: str) -> JobPlan:
        """Store the job of a view without waiting for its end: no worker runs it."""
        asked = asyncio.create_task(self.run(text, background_ddl="true", **session))
        found: list[Any] = []
        while not found and not asked.done():
            await asyncio.wait([asked], timeout=0.01)
            async with self.stores.begin() as tx:
                found = [job for job in await tx.jobs.where({JobState.INITIAL}) if job.name == "m"]
        asked.cancel()
        await asyncio.wait([asked])
        if not asked.cancelled():
            asked.result()
        return await self.plan(found[0].id)

    async def plan(self, job: JobId) -> JobPlan:
        async with self.stores.begin() as tx:
            (plan,) = await tx.plans.of([job])
        return plan

    async def indexes(self) -> set[object]:
        rows = await self.store.rows(
            "select tablename || ' ' || substring(indexdef from '\\(.*') from pg_indexes"
            " where schemaname = 'state' and indexname like '%\\_by\\_%'"
        )
        return {one for (one,) in rows}


@pytest.fixture
async def here(laid_out_url: str) -> AsyncGenerator[Here]:
    async with Here.on(laid_out_url) as made:
        for text in TABLES:
            statement = parse(text)
            assert isinstance(statement, CreateTable)
            dml = NewDml((((0, 255),),))
            await made.created(NewJob(table_relation(statement), text, background=False, fragments=(dml,)))
        yield made


async def test_a_view_of_stages_is_stored_with_its_hidden_relations_and_their_order(here: Here) -> None:
    plan = await here.stored(SUMMED)
    assert [(one.name, str(one.type), one.hidden) for one in plan.relation.visible] == [
        ("region", "text", False),
        ("total", "numeric", False),
        ("n", "bigint", False),
    ]
    assert all(scan.scan_type is ScanType.SNAPSHOT_BACKFILL for scan in plan.table_scans)
    read = {one.name for scan in plan.table_scans for one in (scan.upstream, *scan.lookups)}
    assert {"orders", "customers"} <= read
    async with here.stores.begin() as tx:
        entry = await tx.catalog.named("m")
        readers = [
            one.relation.name
            for name in ("orders", "customers")
            if (of := await tx.catalog.named(name))
            for one in await tx.catalog.dependents(of.relation.id)
        ]
    assert entry is not None
    assert len(entry.upstreams) == 2
    assert readers == ["m", "m"]


async def test_later_stages_wait_for_earlier_ones(here: Here) -> None:
    plan = await here.stored(f"{SUMMED} order by total desc limit 2")
    *earlier, last = plan.table_scans
    assert last.waiting
    assert last.upstream in plan.hidden
    assert not earlier[0].waiting
    async with here.stores.begin() as tx:
        scans = (await tx.fragments.scans([plan.id]))[plan.id]
    assert scans[-1].awaits == (last.upstream.name,)


async def test_a_job_starts_once_its_indexes_are_there(here: Here) -> None:
    """I9: and they go with it."""
    plan = await here.stored(JOINED)
    needed = lookups_of(plan)
    assert needed
    builds = Builds(lambda: None)
    assert await queue.start_jobs(here.world, term=here.term) == 0
    async with here.stores.begin() as tx:
        job = await tx.jobs.get(plan.id)
    assert job is not None
    assert job.preparing == "an index of orders (customer) is being built"
    await reconcile(here.world, builds, term=here.term)
    await asyncio.gather(*builds.tasks.values())
    assert await here.indexes() == {"t_1 (customer, _to)"}
    assert await queue.start_jobs(here.world, term=here.term) == 1
    async with here.stores.begin() as tx:
        job = await tx.jobs.get(plan.id)
        assert job is not None
        assert (job.state, job.preparing) == (JobState.CREATING, None)
        await tx.catalog.remove(job.relation)
    await reconcile(here.world, builds, term=here.term)
    assert await here.indexes() == set()


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("select ^missing from orders join customers using (id)", 'column "missing" does not exist'),
        ("select count(*) from ^nowhere", 'relation "nowhere" does not exist'),
        ("select region, ^id from customers group by region", "must appear in the GROUP BY clause"),
        ("select ^region, id as region from customers limit 1", 'column "region" specified more than once'),
        ("select count(*) as ^_vnode from customers", 'column name "_vnode" is reserved'),
    ],
)
async def test_a_refusal_is_where_the_user_wrote_it(here: Here, query: str, message: str) -> None:
    text = f"create materialized view m as {query}"
    with pytest.raises(Invalid, match=message) as refused:
        await here.run(text.replace("^", ""))
    assert refused.value.position is not None
    if "specified" not in message and "reserved" not in message:
        assert refused.value.position == text.index("^") + 1


async def test_what_stages_cannot_be_is_refused(here: Here) -> None:
    neither = {"streaming_use_snapshot_backfill": "false", "streaming_use_arrangement_backfill": "false"}
    with pytest.raises(Invalid, match="cannot have the actors of one upstream, as a NoShuffle backfill has"):
        await here.run(JOINED, **neither)
    with pytest.raises(Invalid, match="an Arrangement backfill of a view with stages needs the store"):
        await here.run(JOINED, stage_engine="spark", **ARRANGEMENT)
    with pytest.raises(Invalid, match=r"a sink with joins, .* needs a Snapshot backfill"):
        await here.run(
            "create sink s as select count(*) from orders with (connector = 'blackhole')",
            streaming_use_snapshot_backfill="false",
        )
    world = changed(here.world, table_format=Capabilities())
    divided = JOINED.replace("c.region", "o.amount / 3 as third")
    with pytest.raises(Invalid, match="the state store cannot compute what Spark cannot: "):
        await dispatch.run(world, divided, session={}, asked_by=A_TEST)


async def test_u12_a_refusal_names_the_true_reason(here: Here) -> None:
    cycle = "FIXED(orders -> customers, customers -> orders)"
    with pytest.raises(Invalid, match="Backfill order strategy has a cycle"):
        await here.run(JOINED.replace(" as ", f" with (backfill_order = {cycle}) as ", 1))
    await here.run("create index ix on orders (customer)", background_ddl="true")
    for query in ("select * from ix", "select count(*) from ix"):
        with pytest.raises(Conflict, match='index "ix" cannot be read'):
            await here.run(f"create materialized view m as {query}")


TWO_WALKED = (
    "create materialized view m with (backfill_order = FIXED({})) as select o.customer, o.n, c.regions from"
    " (select customer, count(*) as n from orders group by customer) o join"
    " (select id, count(region) as regions from customers group by id) c on c.id = o.customer"
)


@pytest.mark.parametrize(("first", "second"), [("orders", "customers"), ("customers", "orders")])
async def test_u12_a_snapshot_backfill_of_stages_has_an_order_of_what_it_walks(
    here: Here, first: str, second: str
) -> None:
    plan = await here.stored(TWO_WALKED.format(f"{first} -> {second}"))
    waiting = {scan.upstream.name: scan.waiting for scan in plan.table_scans}
    assert waiting[first] is False
    assert waiting[second] is True
    async with here.stores.begin() as tx:
        scans = (await tx.fragments.scans([plan.id]))[plan.id]
    hidden = {one.upstream.name: plan.written_by(one).name for one in plan.table_scans}
    assert {scan.upstream: scan.awaits for scan in scans}[second] == (hidden[first],)


async def test_u12_an_order_of_what_is_looked_up_says_that_it_is_complete(here: Here) -> None:
    order = JOINED.replace(" as ", " with (backfill_order = FIXED(customers -> orders)) as ", 1)
    shown = await here.run(f"explain {order}")
    assert "FIXED(customers -> orders)" in "\n".join(line for (line,) in shown.rows)
    plan = await here.stored(order)
    assert [scan.waiting for scan in plan.table_scans] == [False]
    with pytest.raises(Invalid, match="has a cycle"):
        await here.run(TWO_WALKED.format("orders -> customers, customers -> orders").replace("view m", "view n"))
    with pytest.raises(Invalid, match="'regions' specified in backfill_order is not used in the query"):
        await here.run(TWO_WALKED.format("orders -> regions").replace("view m", "view n"))


async def test_u11_a_column_list_names_the_first_columns_of_a_view(here: Here) -> None:
    plan = await here.stored(JOINED.replace("view m", "view m (number)"))
    assert [one.name for one in plan.relation.visible] == ["number", "region"]
    with pytest.raises(Invalid, match="too many column names were specified"):
        await here.run(JOINED.replace("view m", "view n (a, b, c)"))
    with pytest.raises(Invalid, match='column "region" specified more than once'):
        await here.run(JOINED.replace("view m", "view n (region)"))


async def test_u11_explain_of_a_select_is_the_plan_of_postgres(here: Here) -> None:
    found = await here.run("explain select pg_typeof(1) where false")
    assert found.columns == (("QUERY PLAN", "text"),)
    assert "One-Time Filter: false" in str(found.rows)
    with pytest.raises(Invalid, match='column "nothing" does not exist') as refused:
        await here.run("explain select nothing")
    assert refused.value.position == len("explain select ") + 1
    with pytest.raises(Invalid, match="pg_sleep is not allowed here"):
        await here.run("explain select pg_sleep(1)")


async def test_explain_names_the_stages(here: Here) -> None:
    joined = await here.explained(JOINED)
    facts = "operator: join, engine: by rows, type: SNAPSHOT_BACKFILL, parallelism: 1"
    assert f"StreamStage {{ stage: 1, target: m, {facts} }}" in joined
    assert "engine of history: spark from 100000 rows on" in joined
    assert "index: orders (customer), to be built" in joined
    summed = await here.explained(SUMMED)
    assert "operator: aggregate" in summed
    ranked = await here.explained(RANKED)
    assert "operator: partition" in ranked
    dot = "\n".join(line for (line,) in (await here.run(f"explain (backfill, format dot) {SUMMED} limit 3")).rows)
    assert '"public.__m_1" -> "public.m";' in dot


async def test_the_store_verifies_a_view_of_stages(here: Here) -> None:
    plan = await here.stored(TIED)
    await queue.start_jobs(here.world, term=here.term)
    builds = Builds(lambda: None)
    await reconcile(here.world, builds, term=here.term)
    await asyncio.gather(*builds.tasks.values())
    assert await here.indexes() == {"t_1 (amount, id, _to)"}
    assert await queue.start_jobs(here.world, term=here.term) == 1
    with pytest.raises(Conflict, match="cannot be read yet"):
        await worker_rpc.verify(here.world, plan.id, asked_by=A_TEST)
    with pytest.raises(Conflict, match="verify it with engine=store: only the state store skips rows"):
        await worker_rpc.verify(here.world, plan.id, Engine.SPARK, asked_by=A_TEST)


def ordered(order: str) -> str:
    return THRICE.replace("WITH", f"with (backfill_order = {order}) as")


async def test_an_arrangement_has_a_scan_for_each_occurrence(here: Here) -> None:
    plan = await here.stored(ordered("FIXED(customers -> orders, regions -> orders)"), **ARRANGEMENT)
    scans = plan.table_scans
    assert sorted(one.upstream.name for one in scans) == ["customers", "customers", "orders", "regions"]
    assert {one.scan_type for one in scans} == {ScanType.ARRANGEMENT_BACKFILL}
    assert {one.upstream.name: one.waiting for one in scans} == {"customers": False, "regions": False, "orders": True}
    prefixes = [one.query for one in scans if isinstance(one.query, Prefix)]
    assert {
        (number, one.alias): one.relation
        for number, operator in enumerate(plan.operators)
        for one in operator.query.inputs
        if one.relation not in {hidden.id for hidden in plan.hidden}
    } == {(one.operator, one.alias): scan.upstream.id for one, scan in zip(prefixes, scans, strict=True)}
    assert [plan.written_by(one) for one in plan.operators][-1] == plan.relation
    shown = await here.store.rows(
        "select fragment_id, upstream_fragment_ids from rw_catalog.rw_fragments where flags = '{OPERATOR}'"
    )
    reads = {row[0]: row[1] for row in shown}
    assert reads == {
        operator.id: [scan.id for scan, one in zip(scans, prefixes, strict=True) if one.operator == number]
        for number, operator in enumerate(plan.operators)
    }
    assert lookups_of(plan)


async def test_an_arrangement_waits_for_its_indexes_and_starts_in_the_database_graph(here: Here) -> None:
    plan = await here.stored(ordered("NONE"), **ARRANGEMENT)
    await queue.start_jobs(here.world, term=here.term)
    async with here.stores.begin() as tx:
        held = await tx.jobs.get(plan.id)
    assert held is not None
    assert held.state is JobState.INITIAL
    assert held.preparing is not None
    builds = Builds(over=lambda: None)
    await reconcile(here.world, builds, term=here.term)
    await asyncio.gather(*builds.tasks.values())
    await queue.start_jobs(here.world, term=here.term)
    async with here.stores.begin() as tx:
        started = await tx.jobs.get(plan.id)
    assert started is not None
    assert (started.state, started.graph) == (JobState.CREATING, DATABASE_GRAPH)


@pytest.mark.parametrize(
    ("order", "error", "message"),
    [
        ("FIXED(regions -> nope)", NotFound, 'table "nope" does not exist'),
        ("FIXED(unread -> orders)", Invalid, "Table or source 'unread' specified in backfill_order is not used in the"),
        ("FIXED(orders -> customers, customers -> orders)", Invalid, "Backfill order strategy has a cycle"),
        ("FIXED(orders -> orders)", Invalid, "Backfill order strategy has a cycle"),
    ],
)
async def test_an_order_is_over_what_the_query_reads(
    here: Here, order: str, error: type[MetaError], message: str
) -> None:
    text = "create table unread (id bigint primary key)"
    statement = parse(text)
    assert isinstance(statement, CreateTable)
    dml = NewDml((((0, 255),),))
    await here.created(NewJob(table_relation(statement), text, background=False, fragments=(dml,)))
    with pytest.raises(error, match=message):
        await here.run(ordered(order), **ARRANGEMENT)


async def test_auto_reads_the_other_sides_of_a_join_first(here: Here) -> None:
    async def dot(text: str) -> list[str]:
        rows = (await here.run(f"explain (backfill, format dot) {text}", **ARRANGEMENT)).rows
        return [str(line).strip() for (line,) in rows][1:-1]

    assert await dot(ordered("AUTO")) == [
        '"public.customers" -> "public.orders";',
        '"public.regions" -> "public.orders";',
    ]
    twice = (
        "create materialized view m with (backfill_order = AUTO) as select a.id from orders a"
        " join customers c on c.id = a.customer join orders b on b.id = c.id"
    )
    assert await dot(twice) == []
    explained = await here.run(f"explain {ordered('AUTO')}", **ARRANGEMENT)
    lines = [str(line) for (line,) in explained.rows]
    assert "Backfill order: FIXED(customers -> orders, regions -> orders)" in lines
    assert sum("StreamTableScan" in line for line in lines) == 4


async def test_i13_a_view_after_one_that_took_too_long_has_a_graph_of_its_own(here: Here) -> None:
    """A caller created and dropped views in turn, each of which held up everybody until it left."""

    async def own_graph(text: str) -> bool:
        return "graph of its own" in str((await here.run(f"explain {text}")).rows[-1])

    plan = await here.stored(SUMMED)
    async with here.stores.begin() as tx:
        await tx.queue.too_slow([plan.id], now=NOW)
    following = SUMMED.replace(" m as", " n as")
    assert await own_graph(following)
    assert not await own_graph("create materialized view n as select id, amount * 2 as twice from orders")
    other = replace(A_TEST, actor="another")
    told = await dispatch.run(here.world, f"explain {following}", session={}, asked_by=other)
    assert "graph of its own" not in str(told.rows[-1])
    arranged = await here.run(f"explain {following}", streaming_use_snapshot_backfill="false")
    assert "graph of its own" not in str(arranged.rows[-1]), "it waits for its begin"
    clock = here.world.clock
    assert isinstance(clock, StillClock)
    clock.wall = NOW + timedelta(seconds=150)
    assert not await own_graph(following)
