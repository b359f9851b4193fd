"""Initialise, configure, start and shut down one Postgres cluster on disk.

A running server is never taken over. Every start first ends the processes of the last server, so that no session of a
dead service stays.
"""

import os
import shutil
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

import structlog

from service.embedded.orphans import end_orphans, is_served
from service.embedded.server_account import ServerAccount

# Limits for pg_ctl: crash recovery replays at most max_wal_size, and a fast shutdown writes one checkpoint.
_START_SECONDS: Final = 300
_STOP_SECONDS: Final = 60
_PORT_TRIES: Final = 5
SESSION_BYTES: Final = max(1 << 30, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 16)
"""The most memory, in bytes, that each process of the server may allocate. A user's login has 16 sessions."""
_MAPPED_BYTES: Final = 1 << 30
"""The most that the buffers, which all processes share, and the program itself have: 650 MB, and room for a release."""
_LOG_BYTES_MAX: Final = 256 << 20
_STACK_LIMIT: Final = 8 << 20
_STACK: Final = "2MB"
_STACK_AT_START: Final = "3MB"
_NESTED: Final = f"unused /{'(?:' * 12_000}a{')' * 12_000} unused\n"
"""A map of users that nobody uses. To read it takes the server 2.8 MB of stack, which all its processes inherit.

A process has room for `max_stack_depth` then, however much of its address space is taken. Linux ends one whose stack
finds no room, and the server ends all sessions then: a reader with 1.4 GB of texts could do so at will (I13).
"""

_SETTINGS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "listen_addresses": "127.0.0.1",
        # Relative to the cluster, because an absolute path may exceed the 107 bytes of a socket's path.
        "unix_socket_directories": "../run",
        "wal_level": "logical",
        "max_connections": "200",
        # A client that never answers with a password holds one of these connections meanwhile.
        "authentication_timeout": "10s",
        "shared_buffers": "512MB",
        # Writers wait for room in the WAL buffers, and for new segments to be zeroed; a backfill fills many segments a
        # second.
        "wal_buffers": "64MB",
        "min_wal_size": "1GB",
        "max_wal_size": "4GB",
        "checkpoint_timeout": "15min",
        # A reader that listens and cannot be stopped keeps all notifications: 1 GB, where the default is 8. A service
        # whose notifications find no room is half a second later (docs/operations.md).
        "max_notify_queue_pages": "131072",
        "max_replication_slots": "32",
        "max_wal_senders": "32",
        # Our statements are short and many: JIT compilation costs more than it saves.
        "jit": "off",
        # With two processors, two processes build an index faster than three.
        "max_parallel_maintenance_workers": str(min(max((os.cpu_count() or 1) - 1, 1), 4)),
        # Each process of a parallel query has a session's share of the processors. 16 sessions of a reader had 8.
        "max_parallel_workers": str(min(os.cpu_count() or 1, 8)),
        "autovacuum": "on",
        "timezone": "UTC",
        "log_timezone": "UTC",
        # One file per weekday, overwritten after a week, so the log's size is bounded without maintenance.
        "logging_collector": "on",
        "log_directory": "../log",
        "log_filename": "postgres-%a.log",
        "log_truncate_on_rotation": "on",
        "log_rotation_age": "1d",
        "log_rotation_size": "0",
    }
)
LOCALE: Final = ("--encoding=UTF8", "--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8")
"""C.UTF-8 orders by bytes like C, and handles upper and lower case beyond ASCII, like Spark."""
_HOST_RULES: Final = """\
# The socket lies in a directory that only the server's own account can open; everybody else has a password.
local all all trust
host all all 127.0.0.1/32 scram-sha-256
host replication all 127.0.0.1/32 scram-sha-256
"""

_log = structlog.get_logger(__name__)


