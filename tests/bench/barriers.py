"""The history of barriers: what was injected when, and how long until it was published."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from tests.bench.figures import Figure, Target, percentile
from tests.support.service import Service

PAGE: Final = 500


@dataclass(frozen=True, slots=True)
class Latencies:
    """Seconds from inject to published of the barriers of a window, oldest first."""

    seconds: tuple[float, ...]

    def figures(self, *, p50: float | None, p99: float | None) -> tuple[Figure, ...]:
        """Return median, 99th percentile and greatest, with the targets given."""
        if not self.seconds:
            return (Figure("barrier latency", None, "s", note="no barrier was published meanwhile"),)
        count = f"{len(self.seconds)} barriers"
        return (
            Figure("barrier latency, p50", percentile(self.seconds, 0.50), "s", _below(p50), count),
            Figure("barrier latency, p99", percentile(self.seconds, 0.99), "s", _below(p99)),
            Figure("barrier latency, greatest", max(self.seconds), "s"),
        )


def latencies(service: Service, since: datetime, until: datetime) -> Latencies:
    """Return the latencies of the barriers injected in the window. The service keeps a quarter of an hour of them."""
    found = window(service, since, until)
    return Latencies(tuple(barrier["latency_ms"] / 1000 for barrier in found if barrier["latency_ms"] is not None))


def window(service: Service, since: datetime, until: datetime) -> Sequence[dict[str, Any]]:
    """Return every barrier injected in the window, oldest first."""
    found: list[dict[str, Any]] = []
    before: str | None = None
    while True:
        page = service.get("/v1/barriers", limit=PAGE, **({} if before is None else {"before": before}))
        found += [barrier for barrier in page["items"] if since <= _injected(barrier) <= until]
        before = page["next"]
        if before is None or _injected(page["items"][-1]) < since:
            return found[::-1]


def _injected(barrier: dict[str, Any]) -> datetime:
    return datetime.fromisoformat(barrier["injected_at"])


def _below(value: float | None) -> Target | None:
    return None if value is None else Target("<", value)
