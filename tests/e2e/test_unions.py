"""Views over several scans and over views, with real processes: UNION ALL, chains, the same relation twice."""

import pytest

from tests.support.service import Service

pytestmark = pytest.mark.e2e

UNION = (
    "SELECT id, amount, 'live' AS origin FROM orders WHERE amount < 500"
    " UNION ALL SELECT id, amount, 'live' FROM orders WHERE amount >= 500 AND amount < 900"
    " UNION ALL SELECT id, amount, k FROM named"
    " UNION ALL SELECT amount, amount, NULL::text FROM loose"
)

PASSING = (
    "SELECT id, amount FROM orders WHERE amount < 500"
    " UNION ALL SELECT id, amount FROM orders WHERE amount >= 500 AND amount < 900"
    " UNION ALL SELECT id, amount FROM named"
    " UNION ALL SELECT amount, amount FROM loose"
)


def tables(service: Service) -> None:
    """Tables whose keys differ in columns, types and order; one has none."""
    service.run("CREATE TABLE orders (id bigint PRIMARY KEY, amount int)")
    service.run("CREATE TABLE named (k text, id bigint, amount bigint, PRIMARY KEY (k DESC, id))")
    service.run("CREATE TABLE loose (amount int)")
    service.run("INSERT INTO orders SELECT g, g % 1000 FROM generate_series(1, 3000) g")
    service.run("INSERT INTO named SELECT 'k' || g % 7, g, g % 1000 FROM generate_series(1, 2000) g")
    service.run("INSERT INTO loose SELECT g % 10 FROM generate_series(1, 1000) g")


def change(service: Service, step: int) -> None:
    """Rows come, go, change, move their key, and move from one branch of the union to another."""
    service.run(f"UPDATE orders SET amount = (amount * 7 + {step}) % 1000 WHERE id % 5 = {step % 5}")
    service.run(f"UPDATE named SET id = id + 100000, k = 'moved' WHERE id = {10 + step}")
    service.run(f"DELETE FROM orders WHERE id = {100 + step}")
    service.run(f"INSERT INTO loose VALUES ({step}), ({step})")
    service.run(f"DELETE FROM loose WHERE amount = {step % 3}")


@pytest.mark.soak
@pytest.mark.parametrize(
    "query",
    [pytest.param(PASSING, id="copied in the store"), pytest.param(UNION, id="through Spark")],
)
def test_a_union_equals_its_branches_while_they_change_and_its_worker_dies(service: Service, query: str) -> None:
    """I1 for every scan, I3."""
    tables(service)
    service.run(
        f"CREATE MATERIALIZED VIEW united WITH (backfill_rate_limit = 200) AS {query}",
        background_ddl="true",
        streaming_parallelism="2",
    )
    job = service.job("united")
    scans = [one for one in service.detail(job)["fragments"] if one["scan_type"]]
    assert [scan["upstream"] for scan in scans] == ["orders", "orders", "named", "loose"]
    service.until_rows(job, 500)
    for step in range(3):
        change(service, step)
        service.verified("united")
    generation = service.graph()["generation"]
    service.kill_worker()
    service.until_recovered(generation)
    change(service, 3)
    service.verified("united")
    service.limit(job, None)
    service.until_created("united")
    change(service, 4)
    service.flush()
    assert service.assert_equal("united", query) > 4_000


@pytest.mark.soak
def test_views_stand_on_views_and_unions(service: Service) -> None:
    """A chain: table -> union -> union of views -> view; a change runs through all of it in one epoch (I2)."""
    tables(service)
    service.run(f"CREATE MATERIALIZED VIEW united AS {UNION}")
    service.run("CREATE MATERIALIZED VIEW doubled AS SELECT id, amount * 2 AS twice FROM united WHERE amount > 100")
    service.run(
        "CREATE MATERIALIZED VIEW again AS SELECT id, twice FROM doubled UNION ALL SELECT id, amount FROM united"
        " UNION ALL SELECT id, twice FROM doubled WHERE id > 50"
    )
    service.run("CREATE MATERIALIZED VIEW last AS SELECT twice FROM again WHERE twice % 2 = 0")
    for step in range(3):
        change(service, step)
    service.flush()
    doubled = f"SELECT id, amount * 2 AS twice FROM ({UNION}) u WHERE amount > 100"
    again = (
        f"SELECT id, twice FROM ({doubled}) a UNION ALL SELECT id, amount FROM ({UNION}) b"
        f" UNION ALL SELECT id, twice FROM ({doubled}) c WHERE id > 50"
    )
    service.assert_equal("united", UNION)
    service.assert_equal("doubled", doubled)
    service.assert_equal("again", again)
    service.assert_equal("last", f"SELECT twice FROM ({again}) d WHERE twice % 2 = 0")
    refused = service.refused("DROP MATERIALIZED VIEW united")
    assert "depend on it" in str(refused)
    service.run("DROP MATERIALIZED VIEW united CASCADE")
    assert service.sql("SELECT name FROM rw_catalog.rw_materialized_views") == []


def test_branches_whose_types_differ_are_refused_at_their_place(service: Service) -> None:
    tables(service)
    refused = service.refused("CREATE MATERIALIZED VIEW m AS SELECT id FROM orders UNION ALL SELECT k FROM named")
    assert "UNION types bigint and text cannot be matched" in str(refused)
    assert service.sql("SHOW JOBS") == []
