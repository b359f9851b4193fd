"""The worker's side: it registers, polls, answers, and is told when it is of the past."""

import json
from datetime import timedelta
from typing import Any

import httpx
import pytest

from service.domain.graph import Abandon, GraphStatus
from service.domain.job import JobState
from service.meta_store.stores import PostgresStores
from service.operations.barriers import advance
from service.protocol.barrier import Barrier
from service.protocol.ids import COUNT_MAX, DATABASE_GRAPH, WorkerId
from service.protocol.report import Failed
from tests.support.http import WORKER_TOKEN, refused, world_of
from tests.support.meta_store import (
    NOW,
    WORKER,
    barrier,
    collected,
    inject,
    registration,
    report,
    running,
    scan_of,
    table_and_view,
)

pytestmark = pytest.mark.postgres

PATH = f"/internal/v1/workers/{WORKER}"


@pytest.fixture
def worker(http: httpx.AsyncClient) -> httpx.AsyncClient:
    http.headers["Authorization"] = f"Bearer {WORKER_TOKEN}"
    return http


def sent(value: Any) -> dict[str, Any]:
    return {"content": value.model_dump_json(), "headers": {"Content-Type": "application/json"}}


async def test_a_worker_registers_and_waits(worker: httpx.AsyncClient) -> None:
    registered = await worker.post("/internal/v1/workers", **sent(registration()))
    assert registered.status_code == 200, registered.text
    assert registered.json()["lease_seconds"] == 10
    for question in ("barrier", "request"):
        empty = await worker.get(f"{PATH}/{question}?graph={DATABASE_GRAPH}")
        assert (empty.status_code, empty.content) == (204, b"")


async def test_a_worker_that_leaves_is_relieved_once_its_graph_runs_elsewhere(
    worker: httpx.AsyncClient, stores: PostgresStores
) -> None:
    await running(stores)

    async def leaves() -> bool:
        answer = await worker.post(f"{PATH}/leaving")
        assert answer.status_code == 200, answer.text
        return answer.json()["relieved"]

    assert not await leaves(), "there is nobody else"
    other = registration(WorkerId("another"))
    assert (await worker.post("/internal/v1/workers", **sent(other))).status_code == 200
    assert not await leaves(), "its graph still runs on it"
    async with stores.begin() as tx:
        await tx.graphs.set_status(DATABASE_GRAPH, GraphStatus.RECOVERING, now=NOW)
    assert await leaves()
    async with stores.begin() as tx:
        await tx.workers.leave(other.worker)
    assert not await leaves(), "the other one leaves, too"
    async with stores.begin() as tx:
        await tx.workers.give_up(WORKER)
    refused(await worker.post(f"{PATH}/leaving"), 410, "stale")


async def test_a_worker_of_another_version_is_refused(worker: httpx.AsyncClient) -> None:
    odd = registration().model_copy(update={"version": 99})
    refused(await worker.post("/internal/v1/workers", **sent(odd)), 409, "conflict")


async def test_a_barrier_is_handed_out_and_answered_once(worker: httpx.AsyncClient, stores: PostgresStores) -> None:
    await running(stores)
    injected = await inject(stores, barrier(10))
    handed = await worker.get(f"{PATH}/barrier?graph={DATABASE_GRAPH}")
    assert Barrier.model_validate_json(handed.content) == injected
    for _ in range(2):
        assert (await worker.post(f"{PATH}/answers", **sent(collected(10)))).status_code == 204
    assert (await worker.get(f"{PATH}/barrier?graph={DATABASE_GRAPH}")).status_code == 204


async def test_an_answer_that_takes_rows_back_ends_the_generation(
    worker: httpx.AsyncClient, stores: PostgresStores
) -> None:
    """I6: it says which actor did, is never committed, and fails the job when it comes again and again."""
    _, view = await table_and_view(stores)
    scan = await scan_of(stores, view.id)
    first, second = (actor.id for actor in scan.actors)
    await running(stores)
    async with stores.begin() as tx:
        await tx.fragments.record([collected(5, report(first, scan.id, 60), report(second, scan.id, 9))], now=NOW)
        term = await tx.leases.gain("leader", lease=timedelta(minutes=1))
    assert term is not None
    world = world_of(stores)
    injected = await inject(stores, barrier(10))
    answer = collected(10, report(first, scan.id, 59), report(second, scan.id, 20))
    for _ in range(2):
        assert (await worker.post(f"{PATH}/answers", **sent(answer))).status_code == 204
    effect = await advance.advance(world, DATABASE_GRAPH, term=term)
    said = f"actor {first} of fragment {scan.id} reports 59 rows after 60"
    assert isinstance(effect, Abandon)
    assert (effect.reason, effect.failure and effect.failure.job) == (said, view.id)
    async with stores.begin() as tx:
        state = await tx.graphs.state(DATABASE_GRAPH)
        assert (state.status, state.last_error) == ("RECOVERING", said)
        assert state.generation == injected.generation + 1
        failed = await tx.jobs.get(view.id)
    assert failed is not None
    assert (failed.state, failed.error) == (JobState.FAILED, said)


