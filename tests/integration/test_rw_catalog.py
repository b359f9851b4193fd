"""RisingWave's catalogs as a person with psql reads them."""

import random
from collections.abc import AsyncGenerator
from dataclasses import asdict, replace
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from service.domain.adaptive import Adaptation, Move, Signal
from service.domain.graph import GraphStatus
from service.domain.job import JobEvent
from service.domain.parameters import SystemParameters
from service.domain.progress import fragment_text
from service.meta_store.engine import connect
from service.meta_store.stores import PostgresStores
from service.operations.naming import internal_tables
from service.ports.limits import Look
from service.protocol.ids import DATABASE_GRAPH, Epoch
from service.protocol.mutation import Pause
from tests.support.meta_stages import new_stages
from tests.support.meta_store import (
    LEASE,
    NOW,
    add_created,
    add_creating,
    barrier,
    collected,
    inject,
    new_table,
    new_view,
    report,
    running,
    scan_of,
    stores_on,
    table_and_view,
)

pytestmark = pytest.mark.postgres

Opened = tuple[PostgresStores, AsyncEngine]


@pytest.fixture
async def opened(database_url: str) -> AsyncGenerator[Opened]:
    async with stores_on(database_url) as opened:
        yield opened


async def rows(engine: AsyncEngine, query: str) -> list[dict[str, Any]]:
    async with engine.connect() as connection:
        return [dict(row) for row in (await connection.execute(text(query))).mappings()]


async def test_a_job_is_listed_while_it_is_being_created(opened: Opened) -> None:
    stores, engine = opened
    table, view = await table_and_view(stores)
    listed = "select * from rw_catalog.rw_ddl_progress"
    expected = {
        "ddl_id": view.id,
        "ddl_statement": "CREATE MATERIALIZED VIEW m",
        "create_type": "BACKGROUND",
        "progress": "0.0%",
        "initialized_at": NOW,
        "is_serverless_backfill": False,
        "backfill_type": "NORMAL_BACKFILL",
        "created_by": None,
    }
    assert await rows(engine, listed) == [expected]
    async with stores.begin() as tx:
        await tx.fragments.store_texts({view.id: {"text": "12.50% (1/8)", "phase": "backfilling", "waiting_for": None}})
    assert await rows(engine, listed) == [expected | {"progress": "12.50% (1/8)"}]
    async with stores.begin() as tx:
        await tx.jobs.move(view.id, JobEvent.FINISHED, now=NOW)
        serverless = replace(new_view("own", table.relation), serverless=True, resource_group="small")
        own = await tx.jobs.add(serverless, now=NOW, by="ci")
    (told,) = await rows(engine, listed)
    assert (told["ddl_id"], told["is_serverless_backfill"], told["created_by"]) == (own.id, True, "ci")
    groups = await rows(engine, "select name, resource_group from rw_catalog.rw_streaming_jobs order by id")
    assert [row["resource_group"] for row in groups] == ["default", "default", "small"]


async def test_every_system_parameter_is_shown_whether_it_was_set_or_not(opened: Opened) -> None:
    stores, engine = opened
    shown = "select name, value from rw_catalog.rw_system_parameters"
    defaults = {name: str(value).lower() for name, value in asdict(SystemParameters()).items()}
    assert {row["name"]: row["value"] for row in await rows(engine, shown)} == defaults
    async with stores.begin() as tx:
        await tx.parameters.set("barrier_interval_ms", "250")
    found = {row["name"]: row["value"] for row in await rows(engine, shown)}
    assert found == defaults | {"barrier_interval_ms": "250"}


