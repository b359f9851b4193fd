"""A view with a join and an aggregate that Spark computes, its history and its changes, with real processes."""

import pytest

from tests.support.service import Service

pytestmark = pytest.mark.e2e

ROWS = 6_000
SPARK = {"stage_engine": "spark", "background_ddl": "true"}
JOINED = "SELECT o.id, c.region, o.amount * 2 AS twice FROM orders o JOIN customers c ON o.customer = c.id"
SUMMED = f"SELECT region, count(*) AS n, sum(id) AS total FROM ({JOINED}) j GROUP BY region"

LONG = f"SELECT customer % 7 AS k, sum(amount * 1{'0' * 34}) AS s FROM orders GROUP BY customer % 7"


@pytest.mark.soak
def test_the_history_of_stages_in_spark_outlives_its_worker(service: Service) -> None:
    """I1, I3: killed in the middle of its history, then followed by live changes, and verified by both engines."""
    service.run("CREATE TABLE customers (id bigint PRIMARY KEY, region text)")
    service.run("CREATE TABLE orders (id bigint PRIMARY KEY, customer bigint, amount numeric(12,2))")
    service.run("INSERT INTO customers SELECT g, 'r' || g % 7 FROM generate_series(1, 500) g")
    service.run(f"INSERT INTO orders SELECT g, g % 600, g / 4.0 FROM generate_series(1, {ROWS}) g")
    refused = service.refused(
        "CREATE MATERIALIZED VIEW m AS SELECT customer, stddev(amount) AS s FROM orders GROUP BY customer", **SPARK
    )
    assert "only the state store can compute a stage of this view" in str(refused)
    service.run(f"CREATE MATERIALIZED VIEW joined WITH (backfill_rate_limit = 1000) AS {JOINED}", **SPARK)
    service.until_rows(service.job("joined"), 1000)
    generation = service.graph()["generation"]
    service.kill_worker()
    service.until_recovered(generation)
    service.run("UPDATE customers SET region = 'moved' WHERE id % 50 = 0")
    service.run("DELETE FROM orders WHERE id % 70 = 0")
    service.until_created("joined")
    service.run(f"CREATE MATERIALIZED VIEW summed AS {SUMMED}", **SPARK)
    service.until_created("summed")
    # Spark has no such numbers, so the store reads this history.
    service.run(f"CREATE MATERIALIZED VIEW long AS {LONG}", **SPARK)
    service.until_created("long")
    plan = "\n".join(row[0] for row in service.sql(f"EXPLAIN CREATE MATERIALIZED VIEW p AS {SUMMED}", **SPARK))
    assert "engine of changes: spark, because stage_engine is spark" in plan
    service.run("UPDATE orders SET customer = customer + 1 WHERE id % 90 = 0")
    service.run("UPDATE customers SET region = 'far' WHERE id % 40 = 0")
    service.run("INSERT INTO orders SELECT g, g % 600, 1 FROM generate_series(10001, 10100) g")
    assert service.assert_equal("long", LONG) > 0
    for view, query in (("joined", JOINED), ("summed", SUMMED)):
        assert service.assert_equal(view, query) > 0
        found = service.post(f"/v1/jobs/{service.job(view)}/verify?engine=spark")
        assert (found["equal"], found["engine"]) == (True, "spark"), found


def test_a_value_that_spark_does_not_hold_is_the_stores(service: Service) -> None:
    """I1, I3: Spark has written some rows of the epoch by then, so the graph recovers, and the store goes on."""
    service.run("CREATE TABLE t (id int PRIMARY KEY, n numeric)")
    service.run("INSERT INTO t SELECT g, g FROM generate_series(1, 3000) g")
    service.run(f"INSERT INTO t VALUES (4000, 0.5), (4001, 1{'0' * 50})")
    views = {
        "filtered": "SELECT id, n FROM t WHERE n > 0.2",
        "joined": "SELECT a.id, b.n FROM t a JOIN t b ON b.id = a.id WHERE b.n > 0.2",
    }
    for name, query in views.items():
        service.run(f"CREATE MATERIALIZED VIEW {name} AS {query}", **SPARK)
        service.until_created(name)
        assert service.get(f"/v1/jobs/{service.job(name)}")["engines"]["store"]["rows"] > 0
    service.run("UPDATE t SET n = n + 1 WHERE id % 10 = 0")
    for name, query in views.items():
        assert service.assert_equal(name, query) == 3002
