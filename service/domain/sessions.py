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
    """A session that was ended, and why. `barred`: its login did what no login for reading is for, such as to write,
    and is closed for some time.
    """

    pid: int
    login: str
    reason: str
    barred: bool = False
