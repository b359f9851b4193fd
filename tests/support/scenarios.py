"""Scenarios of the reference for every backfill strategy: views of all of them are built side by side over the same
tables, so that what a scenario waits for it waits for once.

Where only time limits the number of rows it is a parameter: small in `make test`, whole in `make soak`.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from tests.support.service import ARRANGEMENT, Service
from tests.support.waiting import until

NO_SHUFFLE: Final[Mapping[str, str]] = {**ARRANGEMENT, "streaming_use_arrangement_backfill": "false"}
"""The session of a NoShuffle backfill. Over a table it has one actor, so that a session may ask for no other number."""
STRATEGIES: Final[Mapping[str, Mapping[str, str]]] = MappingProxyType(
    {
        "snapshot": {"streaming_use_snapshot_backfill": "true"},
        "arrangement": ARRANGEMENT,
        "no_shuffle": NO_SHUFFLE,
    }
)
"""The session that asks for each strategy."""
RESCALED: Final = {name: STRATEGIES[name] for name in ("snapshot", "arrangement")}
"""Those whose parallelism is their own."""
FRAGMENT_PROGRESS: Final = "SELECT * FROM rw_catalog.rw_fragment_backfill_progress"


def table(service: Service, name: str, rows: int) -> None:
    """T(n): a table with the integers from 1 to n."""
    service.run(f"CREATE TABLE {name} (v int PRIMARY KEY)")
    if rows:
        service.run(f"INSERT INTO {name} SELECT * FROM generate_series(1, {rows})")


def view(service: Service, name: str, of: str, *, rate: int, background: bool = True) -> int:
    """Create a copy by the default strategy; return its job."""
    session = {"background_ddl": str(background).lower(), "backfill_rate_limit": str(rate)}
    service.run(f"CREATE MATERIALIZED VIEW {name} AS SELECT * FROM {of}", **session)
    return service.job(name)


def views(
    service: Service,
    name: str,
    query: str,
    *,
    rate: int | None = None,
    options: str = "",
    strategies: Mapping[str, Mapping[str, str]] = STRATEGIES,
    **session: str,
) -> dict[str, int]:
    """Create `<name>_<strategy>` in the background with every strategy, all at once; return the job of each."""
    service.run("ALTER SYSTEM SET max_concurrent_creating_streaming_jobs = 0")
    limit = "default" if rate is None else str(rate)
    asked = {"background_ddl": "true", "backfill_rate_limit": limit, "streaming_parallelism": "1", **session}
    names = {f"{name}_{strategy}": session for strategy, session in strategies.items()}
    answers = [
        service.later(f"CREATE MATERIALIZED VIEW {one} {options} AS {query}", **asked, **chosen)
        for one, chosen in names.items()
    ]
    for answer in answers:
        answer.result()
    return {one: service.job(one) for one in names}


def drop(service: Service, names: Mapping[str, int]) -> None:
    """Drop views, created or not, all at once."""
    for answer in [service.later(f"DROP MATERIALIZED VIEW {name}") for name in names]:
        answer.result()


def finish(service: Service, names: Mapping[str, int], query: str) -> int:
    """Let views be built without a limit; return how many rows each has, which are those of the query."""
    for answer in [service.calls.submit(service.limit, job, None) for job in names.values()]:
        answer.result()
    service.run("WAIT")
    return equal(service, names, query)


def equal(service: Service, names: Mapping[str, int], query: str) -> int:
    """Return how many rows each view has, which are those of the query."""
    (rows,) = {service.assert_equal(name, query) for name in names}
    return rows


def recovered(service: Service) -> None:
    """RECOVER, and wait until it is over."""
    generation = service.graph()["generation"]
    service.run("RECOVER")
    service.until_recovered(generation)


def goes_on_over_a_kill(
    service: Service, jobs: Mapping[str, int], shown: Callable[[str, str], str], *, actors: int = 1
) -> None:
    """Kill the worker of jobs over T(1000) at a limit of 1; progress goes on where it was (I6). `shown` gives what is
    shown of a job for its share.
    """
    generation = service.graph()["generation"]
    service.kill_worker()
    before = {name: service.rows(job) for name, job in jobs.items()}
    service.until_recovered(generation)
    for progress in service.progress():
        name, rows = progress["name"], progress["rows"]
        # What the worker had just answered may have been committed after it was killed.
        assert before[name] <= rows <= before[name] + actors * (1 + _worker_age(service) + 1)
        assert progress["progress"] == shown(name, f"{rows / 10:.2f}% ({rows}/1000)")
    for name, job in jobs.items():
        service.until_rows(job, before[name])


def _worker_age(service: Service) -> float:
    """Return for how many seconds the worker that lives has been there: a limit of 1 lets it read no more rows."""
    age = "select extract(epoch from clock_timestamp() - max(registered_at))::float8 from tidefill.worker"
    ((seconds,),) = service.stored(age)
    return seconds


def scan_rows(service: Service, job: int) -> dict[str, int]:
    """Return how many rows each scan has read, by its table's name."""
    return {one["upstream"]: one["rows"] for one in service.detail(job)["fragments"] if one["scan_type"]}


