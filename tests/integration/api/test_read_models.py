"""What the lists and details show of a meta store in a known state."""

import asyncio
import hashlib
import json
from dataclasses import asdict, replace
from datetime import timedelta
from typing import Any

import httpx
import pytest
from sqlalchemy import text

from service.api.routes.events import stream
from service.domain.adaptive import START, Adaptation, Move
from service.domain.epochs import following
from service.domain.job import JobEvent
from service.domain.launching import Hold, Launch
from service.domain.parameters import SystemParameters
from service.meta_store.stores import PostgresStores
from service.operations import idempotency
from service.ports.limits import Look
from service.ports.records import Claim
from service.protocol.ids import DATABASE_GRAPH, Epoch, WorkerId
from service.protocol.mutation import Pause, StartFragmentBackfill, Throttle, Update
from tests.support.http import StillClock, doors, refused, world_of
from tests.support.meta_store import (
    NOW,
    add_created,
    add_creating,
    at,
    barrier,
    collected,
    done,
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


async def backfilled(stores: PostgresStores) -> None:
    """A table of 200 rows, a view over it that has read 60 of them, at a published epoch 20."""
    table, view = await table_and_view(stores)
    scan = await scan_of(stores, view.id)
    await running(stores)
    first, second = scan.actors
    for epoch, rows in ((10, 20), (20, 60)):
        await inject(stores, barrier(epoch, epoch - 10))
        answer = collected(
            epoch,
            report(first.id, scan.id, rows, at(0, "k", "1", rows=rows - 5), done(1, rows=5)),
            report(second.id, scan.id, 0),
            keys={table.relation: 100, view.relation: rows // 2},
        )
        async with stores.begin() as tx:
            await tx.barriers.answer(answer, now=NOW)
        async with stores.begin() as tx:
            await tx.fragments.record([answer], now=NOW)
            await tx.barriers.commit(DATABASE_GRAPH, Epoch(epoch), now=NOW)
            await tx.visibility.publish(DATABASE_GRAPH, Epoch(epoch), now=NOW)


async def test_a_job_shows_its_fragments_actors_and_positions(http: httpx.AsyncClient, stores: PostgresStores) -> None:
    await backfilled(stores)
    (table, view) = (await http.get("/v1/jobs")).json()["items"]
    shown = (await http.get(f"/v1/jobs/{view['id']}")).json()
    assert shown["job"] == view
    assert view["progress"]["text"] == "30.00% (60/200)"
    assert (view["progress"]["rows"], view["progress"]["total"], view["progress"]["phase"]) == (60, 200, "backfilling")
    (scan,) = shown["fragments"]
    assert (scan["kind"], scan["upstream"], scan["rows"], scan["total"]) == ("STREAM_SCAN", "t", 60, 200)
    assert scan["positions"] == {"not_started": 6, "in_progress": 1, "completed": 1, "rows": 60}
    assert [actor["vnodes"] for actor in scan["actors"]] == [[[0, 3]], [[4, 7]]]
    assert [actor["positions"]["not_started"] for actor in scan["actors"]] == [2, 4]
    (dml,) = (await http.get(f"/v1/jobs/{table['id']}")).json()["fragments"]
    assert dml["positions"] == {"not_started": 0, "in_progress": 0, "completed": 0, "rows": 0}
    assert (await http.get(f"/v1/fragments/{scan['id']}")).json() == scan


async def test_nothing_is_created_before_it_can_be_read(http: httpx.AsyncClient, stores: PostgresStores) -> None:
    """An epoch is committed first and published a moment later."""
    await running(stores)
    async with stores.begin() as tx:
        created = await add_created(tx, new_table("t"))
    early = (await http.get(f"/v1/jobs/{created.id}")).json()["job"]
    assert (early["state"], early["progress"]["phase"]) == ("Creating", "starting")
    assert [job["state"] for job in (await http.get("/v1/jobs")).json()["items"]] == ["Creating"]
    async with stores.begin() as tx:
        await tx.visibility.publish(DATABASE_GRAPH, Epoch(0), now=NOW)
    assert (await http.get(f"/v1/jobs/{created.id}")).json()["job"]["state"] == "Created"


async def test_progress_has_the_string_and_the_numbers(http: httpx.AsyncClient, stores: PostgresStores) -> None:
    await backfilled(stores)
    (shown,) = (await http.get("/v1/ddl-progress")).json()["items"]
    assert shown["progress"] == "30.00% (60/200)"
    assert (shown["create_type"], shown["backfill_type"]) == ("BACKGROUND", "NORMAL_BACKFILL")
    assert (shown["rows"], shown["total"], shown["percent"]) == (60, 200, 30.0)
    assert shown["waiting_for"] is None
    (fragment,) = (await http.get("/v1/fragment-backfill-progress")).json()["items"]
    assert (fragment["job_name"], fragment["upstream_table_name"]) == ("public.m", "public.t")
    assert fragment["progress"] == "30.00% (60/200)"
    async with stores.begin() as tx:
        await tx.graphs.set_paused(DATABASE_GRAPH, paused=True, now=NOW)
    assert (await http.get("/v1/ddl-progress")).json()["items"][0]["waiting_for"] == "paused"


async def test_why_a_job_waits_and_since_when(http: httpx.AsyncClient, stores: PostgresStores) -> None:
    await backfilled(stores)
    (_, view) = (await http.get("/v1/jobs")).json()["items"]

    async def waiting(clock: StillClock) -> dict[str, Any] | None:
        async with doors(stores, clock=clock) as opened:
            listed = (await opened.get("/v1/jobs")).json()["items"][1]["waiting"]
            assert (await opened.get("/v1/ddl-progress")).json()["items"][0]["waiting"] == listed
            assert (await opened.get(f"/v1/jobs/{view['id']}")).json()["job"]["waiting"] == listed
        return listed

    clock, later = StillClock(), StillClock(NOW + timedelta(seconds=7))
    assert await waiting(clock) is None
    async with stores.begin() as tx:
        await tx.graphs.set_paused(DATABASE_GRAPH, paused=True, now=NOW)
        await tx.graphs.set_paused(DATABASE_GRAPH, paused=True, now=NOW + timedelta(hours=1))
    paused = {"reason": "pause", "text": "every backfill is paused", "since": "2026-01-02T03:04:05Z", "until": None}
    assert await waiting(clock) == paused, "since it was paused first"
    async with stores.begin() as tx:
        await tx.graphs.set_paused(DATABASE_GRAPH, paused=False, now=NOW)
        scan = (await tx.fragments.scans([view["id"]]))[view["id"]][0].fragment
        await tx.limits.put({scan: 0}, auto=(), epoch=following(Epoch(0), now=NOW - timedelta(seconds=2)))
    assert await waiting(clock) == {
        "reason": "backfill_rate_limit",
        "text": "its history is paused: backfill_rate_limit is 0",
        "since": "2026-01-02T03:04:03Z",
        "until": None,
    }
    await inject(stores, barrier(30, 20))
    overdue = await waiting(later)
    assert overdue is not None
    actors = ", ".join(str(actor.id) for actor in (await scan_of(stores, view["id"])).actors)
    assert overdue["text"].startswith(f"the worker still computes epoch 30: actors {actors}")
    assert (overdue["since"], overdue["until"]) == ("2026-01-02T03:04:05Z", "2026-01-02T03:09:05Z")
    gone = await waiting(StillClock(NOW + timedelta(seconds=11)))
    assert gone is not None
    assert gone["reason"] == "worker"


async def test_a_job_shows_its_order_and_what_waits(http: httpx.AsyncClient, stores: PostgresStores) -> None:
    async with stores.begin() as tx:
        a, b = [(await add_created(tx, new_table(name))).relation for name in "ab"]
        view = await add_creating(tx, new_view("m", a, b, order=((a, b),)))
    shown = (await http.get(f"/v1/jobs/{view.id}")).json()
    assert shown["backfill_order"] == [["a", "b"]]
    assert [one["waits_for"] for one in shown["fragments"]] == [[], ["a"]]
    (listed,) = (await http.get("/v1/ddl-progress")).json()["items"]
    assert [(one["upstream"], one["waits_for"]) for one in listed["waits"]] == [("b", ["a"])]
    assert listed["waiting"]["reason"] == "start", "no generation has begun"


async def test_every_vnode_shows_how_far_it_is(http: httpx.AsyncClient, stores: PostgresStores) -> None:
    await backfilled(stores)
    (table, view) = (await http.get("/v1/jobs")).json()["items"]
    (dml,), (scan,) = [(await http.get(f"/v1/jobs/{job['id']}")).json()["fragments"] for job in (table, view)]
    first = (await http.get(f"/v1/fragments/{scan['id']}/vnodes?limit=3")).json()
    actor = scan["actors"][0]["id"]
    assert first == {
        "items": [
            {"vnode": 0, "actor": actor, "state": "in_progress", "key": ["k", "1"], "rows": 55},
            {"vnode": 1, "actor": actor, "state": "completed", "key": None, "rows": 5},
            {"vnode": 2, "actor": actor, "state": "not_started", "key": None, "rows": 0},
        ],
        "next": "3",
    }
    rest = (await http.get(f"/v1/fragments/{scan['id']}/vnodes?after=3")).json()
    assert [one["vnode"] for one in rest["items"]] == [3, 4, 5, 6, 7]
    assert (rest["next"], rest["items"][-1]["actor"]) == (None, scan["actors"][1]["id"])
    async with stores.begin() as tx:
        await tx.jobs.hold_all([view["id"]])
        held = await asyncio.wait_for(http.get(f"/v1/fragments/{scan['id']}/vnodes?after=3"), 10)
    assert held.json() == rest, "a reader waits for no commit, and delays none"
    refused(await http.get(f"/v1/fragments/{dml['id']}/vnodes"), 422, "invalid")
    refused(await http.get("/v1/fragments/999/vnodes"), 404, "not-found")


async def test_a_queued_job_shows_its_place_on_every_page(http: httpx.AsyncClient, stores: PostgresStores) -> None:
    async with stores.begin() as tx:
        table = await add_created(tx, new_table("t"))
        queued = [await tx.jobs.add(new_view(f"m{number}", table.relation), now=NOW) for number in range(3)]
        for job in queued:
            await tx.jobs.move(job.id, JobEvent.QUEUED, now=NOW)
    assert [job["queue_place"] for job in (await http.get("/v1/ddl-progress")).json()["items"]] == [1, 2, 3]
    page = (await http.get(f"/v1/jobs?after={queued[1].id}")).json()
    assert "place 3" in page["items"][0]["progress"]["waiting_for"]
    assert "place 2" in (await http.get(f"/v1/jobs/{queued[1].id}")).json()["job"]["progress"]["waiting_for"]


async def test_a_list_of_jobs_is_read_page_by_page(http: httpx.AsyncClient, stores: PostgresStores) -> None:
    async with stores.begin() as tx:
        jobs = [await add_created(tx, new_table(f"t{number}")) for number in range(5)]
        creating = await add_creating(tx, new_view("m", jobs[0].relation))
    seen: list[int] = []
    cursor: str | None = "0"
    while cursor is not None:
        page = (await http.get(f"/v1/jobs?limit=2&after={cursor}")).json()
        assert len(page["items"]) <= 2
        seen += [job["id"] for job in page["items"]]
        cursor = page["next"]
    assert seen == [job.id for job in (*jobs, creating)]
    only = (await http.get("/v1/jobs?state=Creating&state=Queued")).json()["items"]
    assert [job["id"] for job in only] == [creating.id]
    names = [relation["name"] for relation in (await http.get("/v1/relations?limit=3")).json()["items"]]
    assert names == ["t0", "t1", "t2"]


async def test_a_relation_shows_what_its_user_sees(http: httpx.AsyncClient, stores: PostgresStores) -> None:
    await backfilled(stores)
    shown = (await http.get("/v1/relations/m")).json()
    assert [column["name"] for column in shown["columns"]] == ["id", "name", "price", "tags"]
    assert (shown["key"], shown["upstreams"], shown["readable"]) == (["name", "id"], ["t"], False)
    refused(await http.get("/v1/relations/nope"), 404, "not-found")


async def test_barriers_tell_their_latency(http: httpx.AsyncClient, stores: PostgresStores) -> None:
    await backfilled(stores)
    page = (await http.get("/v1/barriers?limit=1")).json()
    (newest,) = page["items"]
    assert (newest["epoch"], newest["prev"], newest["latency_ms"]) == ("20", "10", 0.0)
    older = (await http.get(f"/v1/barriers?limit=1&before={page['next']}")).json()
    assert [one["epoch"] for one in older["items"]] == ["10"]
    assert older["next"] is None


async def test_a_command_is_queued_then_applied(http: httpx.AsyncClient, stores: PostgresStores) -> None:
    await running(stores)
    answer = (await http.post("/v1/mutations", json={"type": "pause"})).json()
    assert answer["epoch"] is None
    shown = (await http.get(f"/v1/mutations/{answer['command']}")).json()
    assert (shown["type"], shown["state"], shown["epoch"]) == ("pause", "queued", None)
    await inject(stores, barrier(10, mutation=Pause()), answer["command"])
    async with stores.begin() as tx:
        await tx.barriers.answer(collected(10), now=NOW)
        await tx.commands.finish([answer["command"]], epoch=Epoch(10))
        await tx.barriers.commit(DATABASE_GRAPH, Epoch(10), now=NOW)
    # Committed is not yet shown: only a published epoch is acknowledged.
    assert (await http.get(f"/v1/mutations/{answer['command']}")).json()["state"] == "queued"
    async with stores.begin() as tx:
        await tx.visibility.publish(DATABASE_GRAPH, Epoch(10), now=NOW)
    shown = (await http.get(f"/v1/mutations/{answer['command']}")).json()
    assert (shown["state"], shown["epoch"]) == ("applied", "10")


async def test_a_throttle_reaches_the_scans_of_the_job(http: httpx.AsyncClient, stores: PostgresStores) -> None:
    table, view = await table_and_view(stores)
    scan = await scan_of(stores, view.id)
    answer = (await http.post(f"/v1/jobs/{view.id}/pause?wait=queued")).json()
    await http.patch(f"/v1/fragments/{scan.id}?wait=queued", json={"backfill_rate_limit": 9})
    async with stores.begin() as tx:
        first, second = await tx.commands.waiting(DATABASE_GRAPH)
    assert (first.id, first.mutation) == (answer["command"], Throttle(fragments={scan.id: 0}))
    assert second.mutation == Throttle(fragments={scan.id: 9})
    refused(await http.post(f"/v1/jobs/{table.id}/pause?wait=queued"), 422, "invalid")
    refused(await http.post("/v1/jobs/999/pause"), 404, "not-found")
    refused(await http.patch("/v1/fragments/999", json={"backfill_rate_limit": 1}), 404, "not-found")


async def test_u5_a_pause_of_what_has_read_its_history_says_so(http: httpx.AsyncClient, stores: PostgresStores) -> None:
    _, view = await table_and_view(stores)
    path, limit = f"/v1/jobs/{view.id}", {"backfill_rate_limit": 9}
    assert (await http.post(f"{path}/pause?wait=queued")).json()["notice"] is None
    scan = await scan_of(stores, view.id)
    async with stores.begin() as tx:
        told = [report(actor.id, scan.id, 1, finished=True) for actor in scan.actors]
        await tx.fragments.record([collected(10, *told)], now=NOW)
        await tx.jobs.move(view.id, JobEvent.FINISHED, now=NOW)
    for answer in (await http.post(f"{path}/pause?wait=queued"), await http.patch(f"{path}?wait=queued", json=limit)):
        assert answer.json()["notice"].startswith("m has read its history, so nothing is paused or limited")


async def test_a_scan_says_for_which_relations_it_waits_and_is_started_by_hand(
    http: httpx.AsyncClient, stores: PostgresStores
) -> None:
    async with stores.begin() as tx:
        a, b, c = [(await add_created(tx, new_table(name))).relation for name in "abc"]
        view = await add_creating(tx, new_view("m", a, b, c, order=((a, c), (b, c))))
        table = await add_created(tx, new_table("t"))
    (dml,), scans = [(await http.get(f"/v1/jobs/{job.id}")).json()["fragments"] for job in (table, view)]
    assert [(scan["waiting"], scan["waits_for"]) for scan in scans] == [(False, []), (False, []), (True, ["a", "b"])]
    shown = (await http.get("/v1/fragment-backfill-progress")).json()["items"]
    assert [(scan["waiting"], scan["waits_for"]) for scan in shown] == [(False, []), (False, []), (True, ["a", "b"])]
    last = scans[2]["id"]
    answer = (await http.post(f"/v1/fragments/{last}/start-backfill?wait=queued")).json()
    assert answer["epoch"] is None
    await http.post(f"/v1/jobs/{view.id}/start-backfill?wait=queued")
    async with stores.begin() as tx:
        first, second = await tx.commands.waiting(DATABASE_GRAPH)
    assert (first.id, first.mutation) == (answer["command"], StartFragmentBackfill(fragments=(last,)))
    assert second.mutation == StartFragmentBackfill(fragments=tuple(scan["id"] for scan in scans))
    for path, status, kind, detail in (
        ("jobs/999", 404, "not-found", "job 999 not found"),
        ("fragments/999", 404, "not-found", "fragment 999 not found"),
        (f"fragments/{dml['id']}", 422, "invalid", f"fragment {dml['id']} is not a backfill node"),
        (f"jobs/{table.id}", 422, "invalid", "stream scan node or source node not found"),
    ):
        assert refused(await http.post(f"/v1/{path}/start-backfill"), status, kind)["detail"] == detail


async def test_a_job_is_altered_in_one_call(http: httpx.AsyncClient, stores: PostgresStores) -> None:
    """What is left out stays; the acknowledgement is of the last change."""
    _, view = await table_and_view(stores)
    scan = await scan_of(stores, view.id)
    path = f"/v1/jobs/{view.id}"
    both = {"backfill_parallelism": 3, "backfill_rate_limit": 9}
    answer = (await http.patch(f"{path}?wait=queued", json=both)).json()
    async with stores.begin() as tx:
        update, throttle = await tx.commands.waiting(DATABASE_GRAPH)
    assert isinstance(update.mutation, Update)
    assert len(update.mutation.fragments[scan.id]) == 3
    assert (throttle.id, throttle.mutation) == (answer["command"], Throttle(fragments={scan.id: 9}))
    await http.patch(f"{path}?wait=queued", json={"parallelism": "bounded(4)"})
    job = (await http.get(path)).json()["job"]
    assert (job["parallelism"], job["backfill_parallelism"]) == ("bounded(4)", "fixed(3)")
    await http.patch(f"{path}?wait=queued", json={"parallelism": None, "backfill_parallelism": "default"})
    job = (await http.get(path)).json()["job"]
    assert (job["parallelism"], job["backfill_parallelism"]) == ("adaptive", None)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"parallelism": 0},
        {"parallelism": 9},
        {"parallelism": 32769},
        {"parallelism": "many"},
        {"parallelism": "bounded(0)"},
        {"parallelism": 1.0},
        {"backfill_parallelism": 9},
        {"parallelism": 1, "more": 1},
    ],
    ids=str,
)
async def test_a_parallelism_that_cannot_be_is_refused(
    http: httpx.AsyncClient, stores: PostgresStores, body: dict[str, object]
) -> None:
    _, view = await table_and_view(stores)
    refused(await http.patch(f"/v1/jobs/{view.id}?wait=queued", json=body), 422, "invalid")
    async with stores.begin() as tx:
        assert await tx.commands.waiting(DATABASE_GRAPH) == []


