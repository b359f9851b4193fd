"""Decide when the newest published epoch is so old that readiness fails."""

from datetime import datetime, timedelta
from typing import Final

from service.domain.parameters import SystemParameters
from service.protocol.epoch import NEVER, instant_of
from service.protocol.ids import Epoch

INTERVALS_MAX: Final = 5
FLOOR: Final = timedelta(seconds=30)
"""An epoch with a heavy statement, or on a loaded machine, takes seconds without a fault."""


def age(published: Epoch, *, now: datetime) -> timedelta:
    """Return the age of the newest published epoch. It is never negative, even if the clock went back."""
    return max(now - instant_of(published), timedelta(0))


def age_max(parameters: SystemParameters) -> timedelta:
    """Return the age from which readiness fails. Paused backfills do not matter, because their barriers continue."""
    interval = timedelta(milliseconds=parameters.barrier_interval_ms) * parameters.checkpoint_frequency
    return max(FLOOR, interval * INTERVALS_MAX)


def of_barriers(published: Epoch, parameters: SystemParameters, *, now: datetime) -> str:
    """Return `ok`, or why readers see old data."""
    if published == NEVER:
        return "no epoch was published yet"
    old, limit = age(published, now=now), age_max(parameters)
    if old <= limit:
        return "ok"
    return f"no epoch was published for {old.total_seconds():.0f} s, more than {limit.total_seconds():.0f} s"