def until_all_read(service: Service, above: int = 0) -> None:
    """Wait until there are jobs, and every one has read more than so many rows."""

    def look() -> bool:
        jobs = service.progress()
        return bool(jobs) and all(job["rows"] > above for job in jobs)

    until(look, what=service.progress)


def live_rows_arrive(service: Service, rows: int, strategies: Mapping[str, Mapping[str, str]] = STRATEGIES) -> None:
    """Scenario 36: as many live rows as there is history come while it is read, in three portions."""
    table(service, "t36", rows)
    jobs = views(service, "m36", "SELECT * FROM t36", rate=500, strategies=strategies)
    for first in range(rows + 1, 2 * rows, rows // 3):
        service.run(f"INSERT INTO t36 SELECT * FROM generate_series({first}, {first + rows // 3 - 1})")
    assert all(service.rows(job) < rows for job in jobs.values())
    assert finish(service, jobs, "SELECT * FROM t36") == 2 * rows


def emptied_again_and_again(
    service: Service, times: int, strategies: Mapping[str, Mapping[str, str]] = STRATEGIES
) -> None:
    """Scenario 39: the table is emptied and filled so often while its history is read."""
    table(service, "t39", 2_000)
    jobs = views(service, "m39", "SELECT * FROM t39", rate=1, strategies=strategies)
    for turn in range(1, times + 1):
        service.run("DELETE FROM t39")
        service.run(f"INSERT INTO t39 SELECT * FROM generate_series({turn}, {turn + 1_999})")
    service.run("DELETE FROM t39 WHERE v % 2 = 0")
    assert finish(service, jobs, "SELECT * FROM t39") == 1_000


def cars_are_read_in_order(service: Service, sales: int, others: int) -> None:
    """Scenario 25: both dimensions before the fact, in a union where the reference joins; and without an order."""
    for name, rows in (("car_sales", sales), ("car_info", others), ("car_regions", others)):
        service.run(f"CREATE TABLE {name} (id int PRIMARY KEY, n int)")
        service.run(f"INSERT INTO {name} SELECT g, g % 997 FROM generate_series(1, {rows}) g")
    query = " UNION ALL ".join(f"SELECT id, n FROM {name}" for name in ("car_sales", "car_info", "car_regions"))
    order = "backfill_order = FIXED(car_regions -> car_sales, car_info -> car_sales)"
    options = f"WITH ({order}, backfill_rate_limit = {others // 2})"
    ordered = views(service, "ordered", query, options=options, strategies=RESCALED)

    def dimensions_are_read() -> bool | None:
        """Look at each view: no row of the fact before the last one of the dimensions."""
        read = [scan_rows(service, job) for job in ordered.values()]
        for rows in read:
            assert rows["car_sales"] == 0 or rows["car_info"] == rows["car_regions"] == others, rows
        return all(rows["car_sales"] > 0 for rows in read) or None

    until(dimensions_are_read, what=lambda: [service.detail(job) for job in ordered.values()])
    unordered = views(service, "unordered", query, strategies={"snapshot": STRATEGIES["snapshot"]})
    assert finish(service, ordered | unordered, query) == sales + 2 * others
