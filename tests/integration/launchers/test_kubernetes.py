"""The workers of a cluster, by the real client over HTTP, and a meta store in memory."""

import threading
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock

import pytest

from service.domain.errors import Deposed, Stale
from service.domain.graph import RollBack
from service.domain.job import JobEvent
from service.domain.launching import KEPT_FOR, Launch
from service.launchers.kubernetes import client as client_module
from service.launchers.kubernetes.client import KubernetesClient
from service.launchers.kubernetes.cluster import KubernetesCluster
from service.operations.barriers.advance import advance
from service.operations.jobs import queue
from service.operations.jobs.standing import standing_of
from service.operations.status.readiness import readiness
from service.operations.status.wait_reasons import waits_of
from service.operations.upkeep.cluster import CHANGING, STEADY, Supervision
from service.operations.world import World
from service.ports.records import Event
from service.ports.state_store import Reader
from service.protocol.ids import DATABASE_GRAPH, GraphId, JobId, Term
from service.protocol.plan import ScanType
from tests.support.fake_meta_store import FakeStores
from tests.support.fake_state_store import FakeFences, FakeTables, StateStore
from tests.support.http import StillClock, world_of
from tests.support.kubernetes_api import FakeApi, Refusal, fake_api
from tests.support.meta_store import LEASE, NOW, add_created, new_table, new_view, registration, running

TEMPLATES, INSTALLATION = "tides-worker", "5a0c1f3e-0000-4000-8000-000000000001"
START_WITHIN = timedelta(seconds=600)


def template(image: str = "tidefill/worker:1") -> dict[str, Any]:
    container = {"name": "worker", "image": image, "env": [{"name": "TIDEFILL_SPARK_MASTER", "value": "local[*]"}]}
    labels = {"app.kubernetes.io/instance": "tides", "app.kubernetes.io/managed-by": "Helm"}
    return {
        "metadata": {"labels": labels, "annotations": {"example.com/team": "data"}},
        "spec": {
            "containers": [{"name": "proxy", "image": "proxy:1"}, container],
            "automountServiceAccountToken": False,
        },
    }


@dataclass
class Tides:
    """A leader with the workers of its cluster, and a serverless job that is created."""

    api: FakeApi
    stores: FakeStores
    world: World
    clock: StillClock
    term: Term
    job: JobId
    account: Path
    chances: Iterator[int] = field(default_factory=lambda: iter(range(0xA000, 0xFFFF)))
    clients: list[KubernetesClient] = field(default_factory=list[KubernetesClient])

    def __post_init__(self) -> None:
        self.supervision = self.successor()

    def successor(self) -> Supervision:
        """Return what another service makes of the same cluster."""
        self.clients.append(KubernetesClient(self.api.url, self.account))
        cluster = KubernetesCluster(
            self.clients[-1],
            templates=TEMPLATES,
            installation=INSTALLATION,
            service_url="http://tides-internal:8700",
            clock=self.clock,
            chance=lambda: f"{next(self.chances):04x}",
        )
        return Supervision(self.world, cluster, START_WITHIN)

    async def look(self, times: int = 1) -> timedelta:
        wait = STEADY
        for _ in range(times):
            wait = await self.supervision.look(term=self.term)
        return wait

    async def launches(self, graph: GraphId = DATABASE_GRAPH) -> list[Launch]:
        async with self.stores.begin() as tx:
            return [one for one in await tx.launches.all() if one.graph == graph]

    async def register(self, launch: Launch) -> None:
        async with self.stores.begin() as tx:
            presented = registration(launch.worker).model_copy(update={"graph": launch.graph})
            await tx.workers.register(presented, now=self.clock.now())

    async def started(self, graph: GraphId = DATABASE_GRAPH) -> Launch:
        """Have the worker of a graph started and registered."""
        await self.look()
        (*_, launch) = await self.launches(graph)
        self.api.becomes(launch.worker, "Running")
        await self.register(launch)
        return launch

    async def later(self, by: timedelta, *alive: Launch) -> None:
        self.clock.wall += by
        self.clock.seconds += by.total_seconds()
        async with self.stores.begin() as tx:
            for launch in alive:
                await tx.workers.seen(launch.worker, now=self.clock.now())

    async def graph_of_the_job(self) -> GraphId:
        assert await queue.start_jobs(self.world, term=self.term) == 1
        async with self.stores.begin() as tx:
            (graph,) = await tx.partial_graphs.all()
        assert isinstance(await advance(self.world, graph, term=self.term), RollBack)
        return graph

    async def events(self, kind: str) -> list[Event]:
        async with self.stores.begin() as tx:
            return [event for event in await tx.events.since(0, limit=1000) if event.kind == kind]

    async def why(self) -> str:
        async with self.stores.begin() as tx:
            found = await tx.jobs.get(self.job)
            assert found is not None
            waiting = (await waits_of(self.world, tx, [found], await standing_of(tx, [found]))).get(self.job)
        return "" if waiting is None else f"{waiting.reason}: {waiting.text}"


