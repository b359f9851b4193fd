"""How much memory a worker may use."""

import os
import resource
from contextlib import suppress
from pathlib import Path
from typing import Final

_CONTAINER: Final = Path("/sys/fs/cgroup/memory.max")


def allocated() -> int:
    """Return how many bytes this process has in data, as its limit counts them: also what it never touched."""
    return int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()


def half_of_memory() -> int:
    """Return half of the bytes that the machine has, or the container."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, ValueError):  # "max" is no limit
        return min(machine, int(_CONTAINER.read_text())) // 2
    return machine // 2
