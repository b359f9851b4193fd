"""Choose the account of a database server. Postgres refuses to run as root, so a root service uses another account.

The functions here concern access to files. The other account cannot enter a directory that only root may enter; the
caller must then put the files elsewhere.
"""

import os
import pwd
import stat
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_SERVER_ENVIRONMENT = {"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"}
"""The whole environment of a server process. It contains nothing of the service's own, which may hold secrets."""


@dataclass(frozen=True, slots=True)
class ServerAccount:
    """The owner of the server's processes and files. `lent`: it is not the service's own account."""

    uid: int
    gid: int
    lent: bool

    def can_reach(self, path: Path) -> bool:
        """Whether this account may enter every directory down to and including `path`."""
        resolved = path.resolve()
        return not self.lent or all(self._may_enter(place) for place in (resolved, *resolved.parents))

    def own(self, path: Path) -> None:
        """Make the account the owner of one file or directory."""
        if self.lent:
            os.chown(path, self.uid, self.gid)

    def run(self, command: Sequence[str | Path], *, timeout_seconds: float) -> subprocess.CompletedProcess[str]:
        """Run a command to its end under the account, with both outputs joined. Raises subprocess.TimeoutExpired."""
        return subprocess.run(  # noqa: S603 - our own programs and paths, no shell
            command,
            env=_SERVER_ENVIRONMENT,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=timeout_seconds,
            check=False,
            umask=0o077,
            user=self.uid if self.lent else None,
            group=self.gid if self.lent else None,
            extra_groups=[] if self.lent else None,
        )

    def _may_enter(self, directory: Path) -> bool:
        found = directory.stat()
        if found.st_uid == self.uid:
            return bool(found.st_mode & stat.S_IXUSR)
        if found.st_gid == self.gid:
            return bool(found.st_mode & stat.S_IXGRP)
        return bool(found.st_mode & stat.S_IXOTH)


def server_account() -> ServerAccount:
    """Return the service's own account, or `nobody` when the service is root. Raises LookupError if there is no
    `nobody`.
    """
    if os.geteuid() != 0:
        return ServerAccount(uid=os.geteuid(), gid=os.getegid(), lent=False)
    try:
        nobody = pwd.getpwnam("nobody")
    except KeyError:
        message = "Postgres does not run as root, and this machine has no account `nobody` to lend it"
        raise LookupError(message) from None
    return ServerAccount(uid=nobody.pw_uid, gid=nobody.pw_gid, lent=True)
