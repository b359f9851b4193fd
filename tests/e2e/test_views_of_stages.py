"""Views with joins and aggregates, with real processes: built, kept current, verified, dropped."""

import pytest

from tests.support.service import Service

pytestmark = [pytest.mark.e2e, pytest.mark.soak]

VIEWS = {
    "joined": "SELECT o.id, o.amount, c.region FROM orders o LEFT JOIN customers c ON o.customer = c.id",
    "summed": (
        "SELECT c.region, sum(o.amount) AS total, count(*) AS n, avg(o.amount) AS mean"
        " FROM orders o JOIN customers c ON o.customer = c.id GROUP BY c.region"
    ),
    "ranked": "SELECT id, amount FROM orders ORDER BY amount DESC, id LIMIT 10",
    "best": (
        "SELECT c.region, max(o.amount) AS most FROM orders o JOIN customers c ON o.customer = c.id"
        " GROUP BY c.region HAVING count(*) > 2 ORDER BY most DESC, region LIMIT 3"
    ),
    "over_summed": "SELECT region, total, mean FROM summed",
}


def tables(service: Service) -> None:
    service.run("CREATE TABLE orders (id bigint PRIMARY KEY, customer bigint, amount numeric(12,2))")
    service.run("CREATE TABLE customers (id bigint PRIMARY KEY, region text)")
    service.run("INSERT INTO customers SELECT g, 'region ' || g % 7 FROM generate_series(1, 100) g")
    service.run("INSERT INTO orders SELECT g, g % 110, g % 1000 / 4.0 FROM generate_series(1, 3000) g")


def change(service: Service, step: int) -> None:
    service.run(f"UPDATE orders SET amount = amount + {step}, customer = (customer * 3) % 120 WHERE id % 5 = {step}")
    service.run(f"UPDATE customers SET region = 'moved {step}' WHERE id % 11 = {step}")
    service.run(f"DELETE FROM customers WHERE id = {50 + step}")
    service.run(f"INSERT INTO orders VALUES ({10_000 + step}, {50 + step}, 1.5)")


def test_views_of_stages_are_what_postgres_answers(service: Service) -> None:
    """I12."""
    tables(service)
    for name, query in VIEWS.items():
        service.run(f"CREATE MATERIALIZED VIEW {name} AS {query}")
    for step in range(3):
        change(service, step)
        service.run("FLUSH")
        for name in VIEWS:
            service.verified(name)
