"""A hundred jobs that are being created, and hundreds more that are queued: what they cost a barrier, and what it costs
to ask how far they are. All are paused but for a barrier now and then, which few processors need many seconds for.
"""

import re
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from tests.bench.barriers import latencies
from tests.bench.clock import monotonic, pause, wall
from tests.bench.figures import Figure, Section, Target, of_samples, percentile, shown
from tests.bench.measurements import interval_seconds
from tests.support.service import ARRANGEMENT, Service
from tests.support.waiting import until

CREATING: Final = 100
CALLERS: Final = 8
VNODES: Final = 256
UPSTREAM: Final = "upstream"
UPSTREAM_ROWS: Final = 25_600
MOVING_INTERVAL_MS: Final = 10_000
"""So long that no barrier comes between those that are asked for."""
LIMIT: Final = UPSTREAM_ROWS // 10 // (MOVING_INTERVAL_MS // 1000)
"""Rows per second and actor of two: in each of these intervals a fifth of the history. A job whose last vnodes have
begun is three quarters through, or a little more, and does not end.
"""
BEGUN: Final = 0.9
"""With such a part of all vnodes begun there is as much to store as there will be; to the very last some jobs end."""
WINDOWS: Final = 5
WINDOW_BARRIERS: Final = 10
CALLS: Final = 300
"""Of each endpoint. The 99th percentile is the third longest."""
_TRANSACTIONS: Final = re.compile(r'^tidefill_meta_store_seconds_(sum|count)\{stage="(\w+)"\} (\S+)$', re.MULTILINE)


@dataclass
class Jobs:
    """Creates jobs when they are first asked for; `end` cancels them."""

    service: Service
    creating: int = 0
    queued: int = 0
    made_per_second: float = 0.0

    def create(self) -> None:
        """Have so many jobs created that none of them reads."""
        if self.creating:
            return
        self.service.sql(f"CREATE TABLE {UPSTREAM} (id bigint PRIMARY KEY, amount bigint)")
        self.service.sql(f"INSERT INTO {UPSTREAM} SELECT g, g FROM generate_series(1, {UPSTREAM_ROWS}) g")
        self._set(barrier_interval_ms=100, max_concurrent_creating_streaming_jobs=0)
        self.service.mutate({"type": "pause"})
        seconds = self._make(range(CREATING))
        self.creating, self.made_per_second = CREATING, CREATING / seconds
        until(self._started, what=lambda: f"every job has begun: {self.service.progress()[-1]}")
        self._set(barrier_interval_ms="DEFAULT")

    def queue(self, count: int) -> None:
        """Have so many jobs besides, which wait for those that are being created."""
        if self.queued:
            return
        self._set(max_concurrent_creating_streaming_jobs=1)
        self._make(range(self.creating, self.creating + count))
        self.queued = count

    def move(self) -> dict[str, float]:
        """Have every job read for one barrier; return the seconds of that one's transactions and of the next one's,
        which pauses again.
        """
        self._set(barrier_interval_ms=MOVING_INTERVAL_MS)
        before = transactions(_page(self.service))
        self.service.post("/v1/mutations?wait=queued", {"type": "resume"})
        self.service.mutate({"type": "pause"})
        taken = since(self.service, before)
        self._set(barrier_interval_ms="DEFAULT")
        return taken

    def positions(self) -> int:
        """Return how many positions are stored."""
        ((count,),) = self.service.stored("select count(*) from tidefill.backfill_position")
        return count

    def ids(self) -> list[int]:
        """Return the ids of the jobs, the queued ones first."""
        return [job["ddl_id"] for job in sorted(self.service.progress(), key=lambda job: -job["ddl_id"])]

    def end(self) -> None:
        """Leave nothing of them."""
        if not self.creating:
            return
        self.service.sql("CANCEL JOBS " + ", ".join(str(one) for one in self.ids()))
        self.service.sql(f"DROP TABLE {UPSTREAM}")
        self.service.mutate({"type": "resume"})
        self._set(max_concurrent_creating_streaming_jobs="DEFAULT")
        self.creating = self.queued = 0

    def _make(self, numbers: range) -> float:
        began = monotonic()
        with ThreadPoolExecutor(CALLERS) as callers:
            for made in [callers.submit(self._make_one, number) for number in numbers]:
                made.result()
        return monotonic() - began

    def _make_one(self, number: int) -> None:
        self.service.sql(
            f"CREATE MATERIALIZED VIEW job_{number} AS SELECT id, amount + {number} AS amount FROM {UPSTREAM}",
            background_ddl="true",
            backfill_rate_limit=str(LIMIT),
            **ARRANGEMENT,
        )

    def _started(self) -> bool:
        found = self.service.progress()
        return len(found) == self.creating and all(job["phase"] == "backfilling" for job in found)

    def _set(self, **parameters: int | str) -> None:
        for name, value in parameters.items():
            self.service.sql(f"ALTER SYSTEM SET {name} = {value}")


