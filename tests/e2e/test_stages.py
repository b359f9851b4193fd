"""Views with joins, aggregates, subqueries and top-n over HTTP: all of TPC-H while tables change and processes die.

Half of the views are created before their tables have rows, half afterwards, by Snapshot and by Arrangement. After some
epochs each view equals its query (I1, I12), whatever was killed (I3). A cancelled view leaves nothing behind (I9).
"""

import os
from collections.abc import Iterator, Sequence
from random import Random
from threading import Event, Thread
from typing import Any, Self

import pytest
from httpx import TransportError

from tests.support import queries_tpch, tpch
from tests.support.service import ARRANGEMENT, ProblemError, Service, data_directory, running
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.own_service, pytest.mark.timeout(1800)]

SCALE = float(os.environ.get("TPCH_SCALE", "0.0005"))
QUERIES = queries_tpch.QUERIES


@pytest.fixture(scope="module")
def benchmark() -> Iterator[Service]:
    """A service with TPC-H's tables."""
    with data_directory() as directory, running(Service(directory, {})) as service:
        service.run("ALTER SYSTEM SET barrier_interval_ms = 200")
        service.run("ALTER SYSTEM SET max_concurrent_creating_streaming_jobs = 0")
        for text in queries_tpch.TABLES.values():
            service.run(text)
        yield service


class Changes:
    """Changes of random tables, statement by statement, until left."""

    def __init__(self, service: Service, seed: int) -> None:
        self.service, self.random, self.stop = service, Random(seed), Event()
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

    def until_done(self, more: int) -> None:
        """Wait for some more statements to be answered."""
        wanted = self.done + more
        until(lambda: self.error or self.done >= wanted, what=lambda: f"{self.done} of {wanted} statements")

    def _change(self) -> None:
        while not self.stop.is_set():
            statement = tpch.changed(self.random, SCALE)
            try:
                self.service.run(statement)
            except ProblemError as error:
                if error.status < 500:
                    self.error = error
                    return
            except TransportError:
                pass
            else:
                self.done += 1


def assert_equal(service: Service, names: Sequence[str]) -> None:
    """Each view holds what its query answers at one epoch."""
    service.flush()
    wrong = {name: result for name in names if not (result := _verified(service, name))["equal"]}
    assert not wrong, {name: (one["rows_missing"][:3], one["rows_extra"][:3]) for name, one in wrong.items()}


def _verified(service: Service, name: str) -> dict[str, Any]:
    return service.post(f"/v1/jobs/{service.job(name)}/verify")


def test_i1_i3_i12_tpch_is_followed_through_kills(benchmark: Service) -> None:
    service, names = benchmark, list(QUERIES)
    for name in names[::2]:
        service.run(f"CREATE MATERIALIZED VIEW {name} AS {QUERIES[name]}", background_ddl="true")
    for name in names[::2]:
        service.until_created(name)
    for statement in tpch.filled(SCALE):
        service.run(statement)
    assert_equal(service, names[::2])
    with Changes(service, 1) as changes:
        for place, name in enumerate(names[1::2]):
            session = ARRANGEMENT if place % 2 else {}
            service.run(f"CREATE MATERIALIZED VIEW {name} AS {QUERIES[name]}", background_ddl="true", **session)
        for kill in (service.kill_worker, service.kill_jvm, service.kill):
            changes.until_done(4)
            generation = service.graph()["generation"]
            kill()
            if kill == service.kill:
                service.wait_killed()
                service.restart()
            service.wait_ready()
            service.until_recovered(generation)
        for name in names[1::2]:
            service.until_created(name)
        changes.until_done(20)
    assert_equal(service, names)
    assert sum(service.value(f"select count(*) from {name}") > 0 for name in names) > len(names) // 2


def test_i9_a_cancelled_view_of_stages_leaves_nothing(benchmark: Service) -> None:
    service = benchmark
    service.run("CREATE TABLE facts (id bigint PRIMARY KEY, k bigint)")
    service.run("CREATE TABLE dimensions (id bigint PRIMARY KEY, k bigint)")
    for table in ("facts", "dimensions"):
        service.run(f"INSERT INTO {table} SELECT g, g % 10 FROM generate_series(1, 500) g")

    def stored() -> list[tuple[object, ...]]:
        return service.stored("select relname from pg_class where relnamespace = 'state'::regnamespace order by 1")

    before = stored()
    query = "SELECT d.k, max(f.id) AS most FROM facts f JOIN dimensions d ON d.k = f.k GROUP BY d.k"
    service.run(f"CREATE MATERIALIZED VIEW slow WITH (backfill_rate_limit = 1) AS {query}", background_ddl="true")
    service.until_rows(service.job("slow"), 1)
    assert len(stored()) > len(before)
    service.post(f"/v1/jobs/{service.job('slow')}/cancel")
    until(lambda: stored() == before, what=lambda: f"nothing is left of {set(stored()) - set(before)}")
    for table in ("facts", "dimensions"):
        service.run(f"DROP TABLE {table}")
