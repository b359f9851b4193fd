"""From the end of a snapshot to Created, while the table goes on changing."""

from datetime import UTC, datetime
from typing import Final

from tests.bench.clock import monotonic, pause, wall
from tests.bench.figures import Figure, Section, Target, of_samples
from tests.bench.measurements import building, interval_seconds
from tests.bench.tables import Table
from tests.bench.writers import Writers
from tests.support.service import Service

ROWS_PER_SECOND: Final = 2_000
LOOK_SECONDS: Final = 0.1


def catching_up(service: Service, table: Table, repeat: int) -> Section:
    """Build a view by the default strategy under live writes, `repeat` times."""
    interval = interval_seconds(service)
    intervals: list[float] = []
    loading: list[float] = []
    rates: list[float] = []
    for _ in range(repeat):
        with Writers(service, table, ROWS_PER_SECOND) as writers:
            writers.until_steady()
            began, before = monotonic(), writers.changed
            with building(service, table, {}) as job:
                loaded = _until_loaded(service, job)
                loading.append(monotonic() - began)
                service.post(f"/v1/jobs/{job}/wait?timeout_seconds=3600")
                rates.append((writers.changed - before) / (monotonic() - began))
                created = datetime.fromisoformat(service.detail(job)["job"]["finished_at"]).astimezone(UTC)
                intervals.append(max((created - loaded).total_seconds(), 0.0) / interval)
    return Section(
        f"Catching up: Snapshot of {table.rows:,} rows under live writes",
        (
            of_samples("end of the snapshot to Created", intervals, "intervals", target=Target("<", 10)),
            of_samples("the snapshot", loading, "s"),
            of_samples("live writes", rates, "rows/s", note=f"{ROWS_PER_SECOND:,} asked for"),
            Figure("the slowest", max(intervals), "intervals", Target("<", 10)),
        ),
    )


def _until_loaded(service: Service, job: int) -> datetime:
    """Return when the last row of the snapshot was seen to be committed."""
    while True:
        shown = service.detail(job)
        if all(one["finished"] for one in shown["fragments"] if one["scan_type"] is not None):
            return wall()
        pause(LOOK_SECONDS)