@pytest.fixture
async def tides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[Tides]:
    monkeypatch.setattr(client_module, "TIMEOUT_SECONDS", 60.0)  # on a busy machine a pod is long validated
    clock = StillClock()
    stores, tables = FakeStores(clock.now), FakeTables(StateStore())
    world = world_of(stores, tables=tables, fences=FakeFences(tables.store), clock=clock, startable=True)
    with fake_api(tmp_path) as api:
        api.put_config_map(TEMPLATES, {"database.json": template(), "serverless.json": template("tidefill/worker:2")})
        async with stores.begin() as tx:
            table = await add_created(tx, new_table("t"))
            view = new_view("v", table.relation)
            scans = tuple(replace(one, scan_type=ScanType.SNAPSHOT_BACKFILL) for one in view.table_scans)
            job = await tx.jobs.add(replace(view, fragments=scans, serverless=True), now=NOW)
            term = await tx.leases.gain("a", lease=LEASE)
        assert term is not None
        await world.state_store.fences.claim(term)
        await running(stores)
        async with stores.begin() as tx:
            for record in await tx.workers.all(now=NOW, lease=LEASE):
                await tx.workers.give_up(record.worker)
        made = Tides(api, stores, world, clock, term, job.id, tmp_path)
        yield made
        for client in made.clients:
            await client.close()


