"""Which engine reads the history of a view and follows its changes: by the rows, or as the user chose."""

import json
from collections.abc import Collection, Mapping

import pytest

from tests.support.sampling import LATER
from tests.support.service import Service

pytestmark = pytest.mark.e2e

ROWS = 120_000
VIEWS: Mapping[str, str] = {
    "projected": "SELECT id, amount FROM orders",
    "computed": "SELECT id, amount * 2 AS twice FROM orders WHERE customer <> 3",
    "joined": "SELECT o.id, c.region, o.amount FROM orders o JOIN customers c ON o.customer = c.id",
    "summed": "SELECT customer, count(*) AS n, sum(amount) AS total FROM orders GROUP BY customer",
    "least": "SELECT customer, min(amount) AS low, max(id) AS high FROM orders GROUP BY customer",
    "distinct_rows": "SELECT DISTINCT customer, id % 10 AS k FROM orders",
    "top": "SELECT * FROM (SELECT id, customer, row_number() OVER (PARTITION BY customer ORDER BY amount DESC, id) AS r"
    " FROM orders) o WHERE r <= 3",
    "windowed": "SELECT id, sum(amount) OVER (PARTITION BY customer ORDER BY id) AS running FROM orders",
    "united": "SELECT id, amount FROM orders UNION ALL SELECT id, amount FROM orders WHERE customer = 1",
    "upon": "SELECT id, region || '!' AS shouted FROM joined",
}


IN_EVERY_RUN = ("joined", "summed", "top")


def engines(service: Service, view: str) -> Mapping[str, Mapping[str, int]]:
    return service.get(f"/v1/jobs/{service.job(view)}")["engines"]


def filled(service: Service, rows: int) -> None:
    service.run("CREATE TABLE customers (id bigint PRIMARY KEY, region text)")
    service.run("CREATE TABLE orders (id bigint PRIMARY KEY, customer bigint, amount numeric(12,2))")
    service.run("INSERT INTO customers SELECT g, 'r' || g % 7 FROM generate_series(0, 999) g")
    service.run(f"INSERT INTO orders SELECT g, g % 1000, g / 4.0 FROM generate_series(1, {rows}) g")


def changed(service: Service) -> None:
    service.run("UPDATE orders SET customer = customer + 1 WHERE id % 9000 = 0")
    service.run("DELETE FROM orders WHERE id % 7000 = 0")
    service.run("UPDATE customers SET region = 'far' WHERE id = 77")
    service.run("INSERT INTO orders SELECT g, g % 1000, 1 FROM generate_series(1000001, 1000010) g")


def verified(service: Service, views: Collection[str] = VIEWS) -> None:
    for view in views:
        assert service.assert_equal(view, VIEWS[view]) > 0, view


@pytest.mark.parametrize("views", [IN_EVERY_RUN, pytest.param(tuple(VIEWS), marks=LATER)], ids=len)
def test_spark_reads_the_history_of_every_kind_of_view(service: Service, views: Collection[str]) -> None:
    """I1, I12: with the defaults, of 120,000 rows. The state store follows the few changes of an epoch."""
    filled(service, ROWS)
    for view in views:
        service.run(f"CREATE MATERIALIZED VIEW {view} AS {VIEWS[view]}")
        done = engines(service, view)
        assert done["spark"]["rows"] >= ROWS, (view, done)
        assert done["spark"]["jobs"] > 0, (view, done)
        assert done["store"]["rows"] == 0 or view == "distinct_rows", (view, done)
    before = {view: engines(service, view)["spark"]["rows"] for view in views}
    changed(service)
    verified(service, views)
    followed = {view: engines(service, view) for view in views}
    assert [view for view in views if followed[view]["spark"]["rows"] > before[view]] == []
    assert all(done["store"]["rows"] > 0 for done in followed.values()), followed
    told = service.sql(
        "SELECT facts FROM rw_catalog.rw_events WHERE kind = 'job.created' AND facts ->> 'name' = 'joined'"
        " ORDER BY id DESC LIMIT 1"
    )
    facts = told[0][0] if isinstance(told[0][0], dict) else json.loads(told[0][0])
    assert facts["engines"]["spark"]["rows"] >= ROWS, told


@pytest.mark.soak
@pytest.mark.parametrize("engine", ["spark", "store"])
def test_one_engine_does_everything_if_the_user_says_so(service: Service, engine: str) -> None:
    """I12: small histories, and changes."""
    filled(service, 3_000)
    for view in VIEWS:
        service.run(f"CREATE MATERIALIZED VIEW {view} AS {VIEWS[view]}", stage_engine=engine)
    changed(service)
    verified(service)
    other = {"spark": "store", "store": "spark"}[engine]
    for view in VIEWS:
        done = engines(service, view)
        assert done[other] == {"jobs": 0, "rows": 0}, (view, done)
        assert done[engine]["rows"] > 0, (view, done)
