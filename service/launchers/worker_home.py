"""The directory of one worker: its secrets, its working directory, and the lock that says its service still lives.

    <data_dir>/workers/<worker id>/lock       held by the service while the worker is its
    <data_dir>/workers/<worker id>/secrets/   one file a secret
    <data_dir>/workers/<worker id>/tmp        a link to its temporary files

The kernel drops the lock with the service, however that ends, so a home that can be locked is one nobody looks after.
Temporary files are not inside: among them are sockets, whose whole paths may have 107 bytes.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from service.launchers.processes import end_processes
from service.protocol.ids import WorkerId

_TEMPORARY: Final = "tmp"


@dataclass(frozen=True, slots=True)
class WorkerHome:
    """A home that this process holds the lock of."""

    worker: WorkerId
    directory: Path
    lock: IO[str]

    @property
    def temporary(self) -> Path:
        """Where the worker, its JVM and their children put temporary files."""
        return (self.directory / _TEMPORARY).readlink()

    def clear(self, session: int | None = None) -> None:
        """End what is left of the worker and remove its files; see `end_processes` for `session`."""
        end_processes(self.worker, session)
        with suppress(FileNotFoundError):  # its service was killed before it made them
            shutil.rmtree(self.temporary, ignore_errors=True)
        shutil.rmtree(self.directory, ignore_errors=True)
        self.lock.close()


def make_home(data_dir: Path, worker: WorkerId, secrets: Mapping[str, str]) -> WorkerHome:
    """Make and lock a worker's home with its secrets, each readable to its owner alone from the first byte."""
    directory = _homes(data_dir) / worker
    directory.mkdir(parents=True, mode=0o700)
    # A service that starts right now may take the home for abandoned and lock it first: then this raises, and the next
    # tick makes another.
    lock = (directory / "lock").open("a")
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    (directory / _TEMPORARY).symlink_to(tempfile.mkdtemp(prefix="tidefill-"))
    (directory / "secrets").mkdir(mode=0o700)
    for name, text in secrets.items():
        path = directory / "secrets" / name
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text)
    return WorkerHome(worker, directory, lock)


def abandoned_homes(data_dir: Path) -> Iterator[WorkerHome]:
    """Yield the homes whose service is gone, locked by us now."""
    homes = _homes(data_dir)
    for directory in sorted(homes.iterdir()) if homes.is_dir() else ():
        lock = (directory / "lock").open("a")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
        else:
            yield WorkerHome(WorkerId(directory.name), directory, lock)


def _homes(data_dir: Path) -> Path:
    return data_dir.resolve() / "workers"