async def test_the_leader_creates_a_pod_that_knows_who_it_is(tides: Tides) -> None:
    assert await tides.look() == CHANGING
    (launch,) = await tides.launches()
    (pod,) = tides.api.pods.values()
    assert pod["metadata"]["name"] == launch.worker
    assert launch.worker.startswith("tides-worker-g1-1-")
    assert pod["metadata"]["labels"] == {
        "app.kubernetes.io/instance": "tides",
        "app.kubernetes.io/component": "worker",
        "app.kubernetes.io/managed-by": "tidefill",
        "tidefill.dev/installation": INSTALLATION,
        "tidefill.dev/templates": TEMPLATES,
        "tidefill.dev/graph": "1",
        "tidefill.dev/resource-group": "database",
        "tidefill.dev/template": pod["metadata"]["labels"]["tidefill.dev/template"],
    }
    assert pod["metadata"]["annotations"] == {"example.com/team": "data"}
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": TEMPLATES, "uid": f"uid-of-{TEMPLATES}"}
    assert pod["metadata"]["ownerReferences"] == [owner]
    assert pod["spec"]["restartPolicy"] == "Never"
    proxy, worker = pod["spec"]["containers"]
    assert "env" not in proxy
    assert worker["env"] == [
        {"name": "TIDEFILL_SPARK_MASTER", "value": "local[*]"},
        {"name": "TIDEFILL_WORKER_ID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "TIDEFILL_GRAPH", "value": "1"},
        {"name": "TIDEFILL_SERVICE_URL", "value": "http://tides-internal:8700"},
    ]
    tides.api.becomes(launch.worker, "Running")
    await tides.register(launch)
    assert await tides.look(3) == STEADY
    assert len(tides.api.made("POST")) == 1


async def test_a_job_names_the_profile_of_its_worker(tides: Tides) -> None:
    tides.stores.tables.jobs.put(
        tides.job, replace(row := tides.stores.tables.jobs[tides.job], job=replace(row.job, resource_group="big"))
    )
    await tides.started()
    graph = await tides.graph_of_the_job()
    await tides.look()
    (launch,) = await tides.launches(graph)
    assert launch.held is not None
    assert launch.held.cause == "template"
    assert "big.json of the ConfigMap tides-worker. The profiles of workers are: database, serverless" in (
        await tides.why()
    )
    tides.api.put_config_map(
        TEMPLATES,
        {"database.json": template(), "serverless.json": template(), "big.json": template("tidefill/worker:3")},
    )
    await tides.look(2)
    labels = tides.api.pods[launch.worker]["metadata"]["labels"]
    assert labels["tidefill.dev/resource-group"] == "big"
    assert labels["tidefill.dev/job"] == str(tides.job)
    assert tides.api.pods[launch.worker]["spec"]["containers"][1]["image"] == "tidefill/worker:3"


async def test_a_leader_that_dies_after_its_intent_is_followed_by_one_that_creates_the_same_pod(tides: Tides) -> None:
    tides.api.refusals["POST", "pods"] = Refusal(500, "InternalError", "etcdserver: request timed out")
    await tides.look()
    (launch,) = await tides.launches()
    assert launch.posted_at is None
    tides.api.refusals.clear()
    tides.supervision = tides.successor()
    await tides.look()
    assert list(tides.api.pods) == [launch.worker]


async def test_a_pod_that_exists_already_is_the_one(tides: Tides) -> None:
    """The answer to its creation was lost."""
    await tides.look()
    (launch,) = await tides.launches()
    async with tides.stores.begin() as tx:
        await tx.launches.put(replace(launch, posted_at=None))
    await tides.look()
    assert list(tides.api.pods) == [launch.worker]
    assert (await tides.launches())[0].posted_at is not None
    assert len(tides.api.made("POST")) == 2


async def test_a_deposed_leader_creates_and_deletes_nothing(tides: Tides) -> None:
    launch = await tides.started()
    tides.api.pods["stray"] = tides.api.pods[launch.worker] | {
        "metadata": {**tides.api.pods[launch.worker]["metadata"]}
    }
    tides.api.pods["stray"]["metadata"]["name"] = "stray"
    before = len(tides.api.made("POST")), len(tides.api.made("DELETE"))
    async with tides.stores.begin() as tx:
        await tx.leases.take()
        assert await tx.leases.gain("b", lease=LEASE) is not None
    with pytest.raises(Deposed):
        await tides.look()
    assert (len(tides.api.made("POST")), len(tides.api.made("DELETE"))) == before


QUOTA = 'pods "w" is forbidden: exceeded quota: q, requested: pods=1, used: pods=4, limited: pods=4'
VERB = (
    'pods is forbidden: User "system:serviceaccount:data:tides" cannot create resource "pods" in the namespace "data"'
)


@pytest.mark.parametrize(
    ("method", "resource", "refusal", "cause", "text"),
    [
        ("POST", "pods", Refusal(403, "Forbidden", QUOTA), "quota", QUOTA),
        ("POST", "pods", Refusal(403, "Forbidden", VERB), "forbidden", VERB),
        ("GET", "pods", Refusal(403, "Forbidden", VERB), "forbidden", VERB),
        ("GET", "configmaps", Refusal(403, "Forbidden", VERB), "forbidden", VERB),
        ("POST", "pods", Refusal(422, "Invalid", "spec.containers[0].image: Required value"), "template", "Required"),
        ("POST", "pods", Refusal(429, "TooManyRequests", "slow down"), "unavailable", "slow down"),
        ("GET", "pods", Refusal(502, None, "<html>"), "unavailable", "the API answered 502 Bad Gateway"),
    ],
)
async def test_what_is_refused_is_why_the_job_waits_and_one_event(
    tides: Tides, method: str, resource: str, refusal: Refusal, cause: str, text: str
) -> None:
    graph = await tides.graph_of_the_job()
    tides.api.refusals[method, resource] = refusal
    await tides.look(4)
    assert not tides.api.pods
    assert (await tides.why()).startswith("worker: its own worker is held up: ")
    assert text in await tides.why()
    events = [event.facts["cause"] for event in await tides.events("worker.held_up") if event.facts["graph"] == graph]
    assert events == [cause]
    tides.api.refusals.clear()
    await tides.look()
    assert await tides.why() == "worker: its own worker is being started"
    assert len(tides.api.pods) == 2


async def test_a_silent_api_is_not_waited_for(tides: Tides, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "TIMEOUT_SECONDS", 0.05)
    await tides.graph_of_the_job()
    tides.api.silent = threading.Event()
    await tides.look(2)
    assert await tides.why() == "worker: its own worker is held up: the API did not answer within 0 s"
    tides.api.silent.set()


async def test_an_image_that_is_missing_is_said_and_is_no_new_event_with_each_text(tides: Tides) -> None:
    graph = await tides.graph_of_the_job()
    await tides.look()
    (launch,) = await tides.launches(graph)
    for reason, message in (
        ("ErrImagePull", "not found"),
        ("ImagePullBackOff", "Back-off 10s"),
        ("ErrImagePull", "no"),
    ):
        waiting = {"name": "worker", "state": {"waiting": {"reason": reason, "message": message}}}
        tides.api.becomes(launch.worker, "Pending", containerStatuses=[waiting])
        await tides.look()
        assert await tides.why() == f"worker: its own worker is held up: {reason}: {message}"
    (event,) = await tides.events("worker.held_up")
    (shared,) = await tides.launches()
    tides.api.becomes(shared.worker, "Pending", reason="", containerStatuses=[waiting])
    await tides.look()
    checks = await readiness(tides.world, cast("Reader", SimpleNamespace(query=AsyncMock())))
    assert checks["worker"] == "no worker is alive: it is held up: ErrImagePull: no"
    assert event.facts == {
        "worker": launch.worker,
        "graph": graph,
        "cause": "ImagePullBackOff",
        "text": "ErrImagePull: not found",
    }


async def test_a_worker_that_is_killed_says_why_and_has_a_successor_of_another_name(tides: Tides) -> None:
    graph = await tides.graph_of_the_job()
    first = await tides.started(graph)
    ended = {"name": "worker", "state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}
    tides.api.becomes(first.worker, "Failed", containerStatuses=[ended])
    await tides.look()
    assert "its own worker failed once: OOMKilled" in await tides.why()
    (lost,) = await tides.events("worker.lost")
    assert (lost.facts["worker"], lost.facts["failures"]) == (first.worker, 1)
    with pytest.raises(Stale):
        await tides.register(first)
    await tides.later(timedelta(seconds=1))
    await tides.look()
    _, second = await tides.launches(graph)
    assert second.worker.startswith(f"tides-worker-g{graph}-2-")
    assert {first.worker, second.worker} <= tides.api.pods.keys(), "a failed pod is kept for its log"
    await tides.later(KEPT_FOR)
    await tides.look()
    assert first.worker not in tides.api.pods


async def test_what_registers_after_its_launch_was_given_up_is_refused(tides: Tides) -> None:
    await tides.look()
    (launch,) = await tides.launches()
    await tides.later(START_WITHIN)
    await tides.look()
    assert tides.api.pods[launch.worker]["metadata"]["deletionTimestamp"]
    with pytest.raises(Stale):
        await tides.register(launch)


async def test_a_worker_that_hangs_is_killed_and_replaced_at_once(tides: Tides) -> None:
    first = await tides.started()
    await tides.later(timedelta(seconds=60), first)
    await tides.look()
    await tides.later(tides.world.workers.lease)
    await tides.look()
    (deletion,) = tides.api.made("DELETE")
    assert deletion.path.endswith(first.worker)
    assert deletion.body["gracePeriodSeconds"] == 1
    await tides.look()
    assert len(tides.api.pods) == 2
    assert len(tides.api.made("DELETE")) == 1, "what is being deleted is not deleted again"


async def test_a_worker_whose_job_is_cancelled_has_its_grace(tides: Tides) -> None:
    graph = await tides.graph_of_the_job()
    own = await tides.started(graph)
    async with tides.stores.begin() as tx:
        await tx.jobs.move(tides.job, JobEvent.CANCEL_ASKED, now=NOW)
    await tides.look(2)
    (deletion,) = tides.api.made("DELETE")
    assert deletion.path.endswith(own.worker)
    assert "gracePeriodSeconds" not in deletion.body
    assert await tides.events("worker.stopped") == []
    del tides.api.pods[own.worker]
    await tides.look()
    (stopped,) = await tides.events("worker.stopped")
    assert stopped.facts["worker"] == own.worker


async def test_pods_of_other_installations_are_let_alone_and_leftovers_are_not(tides: Tides) -> None:
    launch = await tides.started()
    for name, label in (("leftover", {}), ("foreign", {"tidefill.dev/installation": "another"})):
        metadata = tides.api.pods[launch.worker]["metadata"]
        labels = {**metadata["labels"], **label}
        tides.api.pods[name] = {
            **tides.api.pods[launch.worker],
            "metadata": {**metadata, "name": name, "labels": labels},
        }
    await tides.look()
    assert [call.path.rsplit("/", 1)[-1] for call in tides.api.made("DELETE")] == ["leftover"]


async def test_templates_are_examined_at_the_start_and_when_they_change(tides: Tides) -> None:
    def examined() -> list[str]:
        calls = [call for call in tides.api.calls if call.query.get("dryRun") == "All"]
        return [call.body["spec"]["containers"][1]["image"] for call in calls]

    await tides.look(2)
    assert examined() == ["tidefill/worker:1", "tidefill/worker:2"]
    assert len(tides.api.pods) == 1
    tides.api.refusals["POST", "pods"] = Refusal(403, "Forbidden", QUOTA)
    tides.api.put_config_map(TEMPLATES, {"database.json": template("tidefill/worker:3"), "serverless.json": "{"})
    await tides.look(2)
    assert examined()[2:] == ["tidefill/worker:3"]
    said = {event.facts["profile"]: event.facts["cause"] for event in await tides.events("worker.template_refused")}
    assert said == {"database": "quota", "serverless": "template"}


async def test_a_pod_that_is_held_up_gives_way_to_one_of_a_repaired_template(tides: Tides) -> None:
    await tides.look()
    (first,) = await tides.launches()
    waiting = {"name": "worker", "state": {"waiting": {"reason": "ErrImagePull", "message": "not found"}}}
    tides.api.becomes(first.worker, "Pending", containerStatuses=[waiting])
    tides.api.put_config_map(TEMPLATES, {"database.json": template("tidefill/worker:3")})
    await tides.look()
    await tides.later(timedelta(seconds=1))
    await tides.look()
    _, second = await tides.launches()
    assert tides.api.pods[first.worker]["metadata"]["deletionTimestamp"]
    assert tides.api.pods[second.worker]["spec"]["containers"][1]["image"] == "tidefill/worker:3"
    tides.api.becomes(second.worker, "Running")
    await tides.register(second)
    await tides.look(2)
    assert len(await tides.launches()) == 2


async def test_a_worker_of_an_old_template_ends_after_its_successor_has_registered(tides: Tides) -> None:
    first = await tides.started()
    tides.api.put_config_map(TEMPLATES, {"database.json": template("tidefill/worker:3")})
    await tides.look(2)
    _, second = await tides.launches()
    assert tides.api.pods[second.worker]["spec"]["containers"][1]["image"] == "tidefill/worker:3"
    assert tides.api.made("DELETE") == [], "its successor is not there yet"
    await tides.register(second)
    tides.supervision = tides.successor()
    await tides.look(2)
    (deletion,) = tides.api.made("DELETE")
    assert deletion.path.endswith(first.worker)
    assert "gracePeriodSeconds" not in deletion.body, "it has the time to hand over"
    assert (await tides.launches())[0].end is None
    async with tides.stores.begin() as tx:
        assert await tx.workers.leave(first.worker)
    del tides.api.pods[first.worker]
    await tides.look(2)
    assert len(await tides.launches()) == 2
    assert len(tides.api.pods) == 1
    (stopped,) = await tides.events("worker.stopped")
    assert (stopped.facts["worker"], await tides.events("worker.lost")) == (first.worker, [])


async def test_a_worker_of_a_job_keeps_an_old_template(tides: Tides) -> None:
    own = await tides.started(graph := await tides.graph_of_the_job())
    tides.api.put_config_map(TEMPLATES, {"database.json": template(), "serverless.json": template("tidefill/worker:3")})
    await tides.look(3)
    assert [one.worker for one in await tides.launches(graph)] == [own.worker]


async def test_a_worker_that_is_drained_has_a_successor_at_once(tides: Tides) -> None:
    first = await tides.started()
    tides.api.pods[first.worker]["metadata"]["deletionTimestamp"] = "2026-01-02T03:04:05Z"
    assert await tides.look(3) == CHANGING
    one, second = await tides.launches()
    assert (one.worker, one.end) == (first.worker, None)
    assert len(tides.api.pods) == 2
    # It ends before it has handed over: that is a loss, and its successor is the one that begins anew.
    del tides.api.pods[first.worker]
    await tides.look(2)
    assert len(await tides.launches()) == 2
    (lost,) = await tides.events("worker.lost")
    assert lost.facts["worker"] == first.worker
    assert (await tides.launches())[-1].worker == second.worker


async def test_each_profile_has_its_template(tides: Tides) -> None:
    graph = await tides.graph_of_the_job()
    await tides.look()
    images = {
        pod["metadata"]["labels"]["tidefill.dev/graph"]: pod["spec"]["containers"][1]["image"]
        for pod in tides.api.pods.values()
    }
    assert images == {"1": "tidefill/worker:1", str(graph): "tidefill/worker:2"}


async def test_the_token_is_read_anew_for_every_call(tides: Tides) -> None:
    await tides.look()
    (tides.account / "token").write_text("token-2")
    before = len(tides.api.calls)
    await tides.look()
    assert {call.token for call in tides.api.calls[:before]} == {"token-1"}
    assert {call.token for call in tides.api.calls[before:]} == {"token-2"}


async def test_workers_are_heard_before_they_are_given_up_after_a_time_without_services(tides: Tides) -> None:
    launch = await tides.started()
    await tides.later(timedelta(minutes=5))
    tides.supervision = tides.successor()
    await tides.look()
    assert tides.api.made("DELETE") == []
    await tides.later(tides.world.workers.lease)
    await tides.look()
    assert [call.path.rsplit("/", 1)[-1] for call in tides.api.made("DELETE")] == [launch.worker]
