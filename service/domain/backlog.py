"""Bound the statements that wait for an epoch. The bound covers a restart of the worker, and no more (I13).

Statements and their bytes are shared out among the callers (`service.domain.shares`): no caller alone fills more than
half of what may wait, so that statements of others are accepted beside its own.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from service.domain.errors import Unavailable
from service.domain.shares import has_room
from service.domain.unstoppable import Unstoppable

_COUNTED_FOR: Final = 0.25
"""Seconds. Counting takes longer with more statements. Between counts this process adds the statements it accepts."""


@dataclass(frozen=True, slots=True)
class QueuedStatements:
    """Some statements that no barrier carries yet, and the bytes of their texts."""

    number: int = 0
    bytes: int = 0

    def __add__(self, other: "QueuedStatements") -> "QueuedStatements":
        return QueuedStatements(self.number + other.number, self.bytes + other.bytes)


NONE: Final = QueuedStatements()


@dataclass(slots=True)
class Backlog:
    """The statements that wait, as this process last counted them. Times are of the monotonic clock.

    Another process may accept as many within the same quarter of a second.
    """

    statements_max: int = 20_000
    bytes_max: int = 256 << 20
    all: QueuedStatements = NONE
    by_caller: dict[str, QueuedStatements] = field(default_factory=dict[str, QueuedStatements])
    unstoppable: Mapping[str, Unstoppable] = field(default_factory=dict[str, Unstoppable])
    """The last statement of each caller that Postgres could not stop."""
    counted_at: float | None = None

    def is_old(self, now: float) -> bool:
        """Whether the statements have to be counted again."""
        return self.counted_at is None or now >= self.counted_at + _COUNTED_FOR

    def counted(
        self, by_caller: Mapping[str, QueuedStatements], unstoppable: Mapping[str, Unstoppable], *, now: float
    ) -> None:
        """Store what the meta store knows."""
        self.by_caller, self.unstoppable, self.counted_at = dict(by_caller), unstoppable, now
        self.all = sum(self.by_caller.values(), NONE)

    def admit(self, caller: str) -> None:
        """Raise Unavailable if the caller's share of the statements, or of their bytes, waits."""
        own, every = self.by_caller.get(caller, NONE), self.all
        if not has_room(self.statements_max, taken=every.number, own=own.number):
            used = f"{own.number} statements of this caller wait for an epoch, of {every.number} in all"
            limit = f"{self.statements_max} may: TIDEFILL_DML_WAITING_MAX"
        elif not has_room(self.bytes_max, taken=every.bytes, own=own.bytes):
            used = f"{own.bytes} bytes of statements of this caller wait for an epoch, of {every.bytes} in all"
            limit = f"{self.bytes_max} may: TIDEFILL_DML_WAITING_BYTES_MAX"
        else:
            return
        raise Unavailable(f"{used} ({limit}); nothing was changed, try again later")

    def check_stoppable(self, caller: str, *, now: datetime) -> None:
        """Raise Unavailable if Postgres could not stop a statement of the caller shortly before `now`."""
        if (last := self.unstoppable.get(caller)) is not None:
            last.check(now)

    def accepted(self, caller: str, size: int) -> None:
        """Add one accepted statement of `size` bytes."""
        one = QueuedStatements(1, size)
        self.all += one
        self.by_caller[caller] = self.by_caller.get(caller, NONE) + one
