"""Directories of a run of the tests, each with its owner's process id in its name: so that the next run can clear away
what one that was killed has left.
"""

import os
import re
import shutil
import signal
import tempfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from shutil import rmtree
from typing import Final

from service.launchers.worker_home import abandoned_homes
from tests.support.processes import processes
from tests.support.waiting import until

PREFIX: Final = "tidefill-tests-"
MEMORY: Final = Path("/dev/shm")
_FREE_MIN: Final = 16 << 30
"""With less free memory, directories are made on the disk: servers keep much of what they have written."""


def relaxed() -> bool:
    """Whether nothing has to survive a loss of power (`TIDEFILL_TEST_FSYNC=off`)."""
    return os.environ.get("TIDEFILL_TEST_FSYNC") == "off"


def places() -> list[Path]:
    """Return where directories of runs may be."""
    return [Path(tempfile.gettempdir()), *([MEMORY] if MEMORY.is_dir() else [])]


def _place() -> Path:
    """Return where to make a directory: in memory, if that is allowed and there is much of it.

    To create and drop a database for each of 1,400 tests takes a disk longer than the tests themselves.
    """
    fits = relaxed() and MEMORY.is_dir() and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free >= _FREE_MIN
    return MEMORY if fits else Path(tempfile.gettempdir())


@contextmanager
def run_directory() -> Generator[Path]:
    """Make a directory, which other accounts can pass through, and remove it at the end."""
    prefix = f"{PREFIX}{os.getpid()}-"
    with tempfile.TemporaryDirectory(prefix=prefix, dir=_place(), ignore_cleanup_errors=True) as directory:
        Path(directory).chmod(0o711)
        yield Path(directory)


def clear_abandoned(temporary: Path) -> None:
    """Remove the directories whose owner is dead, and end the services and servers that are left in them."""
    for directory in sorted(temporary.glob(f"{PREFIX}*")):
        owner = re.match(rf"{PREFIX}(\d+)-", directory.name)
        if owner is None or Path("/proc", owner[1]).exists():
            continue
        until(lambda path=directory: not _killed(path), what=f"nobody works in {directory}")
        for data in directory.iterdir() if directory.is_dir() else ():
            for home in abandoned_homes(data):
                home.clear()
        rmtree(directory, ignore_errors=True)


def _killed(directory: Path) -> list[int]:
    """Kill whoever works in a directory or was given it as its place; return whom."""
    found = list(_belonging(directory))
    for pid in found:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return found


def _belonging(directory: Path) -> Iterator[int]:
    given = f"TIDEFILL_DATA_DIR={directory}/".encode()
    for pid in processes():
        with suppress(OSError):  # it has ended, or belongs to another account
            process = Path("/proc", str(pid))
            if (process / "cwd").readlink().is_relative_to(directory) or given in (process / "environ").read_bytes():
                yield pid
