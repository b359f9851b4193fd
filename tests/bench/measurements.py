"""What is measured of one view over one table: throughput and memory, barrier latency, pause, loss of the worker."""

import statistics
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from tests.bench.barriers import Latencies, latencies, window
from tests.bench.baselines import BY_KEY, NotMeasuredError, copy_at_once, insert_select, jdbc_copy, plain_tables, settle
from tests.bench.clock import monotonic, pause, seconds_between, wall
from tests.bench.figures import Figure, Section, Target, of_samples, per_second, percentile, ratio, shown
from tests.bench.memory import Memory, peak_of, peaks_of
from tests.bench.tables import Table, Tables
from tests.bench.writers import Writers
from tests.support.service import ARRANGEMENT, Service
from tests.support.waiting import until

VIEW: Final = "copied"
LIVE_ROWS_PER_SECOND: Final = 1_000
UNLIMITED_FROM: Final = 4_000_000
"""A smaller table is read in a few seconds: too soon to be paused or killed in the middle, so it is limited."""
LIMITED_SECONDS: Final = 40
BARRIERS: Final = 100
"""Of fewer the 99th percentile is the greatest."""
PAUSES: Final = 5
KILLS: Final = 3


# --- throughput and memory ----------------------------------------------------------------------------------------


def backfill(tables: Tables, sizes: list[int], repeat: int) -> list[Section]:
    """Copy tables of several sizes, each `repeat` times, a size by a fresh worker, and beside it without tidefill."""
    every = [tables.of(rows) for rows in sizes]
    sections: list[Section] = []
    peaks: list[Figure] = []
    for table in every:
        figures, peak = _backfill(tables.service, table, repeat)
        sections.append(Section(f"Backfill of {table.rows:,} rows, unthrottled, idle upstream", figures))
        peaks.append(peak)
    return [*sections, peaks_of(peaks)]


def _backfill(service: Service, table: Table, repeat: int) -> tuple[tuple[Figure, ...], Figure]:
    fresh_worker(service)
    runs = {
        strategy: [_copy_once(service, table, create_view(table), strategy.session) for _ in range(repeat)]
        for strategy in STRATEGIES
    }
    computed = [_copy_once(service, table, create_computed_view(table), {}) for _ in range(repeat)]
    through_spark = per_second(table.rows, [seconds for seconds, _, _ in computed])
    stored, by_key, jdbc, missing = _baselines(service, table, repeat)
    postgres = max(stored, by_key, key=statistics.median)
    figures = [Figure("load: INSERT .. SELECT generate_series", table.rows / table.load_seconds, "rows/s")]
    for strategy, done in runs.items():
        rates = per_second(table.rows, [seconds for seconds, _, _ in done])
        walls = per_second(table.rows, [seconds for _, seconds, _ in done])
        figures += [
            of_samples(f"{strategy.name}, start to Created", rates, "rows/s", note=f"first {rates[0]:,.0f}"),
            of_samples(f"{strategy.name}, as the caller of CREATE sees it", walls, "rows/s"),
            _share(f"{strategy.name} : Postgres alone, the faster way", rates, postgres, strategy.of_postgres),
            _share(f"{strategy.name} : Spark JDBC", rates, jdbc, strategy.of_jdbc, missing),
        ]
    figures += [
        of_samples("a computed column, through Spark", through_spark, "rows/s"),
        of_samples("Postgres alone, INSERT .. SELECT as stored", stored, "rows/s"),
        of_samples("Postgres alone, INSERT .. SELECT .. ORDER BY its key", by_key, "rows/s"),
        of_samples("Spark JDBC, one-shot copy", jdbc, "rows/s", note=missing),
    ]
    taken = [memory for done in (*runs.values(), computed) for _, _, memory in done]
    return tuple(figures), peak_of(table.rows, taken)


@dataclass(frozen=True)
class Strategy:
    """One way to backfill, and what share it should reach of what there is without tidefill."""

    name: str
    session_of: tuple[tuple[str, str], ...]
    of_postgres: float
    of_jdbc: float
    of_idle: float | None
    """How much slower barriers may be, which others wait for."""

    @property
    def session(self) -> dict[str, str]:
        return dict(self.session_of)


STRATEGIES: Final = (
    Strategy("Snapshot", (), 0.65, 1.0, 1.3),
    Strategy("Arrangement", tuple(ARRANGEMENT.items()), 0.5, 0.8, None),
)