async def test_an_update_is_made_by_the_service_alone(http: httpx.AsyncClient, stores: PostgresStores) -> None:
    _, view = await table_and_view(stores)
    scan = await scan_of(stores, view.id)
    lossy = {"type": "update", "fragments": {str(scan.id): [{"id": 99, "vnodes": [[0, 6]]}]}}
    refused(await http.post("/v1/mutations", json=lossy), 422, "invalid")


async def test_waiting_for_a_job_ends_with_its_end(http: httpx.AsyncClient, stores: PostgresStores) -> None:
    _, view = await table_and_view(stores)
    refused(await http.post(f"/v1/jobs/{view.id}/wait?timeout_seconds=3"), 503, "unavailable")
    async with stores.begin() as tx:
        await tx.jobs.move(view.id, JobEvent.FAILED, now=NOW, error="a bad row")
    problem = refused(await http.post(f"/v1/jobs/{view.id}/wait"), 409, "conflict")
    assert "a bad row" in problem["detail"]
    refused(await http.post(f"/v1/jobs/{view.id}/cancel"), 409, "conflict")


async def test_parameters_are_set_all_or_none(http: httpx.AsyncClient) -> None:
    before = (await http.get("/v1/system-parameters")).json()
    assert before == asdict(SystemParameters())
    bad = {"barrier_interval_ms": 500, "checkpoint_frequency": 0}
    assert (
        refused(await http.patch("/v1/system-parameters", json=bad), 422, "invalid")["pointer"]
        == "checkpoint_frequency"
    )
    refused(await http.patch("/v1/system-parameters", json={"barrier_interval_ms": 500, "x": 1}), 404, "not-found")
    assert (await http.get("/v1/system-parameters")).json() == before
    changed = (await http.patch("/v1/system-parameters", json={"barrier_interval_ms": 500})).json()
    assert changed == {**before, "barrier_interval_ms": 500}
    assert (await http.patch("/v1/system-parameters", json={"barrier_interval_ms": "default"})).json() == before