def creating_jobs(service: Service, jobs: Jobs) -> list[Section]:
    """Watch barriers beside jobs that are being created: while none of them reads, and while all of them do."""
    jobs.create()
    moving: list[dict[str, float]] = []
    while jobs.positions() < BEGUN * CREATING * VNODES:
        moving.append(jobs.move())
        assert len(service.progress()) == CREATING, "a job has ended: let them read less at once"
    held = [_window(service) for _ in range(WINDOWS)]
    began = wall()
    pause(WINDOW_BARRIERS * interval_seconds(service))
    idle = latencies(service, began, wall())
    made = Figure("made", jobs.made_per_second, "jobs/s", note=f"{CALLERS} callers")
    return [
        Section(
            f"{CREATING} jobs being created, {VNODES} positions each, none of which moves",
            (made, *_per_barrier(held, f"{WINDOW_BARRIERS} barriers each"), *idle.figures(p50=1.0, p99=2.0)),
        ),
        Section(
            f"{CREATING} jobs being created that read all at once",
            _per_barrier(moving, "one barrier, and the next, in which they pause again"),
        ),
    ]


def progress(service: Service, jobs: Jobs, count: int) -> list[Section]:
    """Ask how far `count` jobs are, a hundred of them being created and the others queued, one call after the other."""
    jobs.create()
    jobs.queue(count - CREATING)
    first = jobs.ids()[-1]
    scan = next(one["id"] for one in service.detail(first)["fragments"] if one["scan_type"] is not None)
    calls: Mapping[str, Callable[[], object]] = {
        "GET /v1/jobs": lambda: _get(service, "/v1/jobs?state=Creating&state=Queued"),
        "GET /v1/jobs, a later page": lambda: _get(service, f"/v1/jobs?after={first + count // 2}"),
        "GET /v1/jobs/{job}": lambda: _get(service, f"/v1/jobs/{first}"),
        "GET /v1/fragments/{fragment}": lambda: _get(service, f"/v1/fragments/{scan}"),
        "GET /v1/fragments/{fragment}/vnodes": lambda: _get(service, f"/v1/fragments/{scan}/vnodes"),
        "GET /v1/ddl-progress": lambda: _get(service, "/v1/ddl-progress"),
        "GET /v1/fragment-backfill-progress": lambda: _get(service, "/v1/fragment-backfill-progress"),
        "SELECT * FROM rw_ddl_progress": lambda: _select(service, "rw_ddl_progress"),
        "SELECT * FROM rw_fragment_backfill_progress": lambda: _select(service, "rw_fragment_backfill_progress"),
    }
    figures: list[Figure] = []
    for name, call in calls.items():
        call()
        seconds = [_seconds(call) for _ in range(CALLS)]
        note = f"p50 {shown(percentile(seconds, 0.5) * 1000)} ms, {CALLS} calls"
        figures.append(Figure(f"{name}, p99", percentile(seconds, 0.99) * 1000, "ms", Target("<", 50), note))
    return [Section(f"Progress of {count:,} jobs, {CREATING} of them being created", tuple(figures))]


def transactions(page: str) -> dict[str, float]:
    """Return what a page of metrics says: the seconds of barriers' transactions so far, by stage, and `barriers`, how
    many were committed.
    """
    found = {(kind, stage): float(value) for kind, stage, value in _TRANSACTIONS.findall(page)}
    seconds = {stage: value for (kind, stage), value in found.items() if kind == "sum"}
    return {**seconds, "barriers": found.get(("count", "commit"), 0.0)}


def since(service: Service, before: Mapping[str, float]) -> dict[str, float]:
    """Return what was added."""
    return {name: value - before.get(name, 0.0) for name, value in transactions(_page(service)).items()}


def _window(service: Service) -> dict[str, float]:
    """Return the mean of some barriers."""
    before = transactions(_page(service))
    pause(WINDOW_BARRIERS * interval_seconds(service))
    taken = since(service, before)
    assert taken["barriers"], "no barrier was committed"
    return {name: value / taken["barriers"] for name, value in taken.items()}


def _per_barrier(samples: list[dict[str, float]], note: str) -> tuple[Figure, ...]:
    stages = sorted(samples[0].keys() - {"barriers"})
    whole = [sum(one[stage] for stage in stages) * 1000 for one in samples]
    return (
        of_samples("meta store, all of a barrier", whole, "ms", target=Target("<", 200), note=note),
        *(of_samples(f"its part in {stage}", [one[stage] * 1000 for one in samples], "ms") for stage in stages),
    )


def _seconds(call: Callable[[], object]) -> float:
    began = monotonic()
    call()
    return monotonic() - began


def _get(service: Service, path: str) -> None:
    assert service.http.get(path).status_code == 200, path


def _select(service: Service, view: str) -> None:
    answer = service.http.post("/v1/sql", json={"sql": f"SELECT * FROM rw_catalog.{view}", "session": {}})
    assert answer.status_code == 200, answer.text


def _page(service: Service) -> str:
    return service.http.get("/metrics").text
