"""Provide two kinds of time, which are never mixed."""

from datetime import datetime
from typing import Protocol


class Clock(Protocol):
    """`now` is wall-clock UTC and may be stored. `monotonic` is for deadlines in one process and is never stored."""

    def now(self) -> datetime: ...

    def monotonic(self) -> float: ...
