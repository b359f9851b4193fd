"""Neither store is reached through a pooler that breaks sessions: a real PgBouncer stands between, in each mode."""

import os
import subprocess
import tempfile
from collections.abc import Callable, Generator
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import make_url

from service.domain.errors import Invalid
from service.meta_store.migrate import migrate
from service.serving.preparation import prepare
from service.sessions import check_sessions
from tests.support.debian import LIBRARIES, find_program
from tests.support.service import free_port
from tests.support.waiting import until

pytestmark = pytest.mark.postgres

Pooled = Callable[..., str]


@pytest.fixture
def place() -> Generator[Path]:
    """A directory that PgBouncer, which does not run as root, can read."""
    with tempfile.TemporaryDirectory() as made:
        Path(made).chmod(0o711)
        yield Path(made)


@pytest.fixture
def pooled(database_url: str, place: Path) -> Generator[Pooled]:
    """Start a PgBouncer with these settings before the database; return the URL that leads through it."""
    program = find_program("pgbouncer")
    if program is None:
        pytest.skip("PgBouncer is not installed, and Debian's package cannot be had")
    running: list[subprocess.Popen[bytes]] = []

    def start(**settings: str) -> str:
        url = make_url(database_url)
        port = free_port()
        given = {"listen_addr": "127.0.0.1", "listen_port": port, "auth_type": "any", "unix_socket_dir": "", **settings}
        behind = f"host={url.host} port={url.port} dbname={url.database} user={url.username} password={url.password}"
        lines = [
            "[databases]",
            f"pooled = {behind}",
            "[pgbouncer]",
            *(f"{name} = {one}" for name, one in given.items()),
        ]
        file = place / "pgbouncer.ini"
        file.write_text("\n".join(lines))
        file.chmod(0o644)
        user = ("-u", "nobody") if os.geteuid() == 0 else ()
        running.append(
            subprocess.Popen(
                [str(program), *user, str(file)], env={"LD_LIBRARY_PATH": str(LIBRARIES)}, stderr=subprocess.DEVNULL
            )
        )
        through = url.set(host="127.0.0.1", port=port, database="pooled").render_as_string(hide_password=False)
        until(lambda: answers(through) or running[-1].poll() is not None, what="PgBouncer")
        assert running[-1].poll() is None, "PgBouncer has ended"
        return through

    yield start
    for process in running:
        process.kill()
        process.wait()


def answers(url: str) -> bool:
    try:
        psycopg.connect(url, prepare_threshold=None).close()
    except psycopg.OperationalError:
        return False
    return True


def test_the_server_itself_is_taken(database_url: str) -> None:
    check_sessions(database_url)


@pytest.mark.parametrize(
    "settings",
    [
        {"pool_mode": "transaction", "ignore_startup_parameters": "options"},
        {"pool_mode": "session", "ignore_startup_parameters": "options"},
        {"pool_mode": "session"},
    ],
    ids=["a session for each transaction", "settings are dropped", "settings are refused"],
)
async def test_a_pooler_is_refused(pooled: Pooled, settings: dict[str, str]) -> None:
    url = pooled(**settings)
    with pytest.raises(Invalid, match="through a pooler such as PgBouncer"):
        check_sessions(url)
    with pytest.raises(Invalid, match="through a pooler such as PgBouncer"):
        migrate(url)
    with pytest.raises(Invalid, match="through a pooler such as PgBouncer"):
        await prepare(url, reader_password="r", writer_password="w")


def test_lent_sessions_are_seen_where_settings_are_kept(pooled: Pooled, database_url: str) -> None:
    """A pooler may pass settings on: here the server's own role has them."""
    role, name = make_url(database_url).username, "tidefill.session"
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(
            f'alter role "{role}" in database "{make_url(database_url).database}" set {name} = kept'.encode()
        )
    url = pooled(pool_mode="transaction", ignore_startup_parameters="options")
    with pytest.raises(Invalid, match="through a pooler"):
        check_sessions(url)
