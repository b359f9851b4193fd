"""A thousand created views that have nothing to do: how they come to be, and what they cost a barrier."""

from concurrent.futures import ThreadPoolExecutor
from typing import Final

from tests.bench.barriers import Latencies, latencies
from tests.bench.clock import monotonic, pause, wall
from tests.bench.figures import Figure, Section, shown
from tests.bench.measurements import interval_seconds
from tests.support.service import ARRANGEMENT, Service
from tests.support.waiting import Repeating

CALLERS: Final = 8
"""Callers that create views at once: enough that the leader always has a few to start."""
BARRIERS: Final = 30
CREATING: Final = {"barrier_interval_ms": "100", "max_concurrent_creating_streaming_jobs": "0"}


def many_views(service: Service, count: int) -> list[Section]:
    """Create `count` views over a tiny table, then watch barriers: idle, and with one write a second elsewhere."""
    seconds = _create(service, count)
    interval = interval_seconds(service)
    idle = _watch(service, interval)
    writing = Repeating(lambda turn: _write(service, turn, interval), pause=0)
    with writing:
        busy = _watch(service, interval)
    created = Figure("created", count / seconds, "views/s", note=f"{count:,} in {shown(seconds)} s, {CALLERS} callers")
    return [
        Section(f"{count:,} idle created views", (created, *idle.figures(p50=1.0, p99=1.0))),
        Section(f"{count:,} idle created views, one write a second elsewhere", busy.figures(p50=1.0, p99=1.0)),
    ]


def _create(service: Service, count: int) -> float:
    for name in ("tiny", "elsewhere"):
        service.sql(f"CREATE TABLE {name} (id bigint PRIMARY KEY, amount bigint)")
        service.sql(f"INSERT INTO {name} VALUES (1, 10), (2, 20), (3, 30)")
    for name, value in CREATING.items():
        service.sql(f"ALTER SYSTEM SET {name} = {value}")
    began = monotonic()
    with ThreadPoolExecutor(CALLERS) as callers:
        for created in [callers.submit(_create_one, service, number) for number in range(count)]:
            created.result()
    service.sql("WAIT")
    seconds = monotonic() - began
    for name in CREATING:
        service.sql(f"ALTER SYSTEM SET {name} = DEFAULT")
    return seconds


def _create_one(service: Service, number: int) -> None:
    service.sql(
        f"CREATE MATERIALIZED VIEW idle_{number} AS SELECT id, amount + {number} AS amount FROM tiny",
        background_ddl="true",
        # Several to a barrier; once they are created it makes no difference how they came to be.
        **ARRANGEMENT,
    )


def _watch(service: Service, interval: float) -> Latencies:
    """Return the latencies of the next barriers."""
    service.flush()
    since = wall()
    while len((found := latencies(service, since, wall())).seconds) < BARRIERS:
        pause(5 * interval)
    return found


def _write(service: Service, turn: int, interval: float) -> None:
    began = monotonic()
    service.sql(f"UPDATE elsewhere SET amount = {turn} WHERE id = 1")
    pause(interval - (monotonic() - began))
