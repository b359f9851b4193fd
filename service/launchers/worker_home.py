"""The directory of one worker: its secrets, its working directory, and a lock that shows whether its service is alive.

    <data_dir>/workers/<worker id>/lock       locked by the service while the worker is its own
    <data_dir>/workers/<worker id>/secrets/   one file a secret
    <data_dir>/workers/<worker id>/tmp        a link to its temporary files

The kernel releases the lock when the service ends, however that happens. A home that can be locked is therefore
abandoned. Temporary files are outside of it, because sockets are among them, whose paths have at most 107 bytes.
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
    """A home that this process has locked."""

    worker: WorkerId
    directory: Path
    lock: IO[str]

    @property
    def temporary(self) -> Path:
        """The directory for temporary files of the worker, its JVM and their children."""
        return (self.directory / _TEMPORARY).readlink()

    def clear(self, session: int | None = None) -> None:
        """End the rest of the worker and remove its files. See `end_processes` for `session`."""
        end_processes(self.worker, session)
        with suppress(FileNotFoundError):  # its service was killed before it made them
            shutil.rmtree(self.temporary, ignore_errors=True)
        shutil.rmtree(self.directory, ignore_errors=True)
        self.lock.close()


def make_home(data_dir: Path, worker: WorkerId, secrets: Mapping[str, str]) -> WorkerHome:
    """Make and lock a worker's home with its secrets. Each file is readable to its owner alone from the first byte.

    Raises OSError if a service that starts at this moment takes the home for abandoned and locks it first.
    """
    directory = _homes(data_dir) / worker
    directory.mkdir(parents=True, mode=0o700)
    # If the lock fails, the next tick makes another home.
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
    """Yield the homes whose service is gone, now locked by this process."""
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
