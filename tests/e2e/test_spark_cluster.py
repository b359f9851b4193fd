"""Views on a standalone Spark cluster whose executors and workers are killed (I3).

A worker of the service is then the driver of an application on the cluster. Spark reads the history of stages in it.
"""

import json
import os
import signal
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.mirrored_lake import in_lake
from tests.support.service import Service, data_directory, running
from tests.support.spark_cluster import CONF, SparkCluster, spark_cluster
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.own_service, pytest.mark.soak]

ROWS = 4_000
SPARK = {"stage_engine": "spark", "background_ddl": "true"}
JOINED = "SELECT o.id, c.region, o.amount * 2 AS twice FROM orders o JOIN customers c ON o.customer = c.id"
SUMMED = f"SELECT region, count(*) AS n, sum(id) AS total FROM ({JOINED}) j GROUP BY region"
PROJECTED = "SELECT id, upper('o' || id) AS name FROM orders WHERE id % 3 = 0"
TOP = (
    "SELECT id, customer FROM (SELECT id, customer, row_number() OVER (PARTITION BY customer ORDER BY amount DESC, id)"
    " AS place FROM orders) o WHERE place <= 2"
)
REPEATED = "RepeatedTaskError"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[SparkCluster]:
    with spark_cluster(tmp_path, workers=2) as cluster:
        yield cluster


@pytest.fixture
def service(cluster: SparkCluster) -> Iterator[Service]:
    """A service whose worker computes on the cluster, with two tables."""
    environment = {"TIDEFILL_SPARK_MASTER": cluster.master, "TIDEFILL_SPARK_CONF": json.dumps(CONF)}
    with data_directory() as directory, running(Service(directory, environment)) as service:
        service.run("ALTER SYSTEM SET barrier_interval_ms = 250")
        service.run("CREATE TABLE customers (id bigint PRIMARY KEY, region text)")
        service.run("CREATE TABLE orders (id bigint PRIMARY KEY, customer bigint, amount numeric(12,2))")
        service.run("INSERT INTO customers SELECT g, 'r' || g % 7 FROM generate_series(1, 500) g")
        service.run(f"INSERT INTO orders SELECT g, g % 600, g / 4.0 FROM generate_series(1, {ROWS}) g")
        yield service


@contextmanager
def held(service: Service, view: str, writers: int = 2, meanwhile: Callable[[], object] = int) -> Generator[None]:
    """Make all tasks wait that are about to write the view's rows; entered when some of them wait."""
    table = f"state.t_{service.get(f'/v1/relations/{view}')['id']}"
    waiting = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and application_name ~ '^tidefill:'"
    with service.store() as connection, connection.transaction():
        connection.execute(f"lock table {table} in share mode".encode())
        meanwhile()
        until(lambda: service.stored(waiting) == [(writers,)], what=lambda: f"writers: {service.stored(waiting)}")
        yield


def worker_log(service: Service) -> str:
    return "".join(path.read_text(errors="replace") for path in service.data_dir.glob("logs/*.log"))


def until_written(service: Service) -> None:
    """Wait until no session of a worker is in a transaction."""
    busy = "select pid from pg_stat_activity where application_name ~ '^tidefill:' and state <> 'idle'"
    until(lambda: not service.stored(busy), what=lambda: f"written: {service.stored(busy)}")


def test_i3_views_on_a_cluster_outlive_its_executors_and_workers(service: Service, cluster: SparkCluster) -> None:
    first, second = cluster.workers
    service.run(f"CREATE MATERIALIZED VIEW joined WITH (backfill_rate_limit = 200) AS {JOINED}", **SPARK)
    service.until_rows(service.job("joined"), 50)
    # One task has written, but its executor does not say so any more. Spark runs the task again elsewhere.
    with held(service, "joined"):
        (stopped,) = cluster.executors(first)
        os.kill(stopped, signal.SIGSTOP)
    until_written(service)
    first.kill()
    until(lambda: REPEATED in worker_log(service), what=lambda: worker_log(service)[-3000:])
    os.kill(stopped, signal.SIGKILL)
    service.limit(service.job("joined"), None)
    service.until_created("joined")

    service.run(f"CREATE MATERIALIZED VIEW summed WITH (backfill_rate_limit = 200) AS {SUMMED}", **SPARK)
    service.until_rows(service.job("summed"), 50)
    os.kill(cluster.executors(second)[0], signal.SIGKILL)
    service.run("UPDATE customers SET region = 'moved' WHERE id % 50 = 0")
    service.run("DELETE FROM orders WHERE id % 70 = 0")
    service.limit(service.job("summed"), None)
    views = {"joined": JOINED, "summed": SUMMED, "projected": PROJECTED, "top": TOP}
    for view in ("projected", "top"):
        service.run(f"CREATE MATERIALIZED VIEW {view} AS {views[view]}", **SPARK)
    for view, query in views.items():
        service.until_created(view)
        assert service.assert_equal(view, query) > 0

    # Changes: executors die with what they keep of the inputs.
    generation = service.graph()["generation"]
    before = {view: service.get(f"/v1/jobs/{service.job(view)}")["engines"]["spark"]["rows"] for view in views}
    moved = "UPDATE orders SET amount = amount + 100, customer = customer + 1 WHERE id % 30 = {}"
    service.run(moved.format(0))
    with held(service, "top", 1, lambda: service.later(moved.format(1))):
        # Any of them may have the task that waits.
        for executor in until(lambda: cluster.executors(second), what="an executor"):
            os.kill(executor, signal.SIGKILL)
    service.until_recovered(generation)
    service.run(moved.format(2))
    for view, query in views.items():
        assert service.assert_equal(view, query) > 0
        done = service.get(f"/v1/jobs/{service.job(view)}")["engines"]
        assert done["spark"]["rows"] > before[view], (view, done)


def test_i3_i14_a_view_in_a_lake_outlives_executors(service: Service, cluster: SparkCluster, tmp_path: Path) -> None:
    """Executors write its files. One dies in its history, one while changes are on their way."""
    first, second = cluster.workers
    views = {"joined": JOINED.replace("o.amount * 2", "(o.amount * 2)::numeric(20, 2)"), "top": TOP}
    for view, query in views.items():
        place = f"USING delta LOCATION '{tmp_path / view}' WITH (commit_interval = '500 ms', backfill_rate_limit = 200)"
        service.run(f"CREATE MATERIALIZED VIEW {view} {place} AS {query}", **SPARK)
    service.until_rows(service.job("joined"), 50)
    for executor in cluster.executors(first):
        os.kill(executor, signal.SIGKILL)
    for view in views:
        service.limit(service.job(view), None)
        service.until_created(view)
    moved = "UPDATE orders SET amount = amount + 100, customer = customer + 1 WHERE id % 30 = {}"
    for turn in range(6):
        service.run(moved.format(turn))
        if turn == 2:
            for executor in until(lambda: cluster.executors(second), what="an executor"):
                os.kill(executor, signal.SIGKILL)
    for view, query in views.items():
        wanted = service.sql(query)
        columns = [one["name"] for one in service.run(f"{query} LIMIT 0")["columns"]]
        expected = sorted(map(tuple, wanted), key=repr)
        until(
            lambda view=view, columns=columns, expected=expected: in_lake(tmp_path / view, columns) == expected,
            what=lambda view=view, columns=columns: (
                in_lake(tmp_path / view, columns)[:5],
                worker_log(service)[-3000:],
            ),
        )
        assert expected
        assert service.verified(view)["equal"]
