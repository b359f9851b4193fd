"""Views with joins, aggregates and top-n: their history, and live changes, beside what Postgres does alone."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from statistics import median
from typing import Final

from tests.bench.barriers import latencies
from tests.bench.baselines import NotMeasuredError, jdbc_query, settle
from tests.bench.clock import monotonic, pause, wall
from tests.bench.figures import Figure, Section, Target, of_samples, ratio
from tests.bench.measurements import fresh_worker
from tests.bench.memory import Memory, peak_of, peaks_of
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


def stages(service: Service, tables: Tables, sizes: list[int], repeat: int) -> list[Section]:
    """Measure the history of each view over tables of several sizes. Over the smallest one measure live changes too, of
    each view and of 20 mixed views together.
    """
    every = [tables.of(rows) for rows in sizes]
    service.sql("CREATE TABLE customers (id bigint PRIMARY KEY, name text, region text)")
    service.sql(
        "INSERT INTO customers SELECT g, 'customer ' || g, 'region ' || g % 10"
        f" FROM generate_series(0, {CUSTOMERS - 1}) g"
    )
    try:
        found = [_history(service, facts, repeat) for facts in every]
        sections = [*(section for section, _ in found), peaks_of([peak for _, peak in found])]
        sections += [
            _live(service, every[0], name, query.format(facts=every[0].name), rate)
            for name, (query, rate) in VIEWS.items()
        ]
        return [*sections, _mixed(service, every[0])]
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


def _history(service: Service, facts: Table, repeat: int) -> tuple[Section, Figure]:
    fresh_worker(service)
    figures: list[Figure] = []
    runs: list[Memory] = []
    with _plain(service, facts):
        for name, (text, _) in VIEWS.items():
            query = text.format(facts=facts.name)
            alone = [_created_by_postgres(service, query) for _ in range(repeat)]
            plain, missing = _by_plain_spark(service, facts, text, repeat)
            figures.append(of_samples(f"{name}: CREATE TABLE AS", alone, "s"))
            figures.append(of_samples(f"{name}: plain Spark SQL over JDBC", plain, "s", note=missing))
            for engine in ENGINES:
                try:
                    taken = [_built(service, query, engine, runs) for _ in range(repeat)]
                except Exception as error:  # noqa: BLE001 - an engine that refuses a view has no figure
                    figures.append(Figure(f"{name}: {engine}", None, "s", note=str(error)[:80]))
                    continue
                figures.append(of_samples(f"{name}: {engine}", taken, "s"))
                figures += _shares(engine, median(taken), alone, plain)
    return Section(f"History of views over {facts.rows:,} rows", tuple(figures)), peak_of(facts.rows, runs)


def _built(service: Service, query: str, engine: str, runs: list[Memory]) -> float:
    settle(service)
    with Memory(service) as memory, _view(service, query, stage_engine=engine) as seconds:
        pass
    runs.append(memory)
    return seconds


def _shares(engine: str, taken: float, alone: list[float], plain: list[float]) -> list[Figure]:
    of_postgres = Figure("  CREATE TABLE AS takes", ratio(median(alone), taken), "of it", Target(">=", HISTORY[engine]))
    if engine == "store" or not plain:
        return [of_postgres]
    return [of_postgres, Figure("  plain Spark SQL takes", ratio(median(plain), taken), "of it", Target(">=", 2.0))]


@contextmanager
def _plain(service: Service, facts: Table) -> Generator[None]:
    """Keep plain copies of the inputs, with their keys: no version of a row has to be told from another."""
    with service.store() as store:
        store.execute("drop schema if exists bench cascade; create schema bench")
        for plain, relation in (("facts", facts.name), ("customers", "customers")):
            store.execute(f"create table bench.{plain} as select * from {relation}".encode())
            store.execute(f"alter table bench.{plain} add primary key (id)".encode())
            store.execute(f"analyze bench.{plain}".encode())
    try:
        yield
    finally:
        with service.store() as store:
            store.execute("drop schema bench cascade")


def _by_plain_spark(service: Service, facts: Table, text: str, repeat: int) -> tuple[list[float], str]:
    """Return the seconds of computing the view as a whole, which is also what a full recomputation takes."""
    tables = {"facts": ("bench.facts", facts.rows), "customers": ("bench.customers", CUSTOMERS)}
    taken: list[float] = []
    try:
        for _ in range(repeat):
            taken.append(jdbc_query(service, text.format(facts="facts"), tables, "bench.computed"))
            with service.store() as store:
                store.execute("drop table bench.computed")
    except NotMeasuredError as error:
        return [], str(error)
    return taken, ""


def _created_by_postgres(service: Service, query: str) -> float:
    with service.store() as store:
        store.execute("checkpoint")
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
