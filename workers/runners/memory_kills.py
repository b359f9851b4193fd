"""Processes that the kernel ended for want of memory: Linux counts them, for the whole machine."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

_COUNT: Final = "oom_kill "


@dataclass
class MemoryKills:
    """Compares the count with the one at the last look, or at the start of this process."""

    counters: Path = Path("/proc/vmstat")
    seen: int = field(init=False)

    def __post_init__(self) -> None:
        self.seen = self._count()

    def grew(self) -> bool:
        """Return whether there was one since the last look; False where the system does not say."""
        before, self.seen = self.seen, self._count()
        return self.seen > before

    def _count(self) -> int:
        try:
            lines = self.counters.read_text().splitlines()
        except OSError:
            return 0
        return next((int(line.removeprefix(_COUNT)) for line in lines if line.startswith(_COUNT)), 0)
