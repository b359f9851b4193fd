"""Detect processes that the kernel killed for lack of memory. Linux counts them for the whole machine."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

_COUNT: Final = "oom_kill "


@dataclass
class MemoryKills:
    """Compares the kernel's counter with its value at the last call, or at the start of this process."""

    counters: Path = Path("/proc/vmstat")
    seen: int = field(init=False)

    def __post_init__(self) -> None:
        self.seen = self._count()

    def grew(self) -> bool:
        """Return whether a process was killed since the last call; False where the system has no such counter."""
        before, self.seen = self.seen, self._count()
        return self.seen > before

    def _count(self) -> int:
        try:
            lines = self.counters.read_text().splitlines()
        except OSError:
            return 0
        return next((int(line.removeprefix(_COUNT)) for line in lines if line.startswith(_COUNT)), 0)
