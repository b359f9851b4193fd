"""The account a database server runs under: Postgres refuses to run as root, so a root service lends it another one.

Everything here is about reaching files: a directory tree that only root may enter is of no use to the lent account, and
the caller then has to put the files elsewhere.
"""

import os
import pwd
import stat
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_SERVER_ENVIRONMENT = {"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"}
"""All a server process gets: nothing of the service's own environment, which may hold secrets."""


@dataclass(frozen=True, slots=True)
class ServerAccount:
    """Who owns the server's processes and files. `lent` when it is not the service's own account."""

    uid: int
    gid: int
    lent: bool

    def can_reach(self, path: Path) -> bool:
        """Whether every directory down to `path`, itself included, lets this account through."""
        resolved = path.resolve()
        return not self.lent or all(self._may_enter(place) for place in (resolved, *resolved.parents))

    def own(self, path: Path) -> None:
        """Give one file or directory to the account."""
        if self.lent:
            os.chown(path, self.uid, self.gid)

    def run(self, command: Sequence[str | Path], *, timeout_seconds: float) -> subprocess.CompletedProcess[str]:
        """Run a command to its end under the account; its output is joined. Raises subprocess.TimeoutExpired."""
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
    """Return the service's own account, or `nobody`'s when the service is root. Raises LookupError if there is none."""
    if os.geteuid() != 0:
        return ServerAccount(uid=os.geteuid(), gid=os.getegid(), lent=False)
    try:
        nobody = pwd.getpwnam("nobody")
    except KeyError:
        message = "Postgres does not run as root, and this machine has no account `nobody` to lend it"
        raise LookupError(message) from None
    return ServerAccount(uid=nobody.pw_uid, gid=nobody.pw_gid, lent=True)
