"""Clean up after a database server whose postmaster was killed: its other processes and its stale pid file.

A server process is recognised by its working directory, the cluster. A recycled pid is therefore never mistaken for
one.
"""

import os
import select
import signal
from pathlib import Path
from typing import Final

_END_SECONDS: Final = 30


def end_orphans(cluster: Path) -> None:
    """Kill every process that works in `cluster`, wait until it is gone, and remove the pid file.

    The caller has locked the data directory and has asked the server to stop. A process that remains serves no service,
    and the next start is a crash recovery. Raises TimeoutError if a process cannot be ended.
    """
    for pid in _working_in(cluster):
        _kill(pid)
    (cluster / "postmaster.pid").unlink(missing_ok=True)


def is_served(cluster: Path) -> bool:
    """Whether the pid file names a live server of this cluster, rather than another process that got its pid since."""
    try:
        pid = (cluster / "postmaster.pid").read_text().split()[0]
    except (FileNotFoundError, IndexError):
        return False
    return _works_in(Path("/proc") / pid, cluster)


def _working_in(cluster: Path) -> list[int]:
    return [
        int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal() and _works_in(entry, cluster)
    ]


def _works_in(process: Path, cluster: Path) -> bool:
    try:
        return (process / "cwd").readlink() == cluster and (process / "exe").readlink().name == "postgres"
    except OSError:  # it has ended, or belongs to another account
        return False


def _kill(pid: int) -> None:
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        signal.pidfd_send_signal(handle, signal.SIGKILL)
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        if not poll.poll(_END_SECONDS * 1000):
            raise TimeoutError(f"process {pid} of the embedded Postgres does not end")
    except ProcessLookupError:
        pass
    finally:
        os.close(handle)
