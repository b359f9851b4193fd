"""What a barrier costs beside thousands of idle views and a long history: what it reads, and how it reads it."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

import pytest
from sqlalchemy import event, select, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from service.domain.job import CREATING, JobState
from service.meta_store.barriers.barriers import KEPT
from service.meta_store.barriers.leases import assert_term
from service.meta_store.documents import among
from service.meta_store.events import PostgresEvents
from service.meta_store.schema.core import job
from service.meta_store.stores import PostgresStores, transaction_on
from service.operations.barriers.effects import store_progress
from service.operations.status import listing
from service.ports.meta_store import Transaction
from service.protocol.dml import Delete, StatementResult
from service.protocol.ids import DATABASE_GRAPH, Epoch, StatementId
from service.protocol.mutation import Throttle
from service.protocol.plan import TableScanPlan
from tests.support.http import world_of
from tests.support.meta_store import (
    LEASE,
    NOW,
    WORKER,
    at,
    barrier,
    collected,
    done,
    relation,
    report,
    running,
    scan_of,
    stores_on,
    table_and_view,
)

pytestmark = pytest.mark.postgres

IDLE = 3_000
"""Enough for reading a table whole to be dearer than looking a few rows up."""
HISTORY = 20_000
LARGE = {
    "actor",
    "backfill_position",
    "barrier",
    "command",
    "event",
    "fragment",
    "job",
    "relation",
    "relation_column",
    "scan_progress",
    "statement",
}

# Ids far above those in use, so that nothing collides.
SEED = f"""
insert into tidefill.relation (id, name, kind, definition, vnode_count, shown)
select 100000 + n, 'idle_' || n, 'materialized view', 'CREATE ..', 256, true from generate_series(1, {IDLE}) n;
update tidefill.relation set shown = true where name = 't';
insert into tidefill.relation_column (relation, position, name, type, nullable, hidden, key_position)
select 100000 + n, 0, 'id', 'bigint', false, false, 0 from generate_series(1, {IDLE}) n;
insert into tidefill.job (id, relation, statement, state, background, initialized_at, progress_text)
select 100000 + n, 100000 + n, 'CREATE ..', 'Created', true, now(), '100%' from generate_series(1, {IDLE}) n;
insert into tidefill.fragment (id, job, kind, upstream, query, scan_type)
select 100000 + n, 100000 + n, 'STREAM_SCAN', 1, '{{}}', 'ARRANGEMENT_BACKFILL' from generate_series(1, {IDLE}) n;
insert into tidefill.actor (fragment, runs, rows, finished)
select 100000 + n, '[[0, 255]]', 256, true from generate_series(1, {IDLE}) n;
insert into tidefill.scan_progress (fragment, rows, finished, at)
select 100000 + n, 256, true, now() from generate_series(1, {IDLE}) n;
insert into tidefill.backfill_position (fragment, vnode, state, rows)
select 100000 + n, v, 'completed', 1 from generate_series(1, {IDLE}) n, generate_series(0, 15) v;
insert into tidefill.barrier (graph, epoch, prev, kind, generation, worker, state, injected_at, published_at)
select 1, n, n - 1, 'checkpoint', 0, 'w-0', 'COMMITTED', now(), now() from generate_series(1, 1000) n;
insert into tidefill.command (graph, stops, asked_by, asked_at, epoch, done)
select 1, false, 'x', now(), 1, true from generate_series(1, {HISTORY} / 4) n;
insert into tidefill.statement (id, body, accepted_at, epoch, finished_at, staging)
select 100000 + n, '{{}}', now(), 1, timestamptz '2026-01-02 03:04:05+00', false from generate_series(1, {HISTORY}) n;
insert into tidefill.event (at, kind, facts) select now(), 'x', '{{}}' from generate_series(1, {HISTORY}) n;
"""


@pytest.fixture
async def engine(database_url: str) -> AsyncGenerator[AsyncEngine]:
    """A store with a creating view, thousands of idle ones and a history."""
    async with stores_on(database_url) as (stores, engine):
        await table_and_view(stores)
        await running(stores)
        async with engine.begin() as connection:
            for statement in SEED.strip().split(";\n"):
                await connection.execute(text(statement))
            await connection.execute(
                text("update tidefill.graph set newest = 1000, committed = 1000, published = 1000")
            )
        async with engine.connect() as connection:
            outside = await connection.execution_options(isolation_level="AUTOCOMMIT")
            await outside.execute(text("vacuum analyze"))
        yield engine


@dataclass(frozen=True)
class Cost:
    """One table in one transaction: rows that sequential scans read, rows fetched by index, rows written."""

    scanned: int
    fetched: int
    written: int

    def since(self, before: "Cost | None") -> "Cost":
        """Return what was added."""
        if before is None:
            return self
        return Cost(self.scanned - before.scanned, self.fetched - before.fetched, self.written - before.written)


async def costs(connection: AsyncConnection) -> dict[str, Cost]:
    query = """
        select relname, coalesce(seq_tup_read, 0) as scanned, coalesce(idx_tup_fetch, 0) as fetched,
            n_tup_ins + n_tup_upd + n_tup_del as written
        from pg_stat_xact_user_tables where schemaname = 'tidefill'
    """
    found = await connection.execute(text(query))
    return {row.relname: Cost(row.scanned, row.fetched, row.written) for row in found}


class Statements:
    """Counts what an engine executes."""

    def __init__(self, engine: AsyncEngine) -> None:
        self.texts: list[str] = []
        event.listen(engine.sync_engine, "before_cursor_execute", self._record)

    def _record(self, _connection: object, _cursor: object, statement: str, *_: object) -> None:
        self.texts.append(statement)


async def one_epoch(tx: Transaction, *, scan: Any, epoch: int) -> None:
    """Everything that is asked of the store from one barrier to the next."""
    command = await tx.commands.add(DATABASE_GRAPH, Throttle(fragments={}), asked_by="x", now=NOW)
    statement = Delete(id=StatementId(epoch), relation=relation("t"))
    await tx.statements.add(statement, now=NOW)
    await tx.graphs.view(DATABASE_GRAPH, now=NOW, lease=LEASE)
    await tx.commands.waiting(DATABASE_GRAPH)
    await tx.statements.waiting(limit=5_000)
    one = barrier(epoch, epoch - 1, statements=(statement,))
    await tx.barriers.record(one, worker=WORKER, now=NOW, commands=[command])
    await tx.barriers.for_worker(WORKER)
    await tx.workers.seen(WORKER, now=NOW)
    first, second = scan.actors
    rows = epoch - 1_000
    moving = report(first.id, scan.id, rows, at(0, "x", "1", rows=rows))
    ending = report(second.id, scan.id, 1, done(7, rows=1))
    await tx.barriers.answer(collected(epoch, moving, ending, keys={scan.upstream.id: 1}), now=NOW)
    assert await tx.fragments.receded([moving, ending]) is None
    answers = [answer for _, answer in await tx.barriers.collected(DATABASE_GRAPH, Epoch(epoch))]
    await tx.fragments.record(answers, now=NOW)
    await tx.statements.finish([StatementResult(id=statement.id, affected=1)], epoch=Epoch(epoch), now=NOW)
    await tx.commands.carried(DATABASE_GRAPH, Epoch(epoch))
    assert await tx.rescaling.due(DATABASE_GRAPH) == []
    await tx.commands.finish([command], epoch=Epoch(epoch))
    await tx.fragments.held(DATABASE_GRAPH)
    await tx.barriers.commit(DATABASE_GRAPH, Epoch(epoch), now=NOW)
    jobs = [job.id for job in await tx.jobs.where(CREATING | {JobState.CANCELLING})]
    await tx.fragments.scans(jobs)
    await tx.fragments.store_texts({job: {"text": f"{epoch}%"} for job in jobs})
    await tx.visibility.unshown()
    await tx.visibility.publish(DATABASE_GRAPH, Epoch(epoch), now=NOW)
    await tx.events.append("barrier.committed", {}, now=NOW)


async def test_an_epoch_neither_reads_nor_writes_what_is_idle(engine: AsyncEngine) -> None:
    stores = PostgresStores(engine)
    async with stores.begin() as tx:
        (creating,) = await tx.jobs.where({JobState.CREATING})
    scan = await scan_of(stores, creating.id)
    # Often enough that the server would change to plans that are not made for these values, were they cheaper.
    for epoch in range(1_001, 1_011):
        async with engine.connect() as connection:
            # The server counts on from transactions it has not reported yet.
            before = await costs(connection)
            events = PostgresEvents(connection)
            transaction = transaction_on(connection, events)
            await one_epoch(transaction, scan=scan, epoch=epoch)
            await events.write()
            seen = {name: cost.since(before.get(name)) for name, cost in (await costs(connection)).items()}
            await connection.commit()
        # Trimming the history of barriers looks at it twice; it ends at its thousandth.
        assert seen["barrier"].scanned <= 2 * (KEPT + 2)
        large = {name: cost for name, cost in seen.items() if name in LARGE - {"barrier"}}
        assert {name: cost.scanned for name, cost in large.items() if cost.scanned} == {}
        assert {name: cost.fetched for name, cost in large.items() if cost.fetched > 60} == {}
        assert (seen["job"].written, seen["relation"].written, seen["scan_progress"].written) == (1, 1, 1)
        assert seen["backfill_position"].written == 2


async def test_the_view_is_one_statement_and_a_commit_is_few(engine: AsyncEngine) -> None:
    stores = PostgresStores(engine)
    async with stores.begin() as tx:
        (creating,) = await tx.jobs.where({JobState.CREATING})
    scan = await scan_of(stores, creating.id)
    counted = Statements(engine)
    async with stores.begin() as tx:
        await tx.graphs.view(DATABASE_GRAPH, now=NOW, lease=LEASE)
        assert len(counted.texts) == 1
        await one_epoch(tx, scan=scan, epoch=1_001)
    assert len(counted.texts) < 50


async def test_asserting_a_term_reads_one_row(engine: AsyncEngine) -> None:
    async with PostgresStores(engine).begin() as tx:
        term = await tx.leases.gain("a", lease=LEASE)
    assert term is not None
    async with engine.connect() as connection:
        before = await costs(connection)
        await assert_term(connection, term)
        seen = {name: cost.since(before.get(name)) for name, cost in (await costs(connection)).items()}
    assert {name for name, cost in seen.items() if cost != Cost(0, 0, 0)} == {"leader_lease"}


QUEUED = f"""
insert into tidefill.relation (id, name, kind, definition, vnode_count)
select 200000 + n, 'queued_' || n, 'materialized view', 'CREATE ..', 256 from generate_series(1, {IDLE}) n;
insert into tidefill.job (id, relation, statement, state, background, initialized_at)
select 200000 + n, 200000 + n, 'CREATE ..', 'Queued', true, now() from generate_series(1, {IDLE}) n;
insert into tidefill.fragment (id, job, kind, upstream, query, scan_type)
select 200000 + n, 200000 + n, 'STREAM_SCAN', 1, '{{}}', 'ARRANGEMENT_BACKFILL' from generate_series(1, {IDLE}) n;
insert into tidefill.actor (fragment, runs) select 200000 + n, '[[0, 255]]' from generate_series(1, {IDLE}) n;
insert into tidefill.scan_progress (fragment) select 200000 + n from generate_series(1, {IDLE}) n;
"""


async def queue(engine: AsyncEngine) -> None:
    """Have thousands of jobs wait for the one that is being created."""
    async with engine.begin() as connection:
        for statement in QUEUED.strip().split(";\n"):
            await connection.execute(text(statement))
    async with engine.connect() as connection:
        outside = await connection.execution_options(isolation_level="AUTOCOMMIT")
        await outside.execute(text("analyze"))


async def test_a_look_and_a_page_read_nothing_of_a_long_queue(engine: AsyncEngine) -> None:
    await queue(engine)
    for turn in range(10):
        async with engine.connect() as connection:
            before = await costs(connection)
            tx = transaction_on(connection, PostgresEvents(connection))
            line = await tx.queue.line()
            assert (line.new, line.queued, line.held) == (False, True, 1)
            page = await tx.status.jobs({JobState.QUEUED}, after=200_000 + 100 * turn, limit=10)
            assert [job.id for job in page] == [200_001 + 100 * turn + n for n in range(10)]
            seen = {name: cost.since(before.get(name)) for name, cost in (await costs(connection)).items()}
        assert {name: seen[name].scanned for name in LARGE & seen.keys() if seen[name].scanned} == {}
        assert {name: seen[name].fetched for name in LARGE & seen.keys() if seen[name].fetched > 60} == {}


async def test_a_list_of_ids_is_read_once_and_not_for_every_row(engine: AsyncEngine) -> None:
    asked = select(job.c.id).where(among(job.c.id, range(1_000))).compile(dialect=engine.dialect)
    async with engine.connect() as connection:
        rows = await connection.exec_driver_sql(f"explain {asked}", asked.params)
        plan = "\n".join(rows.scalars())
    assert "ANY ('{0,1,2," in plan
    assert "::text" not in plan, "a text that is cast is no constant"


async def test_an_epoch_writes_no_progress_that_has_not_changed(engine: AsyncEngine) -> None:
    stores = PostgresStores(engine)
    async with stores.begin() as tx:
        (creating,) = await tx.jobs.where({JobState.CREATING})
    await queue(engine)
    for written in (1, 0):
        async with engine.begin() as connection:
            before = await costs(connection)
            await store_progress(transaction_on(connection, PostgresEvents(connection)), DATABASE_GRAPH)
            seen = {name: cost.since(before.get(name)) for name, cost in (await costs(connection)).items()}
        assert seen["job"].written == written
    async with engine.connect() as connection:
        shown = await connection.execute(text("select ddl_id, progress from rw_catalog.rw_ddl_progress"))
        assert {row.progress for row in shown if row.ddl_id == creating.id} == {"0.0%"}


async def test_the_progress_of_many_jobs_takes_a_handful_of_statements(engine: AsyncEngine) -> None:
    await queue(engine)
    world = world_of(PostgresStores(engine))
    counted = Statements(engine)
    listed = await listing.ddl_progress(world)
    assert (len(listed), listed[-1].queue_place) == (IDLE + 1, IDLE)
    assert len(counted.texts) <= 11


PROJECTING = """update tidefill.fragment set query = jsonb_build_object('joins', jsonb_build_array(jsonb_build_object(
    'kind', 'inner', 'inputs', jsonb_build_array(jsonb_build_object('alias', 'i', 'relation', upstream))
))) where id > 100000"""
"""Give the fragments the shortest stages over what they read."""


async def test_plans_of_many_jobs_take_a_handful_of_statements(engine: AsyncEngine) -> None:
    """A recovery rebuilds every job: the number of statements does not depend on how many there are."""
    stores = PostgresStores(engine)
    async with engine.begin() as connection:
        await connection.execute(text(PROJECTING))
    counted = Statements(engine)
    async with stores.begin() as tx:
        plans = await tx.plans.of([job.id for job in await tx.jobs.where({JobState.CREATED})])
        assert len(await tx.catalog.all()) == IDLE + 2
    assert len(plans) == IDLE + 1
    assert len(counted.texts) <= 7
    scan = plans[-1].fragments[0]
    assert isinstance(scan, TableScanPlan)
    assert (scan.finished, scan.actors[0].rows, scan.actors[0].positions) == (True, 256, ())


async def test_plans_read_no_positions_of_finished_scans(engine: AsyncEngine) -> None:
    """Those of all scans ever read would exceed what a document may hold, and no barrier could be made any more."""
    async with engine.connect() as connection:
        tx = transaction_on(connection, PostgresEvents(connection))
        created = [job.id for job in await tx.jobs.where({JobState.CREATED}, graph=DATABASE_GRAPH)]
        await connection.execute(text(PROJECTING))
        before = await costs(connection)
        assert len(await tx.plans.of(created)) == IDLE + 1
        seen = {name: cost.since(before.get(name)) for name, cost in (await costs(connection)).items()}
    read = seen.get("backfill_position", Cost(0, 0, 0))
    assert (read.scanned, read.fetched) == (0, 0)
