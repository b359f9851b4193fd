"""Measure the delays of the event loop."""

from typing import Final

from prometheus_client import CollectorRegistry, Gauge, Histogram

_BUCKETS: Final = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
"""Seconds. Leases are renewed every 1.6 s, and barriers are made every second."""


class Stalls:
    """All delays of the event loop, and the longest one."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._all = Histogram(
            "tidefill_event_loop_stall_seconds",
            "Delays of the event loop, measured every 0.1 s.",
            buckets=_BUCKETS,
            registry=registry,
        )
        self._max = Gauge(
            "tidefill_event_loop_stall_max_seconds",
            "The longest delay of the event loop since the service started.",
            registry=registry,
        )
        self.longest = 0.0

    def observe(self, seconds: float) -> None:
        """Count a delay."""
        self._all.observe(seconds)
        self.longest = max(self.longest, seconds)
        self._max.set(self.longest)