async def test_who_is_of_the_past_is_told_to_stop(worker: httpx.AsyncClient, stores: PostgresStores) -> None:
    unknown = "/internal/v1/workers/nobody"
    refused(await worker.get(f"{unknown}/barrier"), 410, "stale")
    refused(await worker.get(f"{unknown}/request"), 410, "stale")
    await running(stores)
    await inject(stores, barrier(10))
    refused(await worker.post(f"{PATH}/answers", **sent(collected(10, generation=7))), 410, "stale")
    refused(await worker.post(f"{PATH}/answers", **sent(collected(11))), 410, "stale")
    async with stores.begin() as tx:
        await tx.workers.give_up(WORKER)
    refused(await worker.post(f"{PATH}/answers", **sent(collected(10))), 410, "stale")


async def test_an_answer_for_somebody_else_is_refused(worker: httpx.AsyncClient, stores: PostgresStores) -> None:
    await running(stores)
    await inject(stores, barrier(10))
    refused(await worker.post("/internal/v1/workers/other/answers", **sent(collected(10))), 409, "conflict")


@pytest.mark.parametrize(
    "body",
    [
        '{"type": "reported"',
        '{"type": "odd"}',
        "{}",
        '{"type":"reported","worker":"w-1","graph":1,"generation":0,"epoch":[]}',
    ],
)
async def test_an_answer_that_cannot_be_read_is_refused(worker: httpx.AsyncClient, body: str) -> None:
    headers = {"Content-Type": "application/json"}
    response = await worker.post(f"{PATH}/answers", content=body, headers=headers)
    assert response.status_code in {400, 422}, response.text


TOO_MUCH = 2**63


@pytest.mark.parametrize(
    "told",
    [
        {"graph": TOO_MUCH},
        {"generation": TOO_MUCH},
        {"epoch": str(TOO_MUCH)},
        {"timings_ms": {"epoch": float("inf")}},
        {"timings_ms": {"epoch": float("nan")}},
        {"relations": [{"relation": 1, "key_count_delta": TOO_MUCH}]},
        {"relations": [{"relation": TOO_MUCH, "key_count_delta": 1}]},
        {"reports": [{"kind": "dml", "results": [{"id": 1, "affected": TOO_MUCH}]}]},
        {"reports": [{"kind": "dml", "results": [], "unfinished": {"not_reached": [TOO_MUCH]}}]},
        {"reports": [{"kind": "actor", "actor": 1, "fragment": 1, "rows": TOO_MUCH}]},
        {"reports": [{"kind": "actor", "actor": 1, "fragment": 1, "rows": COUNT_MAX + 1}]},
        {
            "reports": [
                {
                    "kind": "actor",
                    "actor": 1,
                    "fragment": 1,
                    "rows": 1,
                    "positions": [{"vnode": 1 << 15, "state": "completed", "rows": 1}],
                }
            ]
        },
        {"reports": [{"kind": "source", "source": TOO_MUCH, "offset": "0/1"}]},
        {"consumed": str(TOO_MUCH)},
    ],
    ids=str,
)
async def test_what_cannot_be_stored_is_refused_before_anything_is_decided_by_it(
    worker: httpx.AsyncClient, stores: PostgresStores, told: dict[str, Any]
) -> None:
    """I13: an answer that was taken and could not be recorded broke every tick after it."""
    await running(stores)
    await inject(stores, barrier(10))
    body = json.dumps({**collected(10).model_dump(mode="json"), **told})
    headers = {"Content-Type": "application/json"}
    response = await worker.post(f"{PATH}/answers", content=body, headers=headers)
    assert response.status_code == 422, response.text
    assert (await worker.post(f"{PATH}/answers", **sent(collected(10)))).status_code == 204


async def test_an_epoch_that_no_barrier_can_have_is_refused(worker: httpx.AsyncClient) -> None:
    refused(await worker.get(f"{PATH}/barrier?taken=1:{TOO_MUCH}"), 422, "invalid")


async def test_of_many_faults_some_are_named(worker: httpx.AsyncClient) -> None:
    body = json.dumps({**collected(10).model_dump(mode="json"), "reports": [{"kind": "actor"}] * 10_000})
    response = await worker.post(f"{PATH}/answers", content=body, headers={"Content-Type": "application/json"})
    assert response.status_code == 422
    assert len(response.content) < 10_000


@pytest.mark.parametrize(
    "odd", [{"worker": "a b"}, {"worker": ""}, {"host": "x" * 300}, {"parallelism": 0}, {"pid": -1}]
)
async def test_an_odd_worker_does_not_register(worker: httpx.AsyncClient, odd: dict[str, Any]) -> None:
    body = json.dumps({**registration().model_dump(mode="json"), **odd})
    response = await worker.post("/internal/v1/workers", content=body, headers={"Content-Type": "application/json"})
    assert response.status_code == 422, response.text


async def test_a_failure_reaches_the_barrier(worker: httpx.AsyncClient, stores: PostgresStores) -> None:
    await running(stores)
    one = await inject(stores, barrier(10))
    failed = Failed(worker=WORKER, graph=one.graph, generation=one.generation, epoch=one.curr, error="bad\x1b row")
    assert (await worker.post(f"{PATH}/answers", **sent(failed))).status_code == 204
    shown = (await worker.get("/v1/barriers", headers={"Authorization": ""})).json()["items"][0]
    assert shown["failure"] == "bad\x1b row"