def _share(name: str, rates: Sequence[float], baseline: Sequence[float], least: float, note: str = "") -> Figure:
    rate = statistics.median(rates)
    share = ratio(rate, statistics.median(baseline) if baseline else None)
    return Figure(name, share, "x", Target(">=", least), note)


def _copy_once(
    service: Service, table: Table, statement: str, session: Mapping[str, str]
) -> tuple[float, float, Memory]:
    """Return the seconds from the job's start to Created, those its caller waited, and the memory taken."""
    settle(service)
    with Memory(service) as memory:
        began = monotonic()
        service.sql(statement, **session)
        waited = monotonic() - began
    job = service.detail(service.job(VIEW))["job"]
    found = service.value(f"select count(*) from {VIEW}")
    assert found == table.rows, (found, table.rows)
    drop_view(service)
    return seconds_between(job["started_at"], job["finished_at"]), waited, memory


Rates = tuple[float, ...]


def _baselines(service: Service, table: Table, repeat: int) -> tuple[Rates, Rates, Rates, str]:
    """Return rows/s of Postgres in both orders and of Spark JDBC, and why the latter is missing."""
    stored: list[float] = []
    by_key: list[float] = []
    jdbc: list[float] = []
    missing = ""
    with plain_tables(service, table):
        for _ in range(repeat):
            stored.append(insert_select(service, table))
            by_key.append(insert_select(service, table, BY_KEY))
            try:
                jdbc.append(jdbc_copy(service, table))
            except NotMeasuredError as error:
                missing = str(error)
    rates = [per_second(table.rows, seconds) for seconds in (stored, by_key, jdbc)]
    return rates[0], rates[1], rates[2], missing


# --- barriers ----------------------------------------------------------------------------------------------------


Span = tuple[datetime, datetime]


def latency(service: Service, table: Table) -> list[Section]:
    """Measure barriers of a table that changes: while nothing else happens, beside copies that Postgres makes by itself
    and that take as many processors, and while views are built, by each strategy.
    """
    with Writers(service, table, LIVE_ROWS_PER_SECOND) as writers:
        writers.until_steady()
        began, changed = monotonic(), writers.changed
        idle = _while(service, lambda: _timed(lambda: pause(10 * interval_seconds(service))))
        with plain_tables(service, table):
            beside = _while(service, lambda: _timed(lambda: copy_at_once(service, table)))
        built = {
            strategy: _while(service, lambda strategy=strategy: _build(service, table, strategy))
            for strategy in STRATEGIES
        }
        rate = (writers.changed - changed) / (monotonic() - began)
    live = Figure("live writes", rate, "rows/s", note=f"{LIVE_ROWS_PER_SECOND:,} asked for")
    title = "The database graph's barriers under live writes,"
    return [
        Section(f"{title} and nothing else", (live, *idle.figures(p50=None, p99=None))),
        Section(
            f"{title} beside two INSERT .. SELECT of {table.rows:,} rows by Postgres alone",
            (*beside.figures(p50=None, p99=None), _slower(beside, idle, None)),
        ),
        *(
            Section(
                f"{title} {strategy.name} of {table.rows:,} rows{_said(table)}",
                (*found.figures(p50=1.0, p99=2.0), _slower(found, idle, strategy.of_idle)),
            )
            for strategy, found in built.items()
        ),
    ]


def _while(service: Service, step: Callable[[], Span]) -> Latencies:
    """Take a step, which says when it began and ended, until so many barriers were injected meanwhile."""
    found: list[float] = []
    while len(found) < BARRIERS:
        found += latencies(service, *step()).seconds
    return Latencies(tuple(found))


def _timed(step: Callable[[], None]) -> Span:
    began = wall()
    step()
    return began, wall()


def _build(service: Service, table: Table, strategy: Strategy) -> Span:
    with building(service, table, strategy.session) as job:
        service.post(f"/v1/jobs/{job}/wait?timeout_seconds=3600")
        built = service.detail(job)["job"]
    return datetime.fromisoformat(built["started_at"]), datetime.fromisoformat(built["finished_at"])


def _slower(found: Latencies, idle: Latencies, most: float | None) -> Figure:
    share = ratio(percentile(found.seconds, 0.99), percentile(idle.seconds, 0.99))
    return Figure("p99 : that of nothing else", share, "x", None if most is None else Target("<=", most))