class EmbeddedPostgresFailed(RuntimeError):
    """The server could not be initialised, started or stopped. The message contains the program's output."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """`home` has all the files of the server; `programs` is the directory of `initdb`, `pg_ctl` and `postgres`."""

    home: Path
    programs: Path
    account: ServerAccount

    @property
    def directory(self) -> Path:
        """The directory that Postgres calls PGDATA."""
        return self.home / "cluster"

    def initialise(self, user: str, password: str) -> None:
        """Make the cluster in another directory and rename it when complete, so that a killed initdb leaves none."""
        if self.directory.exists():
            return
        unfinished = self.directory.with_name("cluster.unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        self._own_directory(unfinished)
        password_copy = unfinished.with_name("password.initdb")
        write_private(password_copy, password)
        self.account.own(password_copy)
        access = ("--username", user, "--pwfile", password_copy, "--auth-local=trust", "--auth-host=scram-sha-256")
        try:
            self._call("initdb", "--pgdata", unfinished, *LOCALE, *access)
        finally:
            password_copy.unlink()
        unfinished.rename(self.directory)

    @property
    def served(self) -> bool:
        """Whether a server runs on the cluster."""
        return is_served(self.directory)

    def start(self, settings: Mapping[str, str], *, port: int | None = None) -> int:
        """Start the server and return its port: `port`, else the last one if it is free, else any free one.

        `settings` override the defaults. The caller has shut down the last server. Raises EmbeddedPostgresFailed.
        """
        # A killed server leaves its socket and its lock with a pid. No server works here now, so both are stale.
        shutil.rmtree(self.home / "run", ignore_errors=True)
        for directory in ("run", "log"):
            self._own_directory(self.home / directory)
        log = self.home / "log" / "start.log"
        for attempt in range(_PORT_TRIES):
            chosen = port or _free_port(self.home / "port" if attempt == 0 else None)
            self._configure({**settings, "port": str(chosen)})
            wait = ("--wait", "--timeout", str(_START_SECONDS), "--silent")
            try:
                self._call("pg_ctl", "start", *wait, "--pgdata", self.directory, "--log", log, before=_bounded())
            except EmbeddedPostgresFailed as failure:
                # Another process may take the port between this check and the server's start.
                if port is None and attempt + 1 < _PORT_TRIES and _is_taken(chosen):
                    continue
                raise EmbeddedPostgresFailed(f"{failure}\n{_last_words(self.home / 'log')}") from None
            try:
                self._write({"stack.conf": f"max_stack_depth = '{_STACK}'\n", "pg_ident.conf": ""})
                self._call("pg_ctl", "reload", "--silent", "--pgdata", self.directory)
            except BaseException:
                self.shut_down()
                raise
            write_private(self.home / "port", str(chosen))
            return chosen
        raise AssertionError("the last attempt returns or raises")

    def bound_log(self) -> None:
        """Empty the log files that have grown too long: each attempt to log in, of anybody, may write 10 kB to one."""
        for file in (self.home / "log").glob("*.log"):
            if file.stat().st_size > _LOG_BYTES_MAX:
                os.truncate(file, 0)
                _log.warning("embedded_postgres.log_emptied", file=file.name, bytes_max=_LOG_BYTES_MAX)

    def shut_down(self) -> None:
        """End all processes of the cluster: our server, one that outlived its service, the rest of a killed one."""
        if self.served:
            wait = ("--wait", "--timeout", str(_STOP_SECONDS), "--silent")
            try:
                self._call("pg_ctl", "stop", *wait, "--mode=fast", "--pgdata", self.directory)
            except EmbeddedPostgresFailed as failure:
                # A server that cannot finish must not stay. Its WAL contains the changes that it did not write to the
                # tables.
                _log.warning("embedded_postgres.not_shut_down", directory=str(self.directory), error=str(failure))
        end_orphans(self.directory)

    def _configure(self, settings: Mapping[str, str]) -> None:
        chosen = {**_SETTINGS, **settings}
        if "--with-lz4" in self.account.run([self.programs / "pg_config", "--configure"], timeout_seconds=60).stdout:
            chosen.setdefault("wal_compression", "lz4")
        lines = "".join(f"{name} = '{value}'\n" for name, value in chosen.items())
        stack = f"max_stack_depth = '{_STACK_AT_START}'\n"
        self._write({"postgresql.conf": f"{lines}include 'stack.conf'\n", "stack.conf": stack})
        self._write({"pg_hba.conf": _HOST_RULES, "pg_ident.conf": _NESTED})

    def _write(self, files: Mapping[str, str]) -> None:
        for name, text in files.items():
            write_private(self.directory / name, text)
            self.account.own(self.directory / name)

    def _own_directory(self, path: Path) -> None:
        path.mkdir(mode=0o700, exist_ok=True)
        path.chmod(0o700)
        self.account.own(path)

    def _call(self, program: str, *arguments: str | Path, before: Sequence[str] = ()) -> None:
        # This exceeds pg_ctl's own limit, so that a program that hangs does not hang the service for ever.
        done = self.account.run([*before, self.programs / program, *arguments], timeout_seconds=_START_SECONDS + 60)
        if done.returncode != 0:
            raise EmbeddedPostgresFailed(f"{program} failed: {done.stdout.strip()}")


def _bounded() -> Sequence[str]:
    """Return the prefix of a command that bounds each of its processes to `SESSION_BYTES`.

    Postgres has no bound for the values of a query. If the kernel kills one process for want of memory, the server ends
    all sessions, the meta store's too (I13). The shared memory of a parallel query is in no data segment, so the
    address space is bounded as well.
    """
    all_bytes = SESSION_BYTES + _MAPPED_BYTES
    limits = f"ulimit -s {_STACK_LIMIT >> 10}; ulimit -d {SESSION_BYTES >> 10}; ulimit -v {all_bytes >> 10}"
    return ("/bin/sh", "-c", f'{limits}; exec "$0" "$@"')


def write_private(path: Path, text: str) -> None:
    """Write a file atomically and durably. It is readable to its owner alone from the first byte."""
    unfinished = path.with_name(path.name + ".unfinished")
    unfinished.unlink(missing_ok=True)
    with os.fdopen(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)


def _free_port(last_time: Path | None) -> int:
    if last_time is not None and last_time.exists():
        port = int(last_time.read_text())
        if not _is_taken(port):
            return port
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _is_taken(port: int) -> bool:
    with socket.socket() as probe:
        # A port with lingering old connections counts as free, because Postgres can listen on it.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return True
        return False


def _last_words(logs: Path) -> str:
    newest = max(logs.iterdir(), key=lambda file: file.stat().st_mtime, default=None)
    return "" if newest is None else newest.read_text(errors="replace")[-2000:]
