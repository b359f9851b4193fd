"""Executors as pods of a real control plane: Spark creates them with the rights, settings and template of the chart.

An executor that is killed costs its epoch a recovery (I3). Executors whose worker is gone are collected.
"""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.control_plane.api import at
from tests.support.control_plane.plane import Plane
from tests.support.tides import Tides, running_tides
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.own_service, pytest.mark.control_plane]

EXECUTORS = 2
QUICK = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
SPARK = {"stage_engine": "spark", "background_ddl": "true"}
JOINED = "SELECT o.id, c.region, o.amount * 2 AS twice FROM orders o JOIN customers c ON o.customer = c.id"


@pytest.fixture
def tides(control_plane: Plane, postgres_url: str, namespace: str, tmp_path: Path) -> Iterator[Tides]:
    conf = {
        "spark.driver.extraJavaOptions": QUICK,
        "spark.executor.extraJavaOptions": QUICK,
        "spark.executor.memory": "512m",
    }
    master = f"k8s://{control_plane.servers.url}"
    values = {"profiles": {"database": {"executors": EXECUTORS, "sparkMaster": master, "sparkConf": conf}}}
    with running_tides(control_plane, postgres_url, namespace, tmp_path, values, image="tidefill/worker") as made:
        yield made


def running(tides: Tides, worker: str) -> set[str]:
    """Return the executors of a worker that run."""
    found = tides.pods("executor").items()
    return {
        name
        for name, pod in found
        if pod["metadata"]["labels"]["tidefill.dev/worker"] == worker
        and pod["status"].get("phase") == "Running"
        and "deletionTimestamp" not in pod["metadata"]
    }


def until_running(tides: Tides, worker: str, *, besides: frozenset[str] = frozenset()) -> set[str]:
    """Wait until a worker has all its executors, none of which is `besides`."""

    def look() -> set[str] | None:
        found = running(tides, worker)
        return found if len(found) == EXECUTORS and not found & besides else None

    return until(look, what=lambda: f"executors: {tides.pods('executor')}; {tides.said()}")


def test_i3_a_view_on_executor_pods_outlives_them_and_their_worker(tides: Tides) -> None:
    service, plane, namespace = tides.service, tides.plane, tides.namespace
    worker = tides.worker()
    executors = until_running(tides, worker)
    service.run("CREATE TABLE customers (id bigint PRIMARY KEY, region text)")
    service.run("CREATE TABLE orders (id bigint PRIMARY KEY, customer bigint, amount numeric(12,2))")
    service.run("INSERT INTO customers SELECT g, 'r' || g % 7 FROM generate_series(1, 500) g")
    service.run("INSERT INTO orders SELECT g, g % 600, g / 4.0 FROM generate_series(1, 4000) g")
    (owner,) = tides.pods("executor")[min(executors)]["metadata"]["ownerReferences"]
    assert owner["uid"] == tides.pods()[worker]["metadata"]["uid"]

    service.run(f"CREATE MATERIALIZED VIEW joined WITH (backfill_rate_limit = 200) AS {JOINED}", **SPARK)
    service.until_rows(service.job("joined"), 50)
    killed = min(executors)
    os.kill(tides.kubelet.pid(namespace, killed), signal.SIGKILL)
    until_running(tides, worker, besides=frozenset({killed}))
    service.run("UPDATE customers SET region = 'moved' WHERE id % 50 = 0")
    rows = service.rows(service.job("joined"))
    service.until_rows(service.job("joined"), rows + 50)

    # The pod of the worker is deleted by force: nothing of it says goodbye to its executors.
    executors = running(tides, worker)
    plane.api.delete(at("pods", namespace, worker), gracePeriodSeconds=0)
    until(lambda: not executors & tides.pods("executor").keys(), what=lambda: f"collected: {tides.pods('executor')}")
    successor = tides.worker(besides=worker)
    until_running(tides, successor)
    service.limit(service.job("joined"), None)
    service.until_created("joined")
    assert service.assert_equal("joined", JOINED) > 0

    # A worker that ends in order removes its executors itself. It never needed a right that it lacks.
    plane.api.delete(at("pods", namespace, successor))
    plane.api.until_gone(at("pods", namespace, successor))
    until(lambda: not running(tides, successor), what=lambda: f"removed: {tides.pods('executor')}")
    logs = [path.read_text(errors="replace") for path in tides.kubelet.directory.rglob("log")]
    assert len(logs) > 2 * EXECUTORS
    assert not [log[-3000:] for log in logs if "forbidden" in log.lower()]