async def test_what_is_secret_in_a_probe_is_shown_nowhere(
    http: httpx.AsyncClient, stores: PostgresStores, database_url: str
) -> None:
    """A password, a token: not in an answer, an event, a catalog, the answer kept for a repeated call, or a refusal."""
    name, url = "backfill_auto_probe_http", "http://Somebody:hunter2@Host:80/Live?token=sesame"
    shown = "http://***@Host:80/Live?***"
    said = [await http.patch("/v1/system-parameters", json={name: url}, headers={"Idempotency-Key": "k"})]
    assert said[0].json()[name] == shown
    said.append(await http.get("/v1/system-parameters"))
    for statement in (f"ALTER SYSTEM SET {name} = '{url}'", "SHOW PARAMETERS"):
        said.append(await http.post("/v1/sql", json={"sql": statement}))
        assert said[-1].status_code == 200, said[-1].text
    said.append(await http.patch("/v1/system-parameters", json={name: f"{url} {url}"}))
    said.append(await http.post("/v1/sql", json={"sql": f"ALTER SYSTEM SET {name} = '{url} {url}'"}))
    said.append(await http.patch("/v1/system-parameters", json={name: url * 100}))
    assert [answer.status_code for answer in said[-3:]] == [422] * 3
    said.append(await http.get("/v1/events", headers={"Accept": "application/json"}))
    assert "parameters.altered" in said[-1].text
    told = "".join(answer.text for answer in said)
    async with stores_on(database_url) as (_, engine), engine.connect() as connection:
        tables = "select tablename from pg_tables where schemaname = 'tidefill' and tablename <> 'secret'"
        for table in list((await connection.execute(text(tables))).scalars()):
            told += str((await connection.execute(text(f"select * from tidefill.{table}"))).all())
    assert shown in told
    for secret in ("hunter2", "sesame", "Somebody"):
        assert secret not in told, secret
    async with stores.begin() as tx:
        assert await tx.parameters.secret(name) == url
    assert (await http.patch("/v1/system-parameters", json={name: "default"})).json()[name] == ""
    async with stores.begin() as tx:
        assert await tx.parameters.secret(name) == ""


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("backfill_auto_probe_http", "somewhere"),
        ("backfill_auto_probe_sql", "delete from t"),
        ("backfill_auto_probe_sql", "select 1; select 2"),
        ("backfill_auto_probe_sql", "select" + " " * 2_000 + "1"),
        ("backfill_auto_floor", "2000000"),
    ],
)
async def test_a_probe_or_bound_that_is_none_is_refused(http: httpx.AsyncClient, name: str, value: str) -> None:
    before = (await http.get("/v1/system-parameters")).json()
    assert before == asdict(SystemParameters())
    problem = refused(await http.patch("/v1/system-parameters", json={name: value}), 422, "invalid")
    assert name in problem["pointer"]
    quoted = value.replace("'", "''")
    refused(await http.post("/v1/sql", json={"sql": f"ALTER SYSTEM SET {name} = '{quoted}'"}), 422, "invalid")
    assert (await http.get("/v1/system-parameters")).json() == before


