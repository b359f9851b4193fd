"""The only place of the benchmark that looks at a clock or waits."""

import threading
import time
from datetime import UTC, datetime


def monotonic() -> float:
    """Return seconds for measuring a duration."""
    return time.monotonic()  # noqa: TID251 - measuring time is what this program is for


def wall() -> datetime:
    """Return the instant, to be compared with what the service wrote down: it runs on the same machine."""
    return datetime.now(UTC)  # noqa: TID251 - as above


def pause(seconds: float) -> None:
    """Let time pass."""
    threading.Event().wait(max(seconds, 0.0))


def seconds_between(earlier: str, later: str) -> float:
    """Return the seconds between two instants of the service."""
    return (datetime.fromisoformat(later) - datetime.fromisoformat(earlier)).total_seconds()
