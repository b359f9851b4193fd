"""Views with joins and groups that are built inside the database graph: each occurrence of a table has its own scan.

While their tables change, a scan is limited, paused, rescaled and waits for others, and the worker is killed. Then
the view equals its query (I1, I3, I11, I12), and goes on to follow.
"""

from random import Random
from threading import Event, Thread
from typing import Any, Final, Self

import pytest
from httpx import TransportError

from tests.support.service import ProblemError, Service
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.arrangement]

ROWS: Final = 3_000
SMALL: Final = ("shops", "goods", "days")
QUERY: Final = """SELECT s.v AS shop, g.v AS good, count(*) AS n, sum(f.v) AS total, max(f.v) AS most, min(d.v) AS first
    FROM facts f JOIN shops s ON s.id = f.a JOIN goods g ON g.id = f.b LEFT JOIN days d ON d.id = f.c
    GROUP BY s.v, g.v"""
PROGRESS: Final = (
    "SELECT upstream_table_name, progress FROM rw_catalog.rw_fragment_backfill_progress ORDER BY fragment_id"
)


@pytest.fixture
def shop(service: Service) -> Service:
    """A service with one large table and three small ones."""
    service.run("CREATE TABLE facts (id bigint PRIMARY KEY, a bigint, b bigint, c bigint, v bigint)")
    for name in SMALL:
        service.run(f"CREATE TABLE {name} (id bigint PRIMARY KEY, v bigint)")
        service.run(f"INSERT INTO {name} SELECT g, g % 7 FROM generate_series(1, 40) g")
    values = "g, g % 41, g * 7 % 43, nullif(g % 45, 0), g % 100"
    service.run(f"INSERT INTO facts SELECT {values} FROM generate_series(1, {ROWS}) g")
    return service


class Changes:
    """Changes of random rows, statement by statement, until left."""

    def __init__(self, service: Service) -> None:
        self.service, self.random, self.stop = service, Random(1), Event()
        self.done = 0
        self.error: Exception | None = None

    def __enter__(self) -> Self:
        self.thread = Thread(target=self._change, daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self.thread.join()
        if self.error is not None:
            raise self.error

    def more(self, statements: int) -> None:
        """Wait until some more statements are answered."""
        wanted = self.done + statements
        until(lambda: self.error or self.done >= wanted, what=lambda: f"{self.done} of {wanted} statements")

    def _change(self) -> None:
        while not self.stop.is_set():
            try:
                self.service.run(self._statement())
            except ProblemError as error:
                if error.status < 500:
                    self.error = error
                    return
            except TransportError:
                pass
            else:
                self.done += 1

    def _statement(self) -> str:
        key, value = self.random.randrange(ROWS + 20), self.random.randrange(50)
        small = self.random.choice(SMALL)
        return self.random.choice(
            [
                f"INSERT INTO facts VALUES ({key}, {value}, {value % 40}, {key % 44}, {value})",
                f"UPDATE facts SET a = {value}, v = v + 1 WHERE id % 97 = {key % 97}",
                f"DELETE FROM facts WHERE id % 211 = {key % 211}",
                f"UPDATE {small} SET v = {value % 9} WHERE id = {value}",
                f"DELETE FROM {small} WHERE id = {value}",
                f"INSERT INTO {small} VALUES ({value}, {key % 9})",
            ]
        )


def scans(service: Service, job: int) -> dict[str, dict[str, Any]]:
    """Return the scans of a job by their table's name."""
    return {one["upstream"]: one for one in service.detail(job)["fragments"] if one["scan_type"]}


def test_i1_i3_i4_i11_a_join_of_four_is_built_in_the_database_graph(shop: Service) -> None:
    service, order = shop, "FIXED(shops -> facts, goods -> facts, days -> facts)"
    options = f"WITH (backfill_order = {order}, backfill_rate_limit = 400)"
    with Changes(service) as changes:
        service.run(f"CREATE MATERIALIZED VIEW m {options} AS {QUERY}", background_ddl="true")
        job = service.job("m")
        service.until_rows(job, 0)
        progress = service.sql(PROGRESS)
        assert [name for name, _ in progress] == ["public.facts", "public.shops", "public.goods", "public.days"]
        facts = scans(service, job)["facts"]
        service.run(f"ALTER FRAGMENT {facts['id']} SET RATE_LIMIT = 100")
        until(lambda: not scans(service, job)["facts"]["waiting"], what=lambda: scans(service, job))
        others = [scans(service, job)[name] for name in SMALL]
        assert all(one["finished"] for one in others), "the facts come last"
        assert {one["scan_type"] for one in others} == {"ARRANGEMENT_BACKFILL"}

        service.post(f"/v1/jobs/{job}/pause")
        service.flush()
        paused = scans(service, job)["facts"]["rows"]
        changes.more(5)
        assert scans(service, job)["facts"]["rows"] == paused < ROWS
        service.post(f"/v1/jobs/{job}/resume")
        service.limit(job, 100)
        service.until_rows(job, service.rows(job))

        service.run("ALTER MATERIALIZED VIEW m SET BACKFILL_PARALLELISM = 5")
        until(lambda: len(scans(service, job)["facts"]["actors"]) == 5, what=lambda: scans(service, job))
        before = scans(service, job)["facts"]["rows"]
        until(lambda: scans(service, job)["facts"]["rows"] > before, what=lambda: scans(service, job))

        service.limit(job, 10)  # a slow machine must not build the rest between the kill and the look
        generation, read = service.graph()["generation"], scans(service, job)["facts"]["rows"]
        service.kill_worker()
        service.until_recovered(generation)
        assert service.state(job) == "Creating"
        assert scans(service, job)["facts"]["rows"] >= read
        service.limit(job, None)
        service.until_created("m")
        changes.more(10)
    assert equal(service, job)["rows"] > 10
    service.run("UPDATE facts SET v = v + 1")
    service.run("DELETE FROM shops WHERE id < 5")
    assert equal(service, job)["equal"]


def equal(service: Service, job: int) -> dict[str, Any]:
    """Return the comparison of a view with its query, which it equals."""
    service.flush()
    found: dict[str, Any] = service.post(f"/v1/jobs/{job}/verify")
    assert found["equal"], (found["rows_missing"][:3], found["rows_extra"][:3])
    return found
