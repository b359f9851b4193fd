"""CREATE INDEX over HTTP: used by SELECTs of users and by stages, shown, and gone with what it belongs to."""

import pytest

from tests.support.service import ProblemError, Service
from tests.support.waiting import until

pytestmark = pytest.mark.e2e

ROWS = 30_000
FOUND = "SELECT id FROM orders WHERE customer = 17"


def indexes(service: Service) -> list[tuple[object, ...]]:
    listed = service.sql("SELECT name, definition, status, needed_by, size > 0, indkey FROM rw_catalog.rw_indexes")
    return [tuple(row) for row in listed]


def columns(service: Service) -> set[str]:
    """Return the indexes of versioned tables that are built for lookups, by their columns."""
    found = service.stored(
        "select substring(indexdef from '\\(.*') from pg_indexes where schemaname = 'state' and indexname ~ '_by_'"
    )
    return {str(one) for (one,) in found}


def plan(service: Service, query: str) -> str:
    return "\n".join(str(line) for (line,) in service.stored(f"explain {query}"))


def filled(service: Service) -> None:
    service.run("CREATE TABLE orders (id bigint PRIMARY KEY, customer bigint, amount numeric(12,2), note text)")
    service.run("CREATE TABLE customers (id bigint PRIMARY KEY, region text)")
    service.run(f"INSERT INTO orders SELECT g, g % 3000, 1.5, 'n' || g FROM generate_series(1, {ROWS}) g")
    service.run("INSERT INTO customers SELECT g, 'r' || g % 7 FROM generate_series(0, 2999) g")


@pytest.mark.soak
def test_an_index_serves_users_and_stages_until_nobody_needs_it(service: Service) -> None:
    filled(service)
    assert "_by_" not in plan(service, FOUND)
    made = service.run("CREATE INDEX by_customer ON orders (customer DESC) INCLUDE (amount, note)")
    assert made["tag"] == "CREATE_INDEX"
    assert made["notices"] == ['values of "note" can be of any length, so the index leaves them out']
    assert columns(service) == {"(customer DESC, _to) INCLUDE (amount)"}
    assert "_by_" in plan(service, FOUND)
    before = service.sql(FOUND)
    assert len(before) == ROWS // 3000

    text = "SELECT o.id, c.region FROM customers c JOIN orders o ON o.customer = c.id"
    explained = [str(line) for (line,) in service.sql(f"EXPLAIN CREATE MATERIALIZED VIEW joined AS {text}")]
    cost = "looks up orders i1 by (customer), about 10 rows; rewrites at most about 10 rows"
    assert any(line.endswith(f"one changed row of customers i0: {cost}") for line in explained), explained
    assert any("index: orders (customer), exists, about " in line for line in explained), explained
    service.run(f"CREATE MATERIALIZED VIEW joined AS {text}")
    assert columns(service) == {"(customer DESC, _to) INCLUDE (amount)"}, "one index serves both"
    (shown,) = indexes(service)
    assert shown == (
        "by_customer",
        "CREATE INDEX by_customer ON orders (customer DESC) INCLUDE (amount, note)",
        "Created",
        ["joined"],
        True,
        [2],
    )
    assert service.sql("SHOW INDEXES FROM orders")[0][:6] == [
        "by_customer",
        "orders",
        "customer DESC",
        "amount, note",
        "customer",
        "Created",
    ]
    assert service.sql("SHOW CREATE INDEX by_customer")[0][1].startswith("CREATE INDEX by_customer")

    # Its name goes, and the stages keep the index.
    service.run("DROP INDEX by_customer")
    until(lambda: indexes(service)[0][0] == "__index_orders_customer", what=lambda: str(indexes(service)))
    assert columns(service) == {"(customer DESC, _to) INCLUDE (amount)"}
    service.run("UPDATE customers SET region = 'moved' WHERE id = 17")
    service.run("FLUSH")
    service.verified("joined")
    service.run("DROP MATERIALIZED VIEW joined")
    until(lambda: not columns(service) and not indexes(service), what=lambda: f"{columns(service)}")


@pytest.mark.soak
def test_an_index_is_dropped_with_its_relation(service: Service) -> None:
    """I9."""
    filled(service)
    service.run(
        "CREATE MATERIALIZED VIEW summed AS SELECT customer, sum(amount) AS total FROM orders GROUP BY customer"
    )
    service.run("CREATE INDEX by_total ON summed (total, customer)")
    service.run("CREATE INDEX by_note ON orders (note)")
    assert service.sql("SELECT count(*) FROM orders WHERE note = 'n7'") == [[1]]
    assert "_by_" in plan(service, "SELECT * FROM orders WHERE note = 'n7'")
    # I13: a value that no ordered index takes.
    service.run("INSERT INTO orders VALUES (0, 1, 1, repeat('x', 1000000))")
    assert sorted(str(row[0]) for row in indexes(service)) == ["by_note", "by_total"]
    service.run("DROP TABLE orders CASCADE")
    until(lambda: not columns(service) and not indexes(service), what=lambda: f"{indexes(service)}")
    service.run("CREATE TABLE by_note (id bigint PRIMARY KEY)")


def test_names_and_columns_are_checked(service: Service) -> None:
    filled(service)
    service.run("CREATE VIEW v AS SELECT id FROM orders")
    service.run("CREATE INDEX i ON orders (customer)")
    again = service.run("CREATE INDEX IF NOT EXISTS i ON orders (customer)")
    assert again["notices"] == ['index "i" already exists, skipping']

    def refused(text: str) -> str:
        with pytest.raises(ProblemError) as error:
            service.run(text)
        return str(error.value.problem["detail"])

    assert refused("CREATE INDEX i ON orders (amount)") == 'index with name "i" exists'
    assert refused("CREATE INDEX orders ON orders (amount)") == 'table with name "orders" exists'
    assert refused("CREATE TABLE i (id bigint PRIMARY KEY)") == 'index with name "i" exists'
    assert refused("CREATE INDEX j ON orders (none)") == 'column "none" of relation "orders" does not exist'
    assert refused("CREATE INDEX j ON nowhere (a)") == 'relation "nowhere" does not exist'
    assert refused("CREATE INDEX j ON v (id)") == '"v" is a view: only tables and materialized views have indexes'
    assert refused("CREATE INDEX j ON i (id)") == '"i" is an index'
    assert refused("DROP INDEX orders") == '"orders" is not an index; use DROP TABLE'
    assert refused("DROP TABLE i") == '"i" is not a table; use DROP INDEX'
    assert refused("DROP INDEX j") == 'index "j" does not exist'
    assert service.run("DROP INDEX IF EXISTS j")["notices"] == ['index "j" does not exist, skipping']
