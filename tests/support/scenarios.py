"""Scenarios of the reference whose numbers of rows only time limits: small in `make test`, whole in `make soak`."""

from tests.support.service import Service


def table(service: Service, name: str, rows: int) -> None:
    """T(n): a table with the integers from 1 to n."""
    service.run(f"CREATE TABLE {name} (v int PRIMARY KEY)")
    if rows:
        service.run(f"INSERT INTO {name} SELECT * FROM generate_series(1, {rows})")


def view(service: Service, name: str, of: str, *, rate: int, background: bool = True) -> int:
    """Create a copy; return its job."""
    session = {"background_ddl": str(background).lower(), "backfill_rate_limit": str(rate)}
    service.run(f"CREATE MATERIALIZED VIEW {name} AS SELECT * FROM {of}", **session)
    return service.job(name)


def live_rows_arrive(service: Service, rows: int) -> None:
    """Scenario 36: as many live rows as there is history come while it is read, in three portions."""
    table(service, "t36", rows)
    job = view(service, "m36", "t36", rate=500)
    for first in range(rows + 1, 2 * rows, rows // 3):
        service.run(f"INSERT INTO t36 SELECT * FROM generate_series({first}, {first + rows // 3 - 1})")
    assert service.rows(job) < rows
    service.limit(job, None)
    service.run("WAIT")
    assert service.assert_equal("m36", "SELECT * FROM t36") == 2 * rows


def emptied_again_and_again(service: Service, times: int) -> None:
    """Scenario 39: the table is emptied and filled so often while its history is read."""
    table(service, "t39", 2_000)
    job = view(service, "m39", "t39", rate=1)
    for turn in range(1, times + 1):
        service.run("DELETE FROM t39")
        service.run(f"INSERT INTO t39 SELECT * FROM generate_series({turn}, {turn + 1_999})")
    service.run("DELETE FROM t39 WHERE v % 2 = 0")
    service.limit(job, 500)
    service.run("WAIT")
    assert service.assert_equal("m39", "SELECT * FROM t39") == 1_000