async def test_a_limit_is_adapted_on_request(http: httpx.AsyncClient, stores: PostgresStores) -> None:
    await backfilled(stores)
    _, view = (await http.get("/v1/jobs")).json()["items"]
    scan = (await http.get(f"/v1/jobs/{view['id']}")).json()["fragments"][0]
    assert scan["auto"] is None
    by_job = await http.patch(f"/v1/jobs/{view['id']}?wait=queued", json={"backfill_rate_limit": "auto"})
    by_scan = await http.patch(f"/v1/fragments/{scan['id']}?wait=queued", json={"backfill_rate_limit": "auto"})
    assert (by_job.status_code, by_scan.status_code) == (200, 200)
    refused(await http.patch(f"/v1/jobs/{view['id']}", json={"backfill_rate_limit": "fast"}), 422, "invalid")
    unlimited = {"type": "throttle", "fragments": {str(scan["id"]): None}, "auto": [scan["id"]]}
    refused(await http.post("/v1/mutations", json=unlimited), 422, "invalid")
    async with stores.begin() as tx:
        first, second = [command.mutation for command in await tx.commands.waiting(DATABASE_GRAPH)]
        assert first == Throttle(fragments={scan["id"]: START}, auto=(scan["id"],))
        assert second == Throttle(fragments={}), "it is adapted already, once the first is carried"
        await tx.limits.put({scan["id"]: START}, auto=[scan["id"]], epoch=Epoch(30))
    (progress,) = (await http.get("/v1/ddl-progress")).json()["items"]
    assert progress["waiting_for"] == f"throttled to {START} (auto) rows/s per actor"
    (shown,) = progress["auto"]
    assert (shown["fragment"], shown["upstream"], shown["rate_limit"]) == (scan["id"], "t", START)
    assert (shown["limit"]["phase"], shown["limit"]["effective_epoch"]) == ("slow start", "30")
    assert (await http.get(f"/v1/fragments/{scan['id']}")).json()["auto"] == shown["limit"]