async def test_relations_and_their_jobs(opened: Opened) -> None:
    stores, engine = opened
    table, view = await table_and_view(stores, parallelism=2)
    async with stores.begin() as tx:
        await tx.fragments.record([collected(10, keys={table.relation: 5})], now=NOW)
    assert await rows(engine, "select id, name, schema_name, definition, status from rw_catalog.rw_tables") == [
        {
            "id": table.relation,
            "name": "t",
            "schema_name": "public",
            "definition": "CREATE TABLE t",
            "status": "Created",
        }
    ]
    views = "select id, name, definition, status, background_ddl from rw_catalog.rw_materialized_views"
    assert await rows(engine, views) == [
        {
            "id": view.relation,
            "name": "m",
            "definition": "CREATE MATERIALIZED VIEW m",
            "status": "Creating",
            "background_ddl": True,
        }
    ]
    stats = await rows(engine, "select * from rw_catalog.rw_table_stats order by id")
    assert stats == [{"id": table.relation, "total_key_count": 5}, {"id": view.relation, "total_key_count": 0}]
    jobs = await rows(
        engine,
        "select job_id, name, status, parallelism, max_parallelism, resource_group"
        " from rw_catalog.rw_streaming_jobs order by id",
    )
    shape = {"max_parallelism": 8, "resource_group": "default"}
    assert jobs == [
        {"job_id": table.id, "name": "t", "status": "CREATED", "parallelism": "fixed(1)"} | shape,
        {"job_id": view.id, "name": "m", "status": "CREATING", "parallelism": "fixed(2)"} | shape,
    ]


async def test_fragments_their_limits_and_where_they_read(opened: Opened) -> None:
    stores, engine = opened
    table, view = await table_and_view(stores)
    async with stores.begin() as tx:
        (dml,), (scan,) = [plan.fragments for plan in await tx.plans.of([table.id, view.id])]
    fragments = await rows(
        engine,
        "select fragment_id, table_id, state_table_ids, upstream_fragment_ids, flags, parallelism, parallelism_policy"
        " from rw_catalog.rw_fragments order by fragment_id",
    )
    assert [list(fragment.values()) for fragment in fragments] == [
        [dml.id, table.relation, [table.relation], [], ["DML"], 1, "fixed(1)"],
        [scan.id, view.relation, [scan.id], [dml.id], ["STREAM_SCAN"], 2, "fixed(2)"],
    ]
    assert await rows(engine, "select * from rw_catalog.rw_backfill_info") == [
        {
            "job_id": view.id,
            "fragment_id": scan.id,
            "backfill_state_table_id": scan.id,
            "backfill_target_relation_id": table.relation,
            "backfill_type": "ARRANGEMENT_OR_NO_SHUFFLE",
            "backfill_epoch": 0,
        }
    ]
    assert await rows(engine, "select * from rw_catalog.rw_rate_limit") == []
    async with stores.begin() as tx:
        await tx.limits.put({scan.id: 0}, auto=(), epoch=Epoch(1))
    assert await rows(engine, "select * from rw_catalog.rw_rate_limit") == [
        {
            "fragment_id": scan.id,
            "fragment_type": ["STREAM_SCAN"],
            "node_name": "STREAM_SCAN",
            "table_id": view.relation,
            "rate_limit": 0,
        }
    ]


async def test_h6_scripts_find_parallelism_internal_tables_and_databases(opened: Opened) -> None:
    stores, engine = opened
    table, view = await table_and_view(stores, parallelism=2)
    async with stores.begin() as tx:
        (dml,), (scan,) = [plan.fragments for plan in await tx.plans.of([table.id, view.id])]
    assert await rows(engine, "select * from rw_catalog.rw_streaming_parallelism order by id") == [
        {
            "id": job.relation,
            "name": name,
            "relation_type": kind,
            "parallelism": asked,
            "max_parallelism": 8,
        }
        for job, name, kind, asked in (
            (table, "t", "table", "FIXED(1)"),
            (view, "m", "materialized view", "FIXED(2)"),
        )
    ]
    fragments = await rows(engine, "select * from rw_catalog.rw_fragment_parallelism order by fragment_id")
    assert fragments == [
        {
            "id": job.relation,
            "name": name,
            "relation_type": kind,
            "fragment_id": fragment,
            "distribution_type": "HASH",
            "state_table_ids": [state],
            "upstream_fragment_ids": upstream,
            "flags": [flag],
            "parallelism": actors,
            "max_parallelism": 8,
        }
        for job, name, kind, fragment, state, upstream, flag, actors in (
            (table, "t", "table", dml.id, table.relation, [], "DML", 1),
            (view, "m", "materialized view", scan.id, scan.id, [dml.id], "STREAM_SCAN", 2),
        )
    ]
    internal = await rows(engine, "select * from rw_catalog.rw_internal_table_info")
    assert internal == [
        {
            "id": scan.id,
            "name": f"__internal_m_{scan.id}_streamscan_{scan.id}",
            "job_id": view.relation,
            "job_name": "m",
            "job_type": "materialized view",
            "schema_name": "public",
            "owner": "root",
        }
    ]
    async with stores.begin() as tx:
        assert await internal_tables(tx) == [internal[0]["name"]]
    (database,) = await rows(engine, "select * from rw_catalog.rw_databases")
    (current,) = await rows(engine, "select current_database()::text as name")
    assert database == {"id": 1, "name": current["name"], "owner": 1, "acl": [], "resource_group": "default"}


