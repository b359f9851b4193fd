"""Processes as the kernel tells of them."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path


def processes() -> list[int]:
    """Return the pids of all processes."""
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]


def parent_of(pid: int) -> int | None:
    """Return the parent of a process; None when it is gone."""
    return int(found[1]) if (found := _stat(pid)) else None


def session_of(pid: int) -> int | None:
    """Return the session of a process; None when it is gone."""
    return int(found[3]) if (found := _stat(pid)) else None


def state_of(pid: int) -> str | None:
    """Return the state of a process, `T` for one that was stopped; None when it is gone."""
    return found[0] if (found := _stat(pid)) else None


def working_in(there: Callable[[Path], bool]) -> Iterator[int]:
    """Yield the processes whose working directory is one of those."""
    for pid in processes():
        with suppress(OSError):
            if there(Path(f"/proc/{pid}/cwd").readlink()):
                yield pid


def signal_session(session: int, number: signal.Signals) -> None:
    """Send a signal to every process of a session."""
    for pid in processes():
        if session_of(pid) == session:
            with suppress(ProcessLookupError):
                os.kill(pid, number)


def name_of(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def _stat(pid: int) -> list[str]:
    """Return the fields from the state on: state, parent, group, session."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    return []
