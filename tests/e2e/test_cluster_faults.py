"""An installation of three services and a worker as pods, with writers, a followed database and views that are being
built, through what happens to a cluster: processes are killed, a node is lost, one is drained, and all is upgraded. No
answered write is lost, and every view is its query (I1, I2, I3, I6).
"""

import os
import signal
import threading
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final

import httpx
import pytest

from service.domain.barrier import HANDED_OVER
from tests.support.control_plane.api import RefusedError, at, condition
from tests.support.control_plane.plane import Plane
from tests.support.helm_release import CHART, RELEASE, Release, two_nodes
from tests.support.persistent_client import PersistentClient
from tests.support.production import External, external_postgres, source, until_equal
from tests.support.service import Service, data_directory
from tests.support.storm import Watcher
from tests.support.storm_tables import Ledger, StormTable
from tests.support.waiting import Repeating, until

pytestmark = [pytest.mark.e2e, pytest.mark.own_service, pytest.mark.control_plane]
VALUES: Final[dict[str, Any]] = {
    "service": {"replicas": 3},
    "worker": {"launcher": "kubernetes", "terminationGracePeriodSeconds": 600},
}
"""The grace is for a machine that is busy with other things: Spark may take minutes to start."""
NEWER: Final = {"image": {"tag": "0.1.1"}}
VIEWS: Final = {
    "copied": "SELECT id, v, note FROM orders",
    "counted": "SELECT v % 10 AS d, count(*) AS n, sum(id) AS s FROM orders GROUP BY v % 10",
    "joined": "SELECT o.id, o.note, i.name FROM orders o JOIN items i ON i.id = o.id",
}
CHANGES: Final = (
    "insert into items select max(id) + 1, 'new ' || max(id) from items",
    "update items set name = name || '+' where id % 97 = (random() * 96)::int",
    "delete from items where id = (select id from items where id > 10 order by random() limit 1)",
)
GAP: Final = """
select coalesce(max(extract(epoch from gap)), 0)::float from (
  select committed_at - lag(committed_at) over (order by epoch) as gap, committed_at from tidefill.barrier
  where graph = 1 and committed_at is not null) b
where committed_at > to_timestamp(%s)
"""


@dataclass
class Shop:
    """The installation. `front` is its Service, through which clients come."""

    release: Release
    front: Service
    external: External
    client: PersistentClient

    def stored(self, query: str) -> list[tuple[Any, ...]]:
        return self.front.stored(query)

    def worker(self) -> str | None:
        """Return the worker that runs the database graph."""
        ((worker,),) = self.stored("select worker from tidefill.graph where id = 1")
        return worker

    def events(self, kind: str, *, after: int = 0) -> list[tuple[int, Any]]:
        return self.stored(f"select id, facts from tidefill.event where kind = '{kind}' and id > {after} order by id")

    def last_event(self) -> int:
        ((last,),) = self.stored("select max(id) from tidefill.event")
        return last

    def leader(self) -> str:
        """Return the pod of the leader."""
        for pod in self.release.pods("service"):
            try:
                answer = httpx.get(f"http://{pod['status']['podIP']}:8700/readyz?leader=true", timeout=10)
            except httpx.TransportError:
                continue
            if answer.json()["checks"]["leader"] == "ok":
                return pod["metadata"]["name"]
        raise AssertionError("no service leads")

    def node(self, pod: str) -> str:
        return self.release.plane.api.get(at("pods", self.release.namespace, pod))["spec"]["nodeName"]

    def kill(self, pod: str) -> None:
        os.kill(self.release.kubelet.pid(self.release.namespace, pod), signal.SIGKILL)

    def drain(self, node: str) -> None:
        """Do what `kubectl drain` does."""
        api, namespace = self.release.plane.api, self.release.namespace
        api.patch(at("nodes", None, node), {"spec": {"unschedulable": True}})
        there = [pod for kind in ("worker", "service") for pod in self.release.pods(kind)]
        for name in (pod["metadata"]["name"] for pod in there if pod["spec"]["nodeName"] == node):
            until(partial(self._evicted, namespace, name), what=f"{name} may be evicted")

    def _evicted(self, namespace: str, pod: str) -> bool:
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod}}
        try:
            self.release.plane.api.post(at("pods", namespace, pod, "eviction"), eviction)
        except RefusedError as refused:
            if refused.status != 429:
                raise
            return False
        return True

    def until_whole(self) -> None:
        """Wait until every service is ready, and the graph is run by the only worker."""

        def whole() -> bool:
            ready = [condition(pod, "Ready").get("status") == "True" for pod in self.release.pods("service")]
            opened = self.stored("select worker from tidefill.launch where ended_at is null and graph = 1")
            return ready == [True] * 3 and opened == [(self.worker(),)]

        until(whole, what=self.said)

    def said(self) -> tuple[object, ...]:
        pods = {
            one["metadata"]["name"]: one["status"] for kind in ("service", "worker") for one in self.release.pods(kind)
        }
        return (self.stored("select * from tidefill.launch"), pods, self.release.logs())

    def progress(self) -> int:
        """Return how many rows of history all jobs have read."""
        return sum(job["rows"] for job in self.client.get("/v1/ddl-progress")["items"])

    @contextmanager
    def through(self, event: str, *, moved: bool = True) -> Generator[None]:
        """Have something happen. Then the graph runs, on another worker if it has `moved`, and the jobs go on."""
        before, rows = self.worker(), self.progress()
        ((since, generation),) = self.stored(
            "select extract(epoch from clock_timestamp())::float, generation from tidefill.graph where id = 1"
        )
        yield

        def runs() -> bool:
            newest = self.stored(
                "select worker, generation from tidefill.barrier where graph = 1 and committed_at is not null"
                f" and committed_at > to_timestamp({since}) and kind <> 'INITIAL' order by epoch desc limit 1"
            )
            if not newest:
                return False
            ((worker, now),) = newest
            return worker != before and now > generation if moved else True

        until(runs, what=self.said)
        until(lambda: self.progress() > rows, what=lambda: self.client.get("/v1/jobs"))
        self.until_whole()
        ((gap,),) = self.stored(GAP % since)
        print(f"{event}: {gap:.2f} s at most without a committed barrier")  # noqa: T201 - a figure for people

    @contextmanager
    def planned(self) -> Generator[None]:
        """Assert that the worker which runs the graph ends only after another one has taken over."""
        old, last = self.worker(), self.last_event()
        yield
        assert self.events("worker.lost", after=last) == []
        (registered,) = self.events("worker.registered", after=last)
        (ended,) = self.events("worker.stopped", after=last)
        (moved,) = (one for one in self.events("graph.recovering", after=last) if one[1]["graph"] == 1)
        assert (ended[1]["worker"], moved[1]["reason"]) == (old, HANDED_OVER)
        assert registered[0] < moved[0] < ended[0]


