"""Decide how long a caller may send no statements after one that Postgres could not stop (I13). Pure.

Some functions of Postgres run for hours on a short text and heed neither a timeout nor the end of their session. The
epoch of such a statement is given up, which costs everybody a recovery, and its session takes a core until Postgres is
restarted. So the first one bars its caller for minutes, and further ones for much longer.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from service.domain.errors import Unavailable
from service.protocol.ids import StatementId

_FIRST: Final = timedelta(minutes=10)
_FACTOR: Final = 6
LONGEST: Final = timedelta(days=1)
"""The longest bar. A caller with no such statement for so long begins anew."""


@dataclass(frozen=True, slots=True)
class Unstoppable:
    """The last statement of a caller that could not be stopped, when it was given up, and how many there were."""

    statement: StatementId
    at: datetime
    number: int = 1

    @classmethod
    def after(cls, last: "Unstoppable | None", statement: StatementId, at: datetime) -> "Unstoppable":
        """Return what is known of a caller after such a statement. `last` is what was known before."""
        before = 0 if last is None or at >= last.at + LONGEST else last.number
        return cls(statement, at, before + 1)

    @property
    def until(self) -> datetime:
        """When the caller may send statements again."""
        return self.at + min(_FIRST * _FACTOR ** min(self.number - 1, 3), LONGEST)

    def check(self, now: datetime) -> None:
        """Raise Unavailable while the caller is barred."""
        if now < self.until:
            raise Unavailable(
                f"Postgres could not stop statement {self.statement} of this caller, and all callers had to wait for a"
                f" recovery: further INSERT, UPDATE and DELETE of this caller are accepted from"
                f" {self.until:%H:%M:%S} UTC on; nothing was changed"
            )
