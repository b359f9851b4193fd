"""The limits of sessions that users' own tools open in the state store (`docs/connect.md`). Pure."""

from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """The longest time of a statement, of an open transaction without a statement, and of a whole transaction."""

    statement: timedelta = timedelta(minutes=10)
    idle: timedelta = timedelta(minutes=10)
    transaction: timedelta = timedelta(minutes=30)


@dataclass(frozen=True, slots=True)
class Ended:
    """A session that was ended, and why. `wrote`: it held locks of a write, which no login for reading is for."""

    pid: int
    login: str
    reason: str
    wrote: bool = False
