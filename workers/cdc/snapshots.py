"""Which transactions a snapshot of the external database shows. Pure.

Commit order is not visibility order: a transaction is in the log before others see it, and how long before, nobody
says. So what a page shows is never told from an LSN, only from its snapshot.
"""

from collections.abc import Iterable
from dataclasses import dataclass

_WRAP = 1 << 32


@dataclass(frozen=True, slots=True)
class Snapshot:
    """`pg_snapshot`: everything before `xmin` is over, nothing from `xmax` on is, and between them `running` is not."""

    xmin: int
    xmax: int
    running: frozenset[int] = frozenset()

    @classmethod
    def parse(cls, text: str) -> "Snapshot":
        """Read `xmin:xmax:xip,..` as Postgres prints it."""
        xmin, xmax, running = text.split(":")
        return cls(int(xmin), int(xmax), frozenset(int(xid) for xid in running.split(",") if xid))

    def text(self) -> str:
        """Print it as Postgres does."""
        return f"{self.xmin}:{self.xmax}:{','.join(map(str, sorted(self.running)))}"

    def shows(self, xid: int) -> bool:
        """Whether the changes of a committed transaction (64 bits) are in it."""
        return xid < self.xmin or (xid < self.xmax and xid not in self.running)

    def hidden(self, xids: Iterable[int]) -> tuple[int, ...]:
        """Return those of `xids` that it does not show, ascending."""
        return tuple(sorted({xid for xid in xids if not self.shows(xid)}))

    def full(self, xid: int) -> int:
        """Return the 64-bit id of a transaction of which the log says 32 bits: the nearest to this snapshot's end."""
        xid |= self.xmax & ~(_WRAP - 1)
        if xid > self.xmax + _WRAP // 2:
            return xid - _WRAP
        return xid + _WRAP if xid < self.xmax - _WRAP // 2 else xid