@pytest.fixture
def shop(control_plane: Plane, postgres_url: str, namespace: str) -> Iterator[Shop]:
    with (
        two_nodes(control_plane, postgres_url, namespace) as release,
        data_directory() as directory,
    ):
        directory.mkdir(mode=0o711)
        with external_postgres(directory) as external:
            port = httpx.URL(release.url).port or 0
            front = Service(Path(directory), {"TIDEFILL_DATABASE_URL": release.database}, port=port)
            yield Shop(release, front, external, PersistentClient(front, "shop"))
            front.clear()


@contextmanager
def busy(shop: Shop) -> Generator[None]:
    """Write all the time, to a table and to the external database, while views are built. Check all in the end."""
    over, pool = threading.Event(), ThreadPoolExecutor(8, "writers")
    table = StormTable("orders", PersistentClient(shop.front, "orders"), Random(7), pool)
    ledger = Ledger(shop.front, over)
    table.prepare()
    ledger.prepare()
    shop.external.run(
        "create table items (id int primary key, name text)",
        "insert into items select g, 'item ' || g from generate_series(0, 2000) g",
    )
    shop.client.run(source(shop.external))
    shop.client.run("CREATE TABLE items (*) FROM pg TABLE 'public.items'")
    for name, query in VIEWS.items():
        text = f"CREATE MATERIALIZED VIEW {name} WITH (backfill_rate_limit = 10) AS {query}"
        shop.client.run(text, background_ddl="true", streaming_parallelism="1")
    watcher = Watcher(shop.client, over)

    def change(_turn: int) -> None:
        shop.external.run(*CHANGES)

    turns = (table.turn, ledger.turn, watcher.turn, change)
    with ExitStack() as stack:
        running = [stack.enter_context(Repeating(turn, pause=0.2)) for turn in turns]
        yield
        over.set()
        for one in running:
            one.end()
    for name in VIEWS:
        shop.front.limit(shop.front.job(name), None)
        shop.front.until_created(name)
    until_equal(shop.front, shop.external, "items")
    shop.front.flush()
    assert table.check(shop.front) > 0
    ledger.check()
    for name, query in VIEWS.items():
        assert shop.front.assert_equal(name, query) > 0


def test_a_cluster_loses_no_answered_write(shop: Shop) -> None:
    release = shop.release
    release.succeeds("install", RELEASE, str(CHART), "--timeout", "4m", values=VALUES)
    shop.client.run("ALTER SYSTEM SET barrier_interval_ms = 250")
    with busy(shop):
        with shop.through("leader killed", moved=False):
            ((term,),) = shop.stored("select term from tidefill.leader_lease")
            shop.kill(shop.leader())
            until(lambda: shop.stored("select term from tidefill.leader_lease") > [(term,)], what=shop.said)

        with shop.through("worker killed"):
            killed = shop.worker()
            assert killed is not None
            shop.kill(killed)
        assert "signal 9" in shop.events("worker.lost")[-1][1]["reason"]

        with shop.through("node lost"):
            worker = shop.worker()
            assert worker is not None
            node = shop.node(worker)
            release.kubelet.crash(node)
            until(lambda: shop.worker() not in {None, worker}, what=shop.said)
            release.kubelet.regain(node)

        with shop.planned(), shop.through("node drained"):
            worker = shop.worker()
            assert worker is not None
            node = shop.node(worker)
            shop.drain(node)
        release.plane.api.patch(at("nodes", None, node), {"spec": {"unschedulable": None}})

        with shop.planned(), shop.through("upgraded"):
            newer = {kind: {**values, **NEWER} for kind, values in VALUES.items()}
            release.succeeds("upgrade", RELEASE, str(CHART), "--timeout", "4m", values=newer)
        # A pod that was killed is kept for its log.
        (pod,) = (one for one in release.pods("worker") if one["metadata"]["name"] == shop.worker())
        assert pod["spec"]["containers"][0]["image"].endswith(":0.1.1")