async def test_a_limit_that_is_adapted_shows_its_number_and_how_it_came_there(opened: Opened) -> None:
    stores, engine = opened
    table, view = await table_and_view(stores)
    scan = await scan_of(stores, view.id)
    await running(stores)
    async with stores.begin() as tx:
        await tx.limits.put({scan.id: 1000}, auto=[scan.id], epoch=Epoch(5))
        await tx.fragments.record([collected(10, keys={table.relation: 3})], now=NOW)
        await tx.fragments.record([collected(20, report(scan.actors[0].id, scan.id, 2))], now=NOW)
        (adapted,) = await tx.adaptations.adapted(DATABASE_GRAPH)
        after = Adaptation(700.0, 700.0, falling=True)
        look = Look(adapted, after, Epoch(20), Move.LOWERED, Signal.SQL_PROBE, "the query gave false", (), asked=700)
        await tx.adaptations.record([look], now=NOW)
    state = "select * from rw_catalog.rw_backfill_auto_limit"
    expected = {
        "fragment_id": scan.id,
        "job_id": view.id,
        "rate_limit": 1000,
        "phase": "even steps",
        "move": "lowered",
        "signal": "sql_probe",
        "reason": "the query gave false",
        "looked_at": NOW,
        "effective_epoch": 5,
    }
    assert await rows(engine, state) == [expected]
    async with stores.begin() as tx:
        await tx.limits.put({scan.id: 700}, auto=[scan.id], epoch=Epoch(30))
    assert await rows(engine, state) == [expected | {"rate_limit": 700, "effective_epoch": 30}]
    (limit,) = await rows(engine, "select * from rw_catalog.rw_rate_limit")
    assert limit["rate_limit"] == 700
    (change,) = await rows(engine, "select * from rw_catalog.rw_backfill_auto_limit_history")
    del change["id"]
    assert change == {
        "fragment_id": scan.id,
        "job_id": view.id,
        "at": NOW,
        "epoch": 30,
        "rate_limit_before": 1000,
        "rate_limit": 700,
        "signal": "sql_probe",
        "reason": "the query gave false",
    }


async def test_progress_of_a_fragment_is_listed_while_its_job_is_unfinished(opened: Opened) -> None:
    stores, engine = opened
    table, view = await table_and_view(stores)
    scan = await scan_of(stores, view.id)
    async with stores.begin() as tx:
        one = collected(10, report(scan.actors[0].id, scan.id, 2), keys={table.relation: 3})
        await tx.fragments.record([one], now=NOW)
    listed = "select * from rw_catalog.rw_fragment_backfill_progress"
    assert await rows(engine, listed) == [
        {
            "job_id": view.id,
            "fragment_id": scan.id,
            "job_name": "public.m",
            "upstream_table_name": "public.t",
            "progress": "66.66666666666666666667% (2/3)",
            "kind": "scan",
        }
    ]
    async with stores.begin() as tx:
        await tx.jobs.move(view.id, JobEvent.FINISHED, now=NOW)
    assert await rows(engine, listed) == []