async def test_the_history_of_a_limit_is_read_page_by_page(http: httpx.AsyncClient, stores: PostgresStores) -> None:
    await backfilled(stores)
    _, view = (await http.get("/v1/jobs")).json()["items"]
    async with stores.begin() as tx:
        scan = (await tx.fragments.scans([view["id"]]))[view["id"]][0].fragment
        await tx.limits.put({scan: START}, auto=[scan], epoch=Epoch(20))
        for asked in range(1, 6):
            (adapted,) = await tx.adaptations.adapted(DATABASE_GRAPH)
            look = Look(adapted, Adaptation(asked), Epoch(20), Move.LOWERED, None, "a test", (), asked=asked)
            await tx.adaptations.record([look], now=NOW)
    seen: list[int] = []
    page = (await http.get(f"/v1/jobs/{view['id']}/limit-history?limit=2")).json()
    while True:
        seen += [change["after"] for change in page["items"]]
        if page["next"] is None:
            break
        page = (await http.get(f"/v1/jobs/{view['id']}/limit-history?limit=2&before={page['next']}")).json()
    assert seen == [5, 4, 3, 2, 1]
    refused(await http.get("/v1/jobs/999/limit-history"), 404, "not-found")


async def test_events_are_listed_and_streamed_from_where_a_client_left(
    http: httpx.AsyncClient, stores: PostgresStores
) -> None:
    async with stores.begin() as tx:
        for number in range(3):
            await tx.events.append("thing.happened", {"number": number}, now=NOW)
    listed = (await http.get("/v1/events?limit=2", headers={"Accept": "application/json"})).json()
    assert [event["facts"]["number"] for event in listed["items"]] == [0, 1]
    rest = await http.get(f"/v1/events?after={listed['next']}", headers={"Accept": "application/json"})
    assert [event["facts"]["number"] for event in rest.json()["items"]] == [2]
    assert rest.json()["next"] is None