def pausing(service: Service, table: Table) -> Section:
    """Pause and resume a backfill at different moments of its interval."""
    intervals: list[float] = []
    rows_after = 0
    with building(service, table, ARRANGEMENT) as job:
        interval = interval_seconds(service)
        for turn in range(PAUSES):
            service.until_rows(job, service.rows(job))
            pause(interval * turn / PAUSES)
            asked = wall()
            epoch = service.mutate({"type": "pause"})
            held = service.rows(job)
            (carried,) = [b for b in window(service, asked, wall()) if int(b["epoch"]) == epoch]
            intervals.append((datetime.fromisoformat(carried["published_at"]) - asked).total_seconds() / interval)
            for _ in range(3):
                service.flush()
            rows_after += service.rows(job) - held
            assert service.state(job) == "Creating", "the backfill ended before it could be paused: take more rows"
            service.mutate({"type": "resume"})
    return Section(
        f"Pause of a backfill of {table.rows:,} rows{_said(table)}",
        (
            of_samples("asked to its epoch published", intervals, "intervals", target=Target("<=", 2)),
            Figure("the slowest", max(intervals), "intervals", Target("<=", 2)),
            Figure("rows of history read after it", rows_after, "rows", Target("<=", 0)),
        ),
    )


def losing_the_worker(service: Service, table: Table) -> Section:
    """Kill the worker in the middle of a backfill."""
    seconds: list[float] = []
    for _ in range(KILLS):
        with building(service, table, ARRANGEMENT) as job:
            service.until_rows(job, 0)
            seconds.append(_kill_once(service, job))
    note = "a worker that lived less than a minute is started again a little later each time"
    return Section(
        f"SIGKILL of the worker while backfilling {table.rows:,} rows{_said(table)}",
        (of_samples("kill to the first new row", seconds, "s", target=Target("<", 20), note=note),),
    )


def _kill_once(service: Service, job: int) -> float:
    generation, held = service.graph()["generation"], service.rows(job)
    began = monotonic()
    service.kill_worker()

    def moved() -> bool:
        nonlocal held
        rows = service.rows(job)
        if service.graph()["generation"] == generation:
            held = rows  # what the old generation had collected may still be committed
            return False
        return rows > held

    until(moved, what="history moves again")
    return monotonic() - began


# --- shared ------------------------------------------------------------------------------------------------------


def create_view(table: Table) -> str:
    """Return the statement that copies a table."""
    return f"CREATE MATERIALIZED VIEW {VIEW} AS SELECT * FROM {table.name}"


def create_computed_view(table: Table) -> str:
    """Return the statement that copies a table with a column that only Spark can compute."""
    columns = "id, customer, upper(status) as status, amount, created"
    return f"CREATE MATERIALIZED VIEW {VIEW} AS SELECT {columns} FROM {table.name}"


def drop_view(service: Service) -> None:
    """Drop the copy and wait until nothing of it is left."""
    service.sql(f"DROP MATERIALIZED VIEW IF EXISTS {VIEW}")


@contextmanager
def building(service: Service, table: Table, strategy: Mapping[str, str]) -> Generator[int]:
    """Start a view in the background, which takes long enough to be watched; yield its job and drop it afterwards."""
    limit = _limit(table)
    session = {**strategy, **({} if limit is None else {"backfill_rate_limit": str(limit)})}
    service.sql(create_view(table), background_ddl="true", **session)
    try:
        yield service.job(VIEW)
    finally:
        drop_view(service)


def fresh_worker(service: Service) -> None:
    """Replace the worker by one that has run nothing yet, and wait until it runs the graph."""
    generation = service.graph()["generation"]
    service.kill_worker()
    service.until_recovered(generation)


def interval_seconds(service: Service) -> float:
    """Return the interval of barriers."""
    return int(service.get("/v1/system-parameters")["barrier_interval_ms"]) / 1000


def _limit(table: Table) -> int | None:
    """Return a limit per actor, in rows a second, under which a small table takes a while."""
    if table.rows >= UNLIMITED_FROM:
        return None
    return max(table.rows // LIMITED_SECONDS // 2, 50)


def _said(table: Table) -> str:
    limit = _limit(table)
    return "" if limit is None else f", limited to {shown(limit)} rows/s and actor"
