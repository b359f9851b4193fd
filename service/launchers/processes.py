"""Find all the processes of a worker, and end them.

A worker is a driver, its JVM, and the JVM's Python daemons. The daemons leave the driver's process group but not its
session. All processes inherit `TIDEFILL_WORKER_ID`. The session identifies them while the driver exists; the variable
does so even after the driver is gone.
"""

import asyncio
import os
import select
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from service.protocol.ids import WorkerId

_END_SECONDS: Final = 10
"""The kernel ends a killed process as soon as it leaves uninterruptible I/O."""
_ROUNDS: Final = 50
"""A process may fork while the others are killed. Each round finds the processes that the last one missed."""


def end_processes(worker: WorkerId, session: int | None = None) -> None:
    """Kill every process of a worker and wait until none is left. Raises TimeoutError if one stays.

    `session` is the driver's pid, if the caller is its parent and has not reaped it. Otherwise another process may have
    that number, and the driver is found by its `TIDEFILL_WORKER_ID`.
    """
    session = session or _driver(worker)
    for _ in range(_ROUNDS):
        members = [int(process.name) for process in _processes() if _belongs(process, worker, session)]
        if not members:
            return
        # The driver comes last: while it exists, no other session can have its number.
        for pid in sorted(members, key=lambda pid: pid == session):
            _kill(pid, worker, session)
    raise TimeoutError(f"worker {worker} makes new processes faster than they can be ended")


def wait_for_end(pid: int, seconds: float) -> bool:
    """Wait until a process has ended, without reaping it. Return whether it has."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return _ends(handle, seconds)
    finally:
        os.close(handle)


def when_ended(pid: int, then: Callable[[], None]) -> None:
    """Call `then` on the running event loop after a process has ended. The process is not reaped."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        then()
        return
    loop = asyncio.get_running_loop()

    def ended() -> None:
        loop.remove_reader(handle)
        os.close(handle)
        then()

    loop.add_reader(handle, ended)


def _processes() -> Iterator[Path]:
    return (entry for entry in Path("/proc").iterdir() if entry.name.isdecimal())


def _driver(worker: WorkerId) -> int | None:
    """Return the pid of the session leader with the worker's `TIDEFILL_WORKER_ID`."""
    for process in _processes():
        try:
            if _session(process) == int(process.name) and _is_marked(process, worker):
                return int(process.name)
        except OSError:  # it has ended, or belongs to another account
            continue
    return None


def _belongs(process: Path, worker: WorkerId, session: int | None) -> bool:
    try:
        own = _session(process)
        return own is not None and (own == session or _is_marked(process, worker))
    except OSError:  # it has ended, or belongs to another account
        return False


def _session(process: Path) -> int | None:
    """Return the session of a process; None if it is a zombie."""
    # The command's name may contain spaces and parentheses; the fields follow the last parenthesis.
    state, _parent, _group, session, *_ = (process / "stat").read_text(errors="replace").rpartition(")")[2].split()
    return None if state in "ZX" else int(session)


def _is_marked(process: Path, worker: WorkerId) -> bool:
    return f"TIDEFILL_WORKER_ID={worker}".encode() in (process / "environ").read_bytes().split(b"\0")


def _kill(pid: int, worker: WorkerId, session: int | None) -> None:
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        # The pid may have been reused since it was found. From here on the handle names one process.
        if _belongs(Path("/proc") / str(pid), worker, session):
            signal.pidfd_send_signal(handle, signal.SIGKILL)
            if not _ends(handle, _END_SECONDS):
                raise TimeoutError(f"process {pid} of worker {worker} does not end")
    except ProcessLookupError:
        pass
    finally:
        os.close(handle)


def _ends(handle: int, seconds: float) -> bool:
    # Not `select`: a service with many connections has descriptors above its limit of 1024.
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    return bool(poll.poll(seconds * 1000))
