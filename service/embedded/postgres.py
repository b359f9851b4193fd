"""An embedded Postgres, for a machine that has none: `tidefill serve` without settings.

One `EmbeddedPostgres` owns one data directory by a lock that the kernel releases when the process ends, however that
happens. If a service was killed, the next one shuts down its server and starts it again. Durability is Postgres's own:
`fsync` is on, and a start after a SIGKILL of all processes is a crash recovery.

All calls block; the service makes them in a thread.
"""

import fcntl
import secrets
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import IO, Final

import psycopg
import structlog
from psycopg import sql

from service.embedded.cluster import Cluster, EmbeddedPostgresFailed, write_private
from service.embedded.courtesy import calm
from service.embedded.postgres_wheel import postgres_programs
from service.embedded.server_account import ServerAccount, server_account

DATABASE: Final = "tidefill"
USER: Final = "tidefill"

_log = structlog.get_logger(__name__)


class DataDirectoryInUse(RuntimeError):
    """Another service has locked this data directory."""


class EmbeddedPostgres:
    """One server in `<data_dir>/postgres`. `settings` override the product's own; the service passes none."""

    def __init__(self, data_dir: Path, settings: Mapping[str, str] = MappingProxyType({})) -> None:
        self._data_dir = data_dir.resolve()
        self._settings = settings
        self._lock: IO[str] | None = None
        self._cluster: Cluster | None = None
        self._port: int | None = None

    def start(self) -> str:
        """Start the server and return the URL of its database `tidefill`, with its superuser's password.

        Raises DataDirectoryInUse, EmbeddedPostgresFailed, FileNotFoundError (no wheel) or LookupError (no account to
        run under). Nothing stays running then.
        """
        assert self._lock is None
        account = server_account()
        # Another account that runs Postgres must be able to traverse this directory.
        self._data_dir.mkdir(parents=True, exist_ok=True, mode=0o711)
        self._lock = _locked(self._data_dir / "postgres.lock")
        try:
            return self._start(account)
        except BaseException:
            self.stop()
            raise

    def keep_running(self) -> bool:
        """Start the server again if it was killed; return whether it was. It keeps its port, so URLs stay valid.

        Its logs are kept short meanwhile, and sessions of readers calm. Raises EmbeddedPostgresFailed; the next
        call tries again.
        """
        assert self._cluster is not None
        assert self._port is not None
        self._cluster.bound_log()
        if self._cluster.served:
            calm(self._cluster.directory)
            return False
        self._cluster.shut_down()
        self._cluster.start(self._settings, port=self._port)
        _log.warning("embedded_postgres.started_again", port=self._port)
        return True

    def stop(self) -> None:
        """Shut the server down (end its sessions, write a checkpoint) and unlock the data directory."""
        if self._lock is None:
            return
        try:
            if self._cluster is not None:
                self._cluster.shut_down()
        finally:
            self._cluster = None
            self._lock.close()
            self._lock = None

    def _start(self, account: ServerAccount) -> str:
        home = _home(self._data_dir, account)
        cluster = Cluster(home, postgres_programs(account, home / "programs"), account)
        password = _password(home / "password")
        cluster.initialise(USER, password)
        self._cluster = cluster
        cluster.shut_down()
        self._port = port = cluster.start(self._settings)
        _create_database(password, port)
        _log.info("embedded_postgres.started", directory=str(home), port=port)
        return f"postgresql://{USER}:{password}@127.0.0.1:{port}/{DATABASE}"


def _locked(path: Path) -> IO[str]:
    lock = path.open("a")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise DataDirectoryInUse(
            f"{path.parent} is in use by another tidefill service: stop it, or choose another TIDEFILL_DATA_DIR"
        ) from None
    return lock


def _home(data_dir: Path, account: ServerAccount) -> Path:
    """Return the directory of the server's files. It is outside of `data_dir` if the server's account cannot enter
    that.
    """
    if account.can_reach(data_dir):
        home = data_dir / "postgres"
        home.mkdir(exist_ok=True)
    else:
        home = _home_elsewhere(data_dir)
    # Another account traverses this directory to its own ones inside; it cannot list or change it.
    home.chmod(0o711 if account.lent else 0o700)
    return home


def _home_elsewhere(data_dir: Path) -> Path:
    record = data_dir / "postgres.place"
    if record.exists():
        home = Path(record.read_text())
        if not home.is_dir():
            raise EmbeddedPostgresFailed(
                f"the database of {data_dir} lay in {home}, which is gone; remove {record} to begin with an empty one"
            )
    else:
        home = Path(tempfile.mkdtemp(prefix="tidefill-postgres-")).resolve()
        write_private(record, str(home))
    _log.warning(
        "embedded_postgres.placed_elsewhere",
        directory=str(home),
        reason=f"the account Postgres runs under cannot enter {data_dir}",
        remedy="set TIDEFILL_DATA_DIR to a directory it can enter: temporary files may be cleared away",
    )
    return home


def _password(path: Path) -> str:
    if not path.exists():
        write_private(path, secrets.token_urlsafe(24))
    return path.read_text()


def _create_database(password: str, port: int) -> None:
    with psycopg.connect(
        host="127.0.0.1", port=port, user=USER, password=password, dbname="postgres", autocommit=True
    ) as connection:
        found = connection.execute("select from pg_database where datname = %s", (DATABASE,)).fetchone()
        if found is None:
            connection.execute(sql.SQL("create database {}").format(sql.Identifier(DATABASE)))
