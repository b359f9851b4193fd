"""Decide when another view of a caller may begin in the database graph after one that held up others (I13). Pure.

A worker bounds how long the views of one generation hold up all statements (`stage_timeout_ms`). A view that takes
longer fails or leaves the graph, and the next generation begins with whole budgets. Without this bound, views of one
caller in a row would each hold up everybody. So such a view has spent the budget of its caller. A part of the time
since flows back, as it does in the worker, and the next view begins when the budget is whole again.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from service.protocol.barrier import COST_REFILL

SLOW_VIEW: Final = "the caller's view"
"""The begin of the reason of a job that waits for this."""


@dataclass(frozen=True, slots=True)
class SlowView:
    """The last view of a caller that took longer than `stage_timeout_ms` allows, and when that was found."""

    name: str
    at: datetime

    def until(self, limit_ms: int) -> datetime:
        """Return when the budget of `limit_ms` has flowed back."""
        return self.at + timedelta(milliseconds=limit_ms / COST_REFILL)

    def keeps_apart(self, limit_ms: int, *, now: datetime) -> str | None:
        """Return why a new view of the caller stays in a graph of its own, None if the budget is whole again."""
        return None if now >= self.until(limit_ms) else self._told(limit_ms)

    def reason(self, limit_ms: int) -> str:
        """Return why another job of the caller waits until then."""
        return (
            f"{self._told(limit_ms)}. This one starts at {self.until(limit_ms):%H:%M:%S} UTC at the earliest; with"
            " streaming_use_snapshot_backfill = true it would not wait"
        )

    def _told(self, limit_ms: int) -> str:
        return (
            f"{SLOW_VIEW} {self.name} held up the statements of others for longer than stage_timeout_ms ({limit_ms})"
            " allows"
        )