def pairs() -> list[tuple[int, int]]:
    """Rows and totals: corners, and what a seeded generator spreads over many magnitudes."""
    source = random.Random(7)
    corners = [(0, 0), (5, 0), (0, 7), (7, 7), (8, 7), (1, 3), (2, 3), (1, 10**6), (1, 10**7), (3, 10**12)]
    corners += [(10**13, 1), (999_999_999_999, 10**14), (123_456_789_012_345, 10**15), (1, 3 * 10**17), (10**17, 3)]
    return corners + [(source.randrange(10 ** source.randrange(1, 17)), source.randrange(10**9)) for _ in range(300)]


async def test_the_view_prints_a_share_as_the_domain_does(opened: Opened) -> None:
    stores, engine = opened
    numbers, at_once = pairs(), 16
    async with stores.begin() as tx:
        await add_created(tx, new_table("t0"))
        for number in range(at_once):
            table = await tx.jobs.add(new_table(f"t{number}_"), now=NOW)
            await tx.jobs.add(new_view(f"m{number}", table.relation), now=NOW)
    totals = text("update tidefill.relation set key_count = :total where name = :name")
    progress = text(
        "update tidefill.scan_progress p set rows = :rows from tidefill.fragment f, tidefill.job j,"
        " tidefill.relation r where f.id = p.fragment and j.id = f.job and r.id = j.relation and r.name = :name"
    )
    listed = "select progress from rw_catalog.rw_fragment_backfill_progress order by job_id"
    for first in range(0, len(numbers), at_once):
        some = numbers[first : first + at_once]
        async with engine.begin() as connection:
            await connection.execute(totals, [{"name": f"t{n}_", "total": total} for n, (_, total) in enumerate(some)])
            await connection.execute(progress, [{"name": f"m{n}", "rows": done} for n, (done, _) in enumerate(some)])
        printed = [row["progress"] for row in await rows(engine, listed)]
        assert printed[: len(some)] == [fragment_text(done, max(done, total)) for done, total in some]


async def test_barriers_workers_events_and_recoveries(opened: Opened) -> None:
    stores, engine = opened
    await running(stores)
    await inject(stores, barrier(10, mutation=Pause()))
    async with stores.begin() as tx:
        await tx.barriers.answer(collected(10), now=NOW)
        await tx.barriers.commit(DATABASE_GRAPH, Epoch(10), now=NOW)
        await tx.visibility.publish(DATABASE_GRAPH, Epoch(10), now=NOW + LEASE)
        await tx.events.append("barrier.committed", {"epoch": "10"}, now=NOW)
        await tx.graphs.set_status(DATABASE_GRAPH, GraphStatus.RECOVERING, now=NOW, reason="lost")
    (one,) = await rows(engine, "select epoch, kind, state, mutation, latency_ms::int from rw_catalog.rw_barriers")
    assert list(one.values()) == [10, "checkpoint", "COMMITTED", "pause", 10_000]
    (worker,) = await rows(engine, "select id, parallelism, given_up from rw_catalog.rw_workers")
    assert list(worker.values()) == ["w-1", 2, False]
    (event,) = await rows(engine, "select kind, facts from rw_catalog.rw_events")
    assert event == {"kind": "barrier.committed", "facts": {"epoch": "10"}}
    (graph,) = await rows(
        engine, "select recovery_state, generation, recoveries, last_error from rw_catalog.rw_recovery_info"
    )
    assert list(graph.values()) == ["RECOVERING", 1, 1, "lost"]