async def test_a_stream_goes_on_where_it_was_left_and_keeps_the_connection(stores: PostgresStores) -> None:
    async with stores.begin() as tx:
        for number in range(3):
            await tx.events.append("thing.happened", {"number": number}, now=NOW)
    admitted = True

    async def is_admitted() -> bool:
        return admitted

    frames = stream(world_of(stores), 1, is_admitted, discreet=True)
    assert await anext(frames) == ": connected\n\n"
    first, second = (await anext(frames)).removesuffix("\n\n").split("\n\n")
    assert first.startswith("id: 2\nevent: thing.happened\ndata: {")
    assert second.startswith("id: 3\n")
    assert json.loads(second.partition("data: ")[2])["facts"] == {"number": 2}
    assert await anext(frames) == ": still here\n\n"
    async with stores.begin() as tx:
        await tx.events.append("thing.happened", {"number": 3}, now=NOW)
    assert (await anext(frames)).startswith("id: 4\n")
    admitted = False
    assert [frame async for frame in frames] == [], "it ends with the token of its caller"


async def test_metrics_are_read_from_the_meta_store(http: httpx.AsyncClient, stores: PostgresStores) -> None:
    await backfilled(stores)
    page = (await http.get("/metrics")).text
    assert 'tidefill_jobs{state="Creating"} 1.0' in page
    assert "tidefill_workers_alive 1.0" in page
    assert "tidefill_graph_running 1.0" in page
    assert 'backfill_progress="30.0000% (60/200)"' in page
    assert 'backfill_target_relation_name="m"' in page


