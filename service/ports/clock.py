"""Time as an argument's source: two kinds, never mixed."""

from datetime import datetime
from typing import Protocol


class Clock(Protocol):
    """`now` is wall-clock UTC and may be stored; `monotonic` is for deadlines inside one process and never stored."""

    def now(self) -> datetime: ...

    def monotonic(self) -> float: ...
