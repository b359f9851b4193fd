"""Determine which transactions a snapshot of the external database shows. Pure.

Commit order is not visibility order. A transaction is in the log before it is visible, and the delay is unknown. So
only a page's snapshot, never an LSN, determines what the page shows.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from service.protocol.ids import BIGINT_MAX

_WRAP = 1 << 32


@dataclass(frozen=True, slots=True)
class Snapshot:
    """`pg_snapshot`: transactions before `xmin` are over. Those from `xmax` on, and `running` ones between, are not."""

    xmin: int
    xmax: int
    running: frozenset[int] = frozenset()

    @classmethod
    def parse(cls, text: str) -> "Snapshot":
        """Read `xmin:xmax:xip,..` as Postgres prints it. Raises ValueError for what is none."""
        xmin, xmax, rest = text.split(":")
        running = frozenset(int(xid) for xid in rest.split(",") if xid)
        if not 0 <= int(xmin) <= int(xmax) < BIGINT_MAX - _WRAP or any(xid >= int(xmax) for xid in running):
            msg = f"{text:.100} is no snapshot"
            raise ValueError(msg)
        return cls(int(xmin), int(xmax), running)

    def text(self) -> str:
        """Print it as Postgres does."""
        return f"{self.xmin}:{self.xmax}:{','.join(map(str, sorted(self.running)))}"

    def shows(self, xid: int) -> bool:
        """Return whether the snapshot includes the changes of a committed transaction (64-bit id)."""
        return xid < self.xmin or (xid < self.xmax and xid not in self.running)

    def hidden(self, xids: Iterable[int]) -> tuple[int, ...]:
        """Return the transactions of `xids` that the snapshot does not show, ascending."""
        return tuple(sorted({xid for xid in xids if not self.shows(xid)}))

    def full(self, xid: int) -> int:
        """Return the 64-bit id for the 32 bits in the log: the id nearest to this snapshot's end."""
        xid |= self.xmax & ~(_WRAP - 1)
        if xid > self.xmax + _WRAP // 2:
            return xid - _WRAP
        return xid + _WRAP if xid < self.xmax - _WRAP // 2 else xid
