"""Measure load signals for adaptive limits: the state store's server and a user's HTTP probe.

Every call returns or raises within a bounded time, and its errors contain no secret.
"""

from dataclasses import dataclass
from typing import Protocol

from service.domain.probes import ProbeUrl


class ProbeFailed(Exception):
    """A probe got no response. The message is for users."""


@dataclass(frozen=True, slots=True)
class StoreHealth:
    """The load of the state store's server. `lag_bytes` is the log that the slowest replica has not replayed, None
    without a replica.
    """

    connections: int
    connections_max: int
    lag_bytes: int | None


class StoreGauge(Protocol):
    """Measures the state store's server."""

    async def measure(self) -> StoreHealth:
        """Raises Unavailable."""
        ...


class HttpProbe(Protocol):
    """Sends GET requests to a user's health check."""

    async def status(self, url: ProbeUrl, *, timeout_ms: int) -> int:
        """Return the status code of the response, without following redirects. Raises ProbeFailed."""
        ...
