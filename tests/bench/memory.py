"""What the service's process and its worker take of the machine's memory, looked at again and again.

Proportional set sizes where the kernel tells them: the Python workers are forks of one daemon, and pages that they
share count once. Else resident set sizes, which count such pages once per process.
"""

import os
import re
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from tests.bench.clock import monotonic
from tests.bench.figures import Figure, Section, Target, of_samples, ratio
from tests.support.processes import name_of, processes, session_of
from tests.support.service import Service

EVERY_SECONDS: Final = 0.5
"""Looking walks the page tables of a JVM: often enough to see a peak, seldom enough not to be one."""
MB: Final = 1 << 20
_PSS: Final = re.compile(rb"^Pss:\s+(\d+) kB", re.MULTILINE)


@dataclass
class Memory:
    """Samples until it is left. `peak` is the greatest sum in bytes, `parts` what it consisted of, `seconds` when it
    was seen.
    """

    service: Service
    peak: int = 0
    parts: Mapping[str, int] = field(default_factory=dict[str, int])
    seconds: float = 0.0
    samples: int = 0
    stop: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Self:
        assert self.service.process is not None
        self._service_pid, self._worker_pid = self.service.process.pid, self.service.worker_pid()
        self._began = monotonic()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while True:
            self._look()
            if self.stop.wait(EVERY_SECONDS):
                self._look()
                return

    def _look(self) -> None:
        parts: Counter[str] = Counter({"service": taken_bytes(self._service_pid)})
        for pid in processes():
            if session_of(pid) == self._worker_pid:
                parts[self._part(pid)] += taken_bytes(pid)
        self.samples += 1
        if (total := parts.total()) > self.peak:
            self.peak, self.parts, self.seconds = total, dict(parts), monotonic() - self._began

    def _part(self, pid: int) -> str:
        if pid == self._worker_pid:
            return "driver"
        return "JVM" if name_of(pid) == "java" else "Python"


def taken_bytes(pid: int) -> int:
    """Return what a process takes, its share of what it shares; 0 when it is gone."""
    with suppress(OSError):
        if found := _PSS.search(Path(f"/proc/{pid}/smaps_rollup").read_bytes()):
            return int(found[1]) * 1024
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def peak_of(rows: int, runs: Sequence[Memory]) -> Figure:
    """Return the peaks of runs over a table of `rows` rows, and what the highest consisted of."""
    highest = max(runs, key=lambda memory: memory.peak)
    parts = ", ".join(f"{name} {taken // MB:,}" for name, taken in sorted(highest.parts.items()))
    note = f"{parts}; at {highest.seconds:.0f} s, {highest.samples} samples"
    return of_samples(f"{rows:,} rows", [memory.peak / MB for memory in runs], "MB", note=note)


def peaks_of(peaks: Sequence[Figure]) -> Section:
    """Return the peaks of several sizes, the smallest first, and how much the largest exceeds the smallest."""
    title = "Peak memory of service and worker (a fresh worker for each size)"
    if len(peaks) == 1:
        return Section(title, tuple(peaks))
    grown = ratio(peaks[-1].value, peaks[0].value)
    return Section(title, (*peaks, Figure(f"{peaks[-1].name} : {peaks[0].name}", grown, "x", Target("<=", 1.10))))
