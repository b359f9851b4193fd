"""How the world around a backfill is, measured: the state store's server, and what a user's probe says.

Every call answers or raises within a bounded time, and what it raises names no secret.
"""

from dataclasses import dataclass
from typing import Protocol

from service.domain.probes import ProbeUrl


class ProbeFailed(Exception):
    """A probe got no answer. The message is for people."""


@dataclass(frozen=True, slots=True)
class StoreHealth:
    """The state store's server. `lag_bytes` is how much log the slowest replica has yet to replay, None without one."""

    connections: int
    connections_max: int
    lag_bytes: int | None


class StoreGauge(Protocol):
    """Measures the state store's server."""

    async def measure(self) -> StoreHealth:
        """Raises Unavailable."""
        ...


class HttpProbe(Protocol):
    """Sends a GET to a user's health check."""

    async def status(self, url: ProbeUrl, *, timeout_ms: int) -> int:
        """Return the status of the answer; a redirect is one. Raises ProbeFailed."""
        ...