async def test_actors_the_event_log_and_the_recovery_status(opened: Opened) -> None:
    stores, engine = opened
    status = "select rw_catalog.rw_recovery_status() as status"
    assert await rows(engine, status) == [{"status": "RECOVERING"}], "no generation has begun"
    _, view = await table_and_view(stores)
    scan = await scan_of(stores, view.id)
    await running(stores)
    assert await rows(engine, status) == [{"status": "RUNNING"}]
    async with stores.begin() as tx:
        await tx.fragments.record([collected(10, report(scan.actors[0].id, scan.id, 2))], now=NOW)
        await tx.events.append("job.created", {"job": 7}, now=NOW)
    read = f"select * from rw_catalog.rw_actors where fragment_id = {scan.id} order by actor_id"
    shape = {"worker_id": "w-1", "fragment_id": scan.id, "job_id": view.id, "state": "RUNNING", "finished": False}
    assert await rows(engine, read) == [
        shape | {"actor_id": scan.actors[0].id, "vnodes": [[0, 3]], "consumed_rows": 2},
        shape | {"actor_id": scan.actors[1].id, "vnodes": [[4, 7]], "consumed_rows": 0},
    ]
    (event,) = await rows(engine, "select * from rw_catalog.rw_event_logs")
    assert event == {"unique_id": "1", "timestamp": NOW, "event_type": "JOB_CREATED", "info": {"job": 7}}
    with pytest.raises(Exception, match="events are only appended"):
        async with engine.begin() as connection:
            await connection.execute(text("update tidefill.event set kind = 'nothing'"))


async def test_a_login_without_rights_on_the_meta_store_reads_the_views_and_nothing_else(
    opened: Opened, database_url: str
) -> None:
    _, engine = opened
    async with engine.begin() as connection:
        for statement in (
            "create role catalog_reader login password 'few'",
            "grant usage on schema rw_catalog to catalog_reader",
            "grant select on all tables in schema rw_catalog to catalog_reader",
        ):
            await connection.execute(text(statement))
    url = engine.url.set(drivername="postgresql", username="catalog_reader", password="few")
    reader = connect(url.render_as_string(hide_password=False), application_name="reader")
    try:
        names = await rows(
            engine, "select relname from pg_class where relnamespace = 'rw_catalog'::regnamespace and relkind = 'v'"
        )
        assert len(names) > 10
        for name in names:
            await rows(reader, f"select * from rw_catalog.{name['relname']}")
        await rows(reader, "select rw_catalog.rw_recovery_status()")
        with pytest.raises(Exception, match="permission denied for schema tidefill"):
            await rows(reader, "select * from tidefill.job")
    finally:
        await reader.dispose()
        async with engine.begin() as connection:
            await connection.execute(text("drop owned by catalog_reader"))
            await connection.execute(text("drop role catalog_reader"))


async def test_no_view_shows_what_could_hold_a_secret(opened: Opened) -> None:
    _, engine = opened
    shown = await rows(
        engine,
        "select distinct table_name, column_name from information_schema.view_column_usage"
        " where view_schema = 'rw_catalog' and table_schema = 'tidefill'"
        # It reads the ids of relations out of a query, and no text.
        " and (view_name, column_name) <> ('rw_fragment_backfill_progress', 'query')",
    )
    tables = {row["table_name"] for row in shown}
    columns = {(row["table_name"], row["column_name"]) for row in shown}
    assert "job" in tables
    assert not tables & {"secret", "idempotency_key", "statement", "request", "leader_lease"}
    assert not columns & {("barrier", "payload"), ("barrier", "answer"), ("fragment", "query")}


async def test_f7_inputs_that_are_looked_up_are_complete_from_the_start(opened: Opened) -> None:
    """And a scan never shows more rows than its total."""
    stores, engine = opened
    async with stores.begin() as tx:
        left, right = [(await add_created(tx, new_table(name))).relation for name in "ab"]
        view = await add_creating(tx, new_stages(left, right))
        await tx.fragments.record([collected(10, keys={left: 4})], now=NOW)
    scan = await scan_of(stores, view.id)
    async with stores.begin() as tx:
        told = report(scan.actors[0].id, scan.id, 3)
        await tx.fragments.record([collected(20, told, keys={left: -2})], now=NOW)
    shown = "select upstream_table_name, progress, kind from rw_catalog.rw_fragment_backfill_progress"
    found = {tuple(row.values()) for row in await rows(engine, shown)}
    assert found >= {("public.a", "100.00% (3/3)", "scan"), ("public.b", "100% (0/0)", "lookup")}