async def test_a_worker_that_does_not_start_is_measured(http: httpx.AsyncClient, stores: PostgresStores) -> None:
    asked = Launch(WorkerId("w-1"), DATABASE_GRAPH, 1, NOW - timedelta(minutes=9))
    held = Hold("image", "the image is not found", NOW - timedelta(minutes=7))
    async with stores.begin() as tx:
        await tx.launches.put(replace(asked, held=held))
        await tx.launches.put(replace(asked, worker=WorkerId("w-2"), attempt=2))
    assert 'tidefill_worker_held_up_seconds{cause="image",graph="1"} 420.0' in (await http.get("/metrics")).text
    async with stores.begin() as tx:
        await tx.launches.put(replace(asked, posted_at=NOW))
    assert "tidefill_worker_held_up_seconds{" not in (await http.get("/metrics")).text


async def test_a_key_makes_a_call_happen_once(http: httpx.AsyncClient, stores: PostgresStores) -> None:
    key = {"Idempotency-Key": "k"}
    first = await http.post("/v1/mutations", json={"type": "pause"}, headers=key)
    again = await http.post("/v1/mutations", json={"type": "pause"}, headers=key)
    assert (again.status_code, again.json()) == (200, first.json())
    async with stores.begin() as tx:
        assert len(await tx.commands.waiting(DATABASE_GRAPH)) == 1
    refused(await http.post("/v1/mutations", json={"type": "resume"}, headers=key), 409, "conflict")
    refused(await http.post("/v1/mutations?wait=applied", json={"type": "pause"}, headers=key), 409, "conflict")
    refused(await http.post("/v1/recover", headers=key), 409, "conflict")
    async with stores.begin() as tx:
        assert len(await tx.commands.waiting(DATABASE_GRAPH)) == 1


