"""Bound the statements that wait for an epoch. The bound covers a restart of the worker, and no more (I13)."""

from dataclasses import dataclass
from typing import Final

from service.domain.errors import Unavailable

_COUNTED_FOR: Final = 0.25
"""Seconds. Counting takes longer with more statements. Between counts this process adds the statements it accepts."""


@dataclass(slots=True)
class Backlog:
    """The statements that no barrier carries yet, as this process last counted them. Times are of the monotonic clock.

    Another process may accept as many within the same quarter of a second.
    """

    statements_max: int = 20_000
    bytes_max: int = 256 << 20
    statements: int = 0
    bytes: int = 0
    counted_at: float | None = None

    def is_old(self, now: float) -> bool:
        """Whether the statements have to be counted again."""
        return self.counted_at is None or now >= self.counted_at + _COUNTED_FOR

    def counted(self, statements: int, size: int, *, now: float) -> None:
        """Store the counts of the meta store."""
        self.statements, self.bytes, self.counted_at = statements, size, now

    def admit(self) -> None:
        """Raise Unavailable if too many statements, or too many bytes of them, wait."""
        if self.statements >= self.statements_max:
            limit = f"{self.statements_max} statements (TIDEFILL_DML_WAITING_MAX)"
        elif self.bytes >= self.bytes_max:
            limit = f"{self.bytes_max} bytes of statements (TIDEFILL_DML_WAITING_BYTES_MAX)"
        else:
            return
        raise Unavailable(f"{limit} wait for an epoch already; nothing was changed, try again later")

    def accepted(self, size: int) -> None:
        """Add one accepted statement of `size` bytes."""
        self.statements, self.bytes = self.statements + 1, self.bytes + size
