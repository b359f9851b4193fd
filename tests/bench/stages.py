"""Views with joins, aggregates and top-n: their history, and live changes, beside what Postgres does alone."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from statistics import median
from typing import Final

from tests.bench.barriers import latencies
from tests.bench.clock import monotonic, pause, wall
from tests.bench.figures import Figure, Section, Target, of_samples, ratio
from tests.bench.tables import CUSTOMERS, Table, Tables
from tests.bench.writers import Writers
from tests.support.service import Service

SECONDS: Final = 20
_LAST: Final = (
    "SELECT id, customer, amount FROM (SELECT id, customer, amount, row_number() OVER"
    " (PARTITION BY customer ORDER BY created DESC, id DESC) AS place FROM {facts}) q WHERE place <= 3"
)
VIEWS: Final[Mapping[str, tuple[str, float]]] = {
    "join of each row with its customer": (
        "SELECT o.id, o.amount, o.status, c.name, c.region FROM {facts} o JOIN customers c ON c.id = o.customer",
        20_000,
    ),
    "count, sum and average by customer": (
        "SELECT customer, count(*) AS orders, sum(amount) AS total, avg(amount) AS mean FROM {facts} GROUP BY customer",
        20_000,
    ),
    "the last three rows of each customer": (_LAST, 15_000),
}
"""A query, and the changes per second that it should bear."""
ENGINES: Final = ("store", "spark")
HISTORY: Final = {"store": 0.6, "spark": 0.45}


def stages(service: Service, tables: Tables, rows: int, repeat: int) -> list[Section]:
    """Measure each view over a table of `rows` rows, and 20 mixed views together."""
    facts = tables.of(rows)
    service.sql("CREATE TABLE customers (id bigint PRIMARY KEY, name text, region text)")
    service.sql(
        "INSERT INTO customers SELECT g, 'customer ' || g, 'region ' || g % 10"
        f" FROM generate_series(0, {CUSTOMERS - 1}) g"
    )
    try:
        sections = [_history(service, facts, repeat)]
        sections += [
            _live(service, facts, name, query.format(facts=facts.name), rate) for name, (query, rate) in VIEWS.items()
        ]
        return [*sections, _mixed(service, facts)]
    finally:
        service.sql("DROP TABLE customers")


@contextmanager
def _view(service: Service, query: str, name: str = "staged", **session: str) -> Generator[float]:
    """Create a view, and drop it afterwards; give the seconds until it was created."""
    began = monotonic()
    service.run(f"CREATE MATERIALIZED VIEW {name} AS {query}", **session)
    try:
        yield monotonic() - began
    finally:
        service.sql(f"DROP MATERIALIZED VIEW {name}")


def _history(service: Service, facts: Table, repeat: int) -> Section:
    figures: list[Figure] = []
    for name, (text, _) in VIEWS.items():
        query = text.format(facts=facts.name)
        alone = [_created_by_postgres(service, query) for _ in range(repeat)]
        figures.append(of_samples(f"{name}: CREATE TABLE AS", alone, "s"))
        for engine in ENGINES:
            try:
                taken: list[float] = []
                for _ in range(repeat):
                    with _view(service, query, stage_engine=engine) as seconds:
                        taken.append(seconds)
            except Exception as error:  # noqa: BLE001 - an engine that refuses a view has no figure
                figures.append(Figure(f"{name}: {engine}", None, "s", note=str(error)[:80]))
                continue
            share = ratio(median(alone), median(taken))
            figures.append(of_samples(f"{name}: {engine}", taken, "s"))
            figures.append(Figure("  CREATE TABLE AS takes", share, "of it", Target(">=", HISTORY[engine])))
    return Section(f"History of views over {facts.rows:,} rows", tuple(figures))


def _created_by_postgres(service: Service, query: str) -> float:
    with service.store() as store:
        store.execute("create schema if not exists bench")
        began = monotonic()
        store.execute(f"create table bench.alone as {query}".encode())
        seconds = monotonic() - began
        store.execute("drop table bench.alone")
    return seconds


def _live(service: Service, facts: Table, name: str, query: str, rate: float) -> Section:
    with _view(service, query):
        figures = _written(service, facts, rate)
        figures.append(Figure("REFRESH .. CONCURRENTLY of the same query", _refreshed(service, query), "s"))
    return Section(f"Live changes: {name}", tuple(figures))


def _written(service: Service, facts: Table, rate: float) -> list[Figure]:
    with Writers(service, facts, rate) as writers:
        writers.until_steady()
        before, began, first = writers.changed, monotonic(), wall()
        pause(SECONDS)
        changed, seconds, last = writers.changed - before, monotonic() - began, wall()
    answered = Figure("changes", changed / seconds, "rows/s", Target(">=", rate), f"{rate:,.0f} asked for")
    return [answered, *latencies(service, first, last).figures(p50=1.0, p99=None)]


def _refreshed(service: Service, query: str) -> float:
    """Return what Postgres takes to bring its own materialized view up to date after 1,000 changes."""
    with service.store() as store:
        store.execute("create schema if not exists bench")
        store.execute(
            f"create materialized view bench.own as select row_number() over () as place, q.* from ({query}) q".encode()
        )
        store.execute("create unique index on bench.own (place)")
        began = monotonic()
        store.execute("refresh materialized view concurrently bench.own")
        seconds = monotonic() - began
        store.execute("drop materialized view bench.own")
    return seconds


def _mixed(service: Service, facts: Table) -> Section:
    queries = [text.format(facts=facts.name) for text, _ in VIEWS.values()]
    names = [f"mixed_{place}" for place in range(20)]
    for place, name in enumerate(names):
        service.run(f"CREATE MATERIALIZED VIEW {name} AS {queries[place % len(queries)]}")
    try:
        return Section("Live changes: 20 mixed views together", tuple(_written(service, facts, 2_000)))
    finally:
        for name in names:
            service.sql(f"DROP MATERIALIZED VIEW {name}")