async def test_a_call_that_failed_frees_its_key(http: httpx.AsyncClient) -> None:
    key = {"Idempotency-Key": "k"}
    refused(await http.post("/v1/jobs/999/pause", headers=key), 404, "not-found")
    assert (await http.post("/v1/mutations", json={"type": "pause"}, headers=key)).status_code == 200


async def test_the_key_of_a_call_whose_process_died_is_free_once_nobody_holds_it(stores: PostgresStores) -> None:
    """The claim of a call that lives is renewed instead: its repetition is refused for as long as it runs."""
    clock = StillClock()
    path, body = "/v1/mutations", b'{"type":"pause"}'
    fingerprint = hashlib.sha256(f"POST {path}?\n".encode() + body).hexdigest()
    async with stores.begin() as tx:
        claim = await tx.keys.claim("k", fingerprint, now=clock.now(), hold=idempotency.HOLD)
    assert isinstance(claim, Claim)
    world = world_of(stores, clock=clock, claims={claim})
    headers = {"Idempotency-Key": "k", "Content-Type": "application/json"}
    async with doors(stores, clock=clock) as http:
        for _ in range(4):
            refused(await http.post(path, content=body, headers=headers), 409, "conflict")
            clock.wall += idempotency.RENEW_EVERY
            await idempotency.renew(world)
        clock.wall += idempotency.HOLD
        assert (await http.post(path, content=body, headers=headers)).status_code == 200


async def test_every_answer_is_json_that_others_can_read(http: httpx.AsyncClient, stores: PostgresStores) -> None:
    """Epochs travel as text: as numbers most readers would round them."""
    await backfilled(stores)
    for path in ("/v1/graphs", "/v1/barriers"):
        text = (await http.get(path)).text
        assert '"20"' in json.dumps(json.loads(text))


async def test_u8_a_job_is_called_by_the_name_of_what_it_creates(
    http: httpx.AsyncClient, stores: PostgresStores
) -> None:
    table, view = await table_and_view(stores)
    for name, job in (("t", table), ("m", view)):
        assert (await http.get(f"/v1/jobs/{name}")).json()["job"]["id"] == job.id
        assert (await http.get(f"/v1/jobs/{name}/limit-history")).json() == {"items": [], "next": None}
    refused(await http.get("/v1/jobs/nowhere"), 404, "not-found")
    refused(await http.post("/v1/jobs/nowhere/cancel"), 404, "not-found")
