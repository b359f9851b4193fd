"""`tidefill psql`, with a program called psql that shows what it was given."""

import subprocess
import sys
from collections.abc import AsyncGenerator, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from service.operations import read_logins
from service.ports.read_logins import ReadLogin, ReadPlace
from tests.support.http import BrokenStores, doors, refused

PLACE = ReadPlace("127.0.0.1", 35011, "tide/fill", "the key")


class Logins:
    """The logins of a server: each with its password."""

    def __init__(self) -> None:
        self.passwords: dict[str, str] = {}

    def name(self, suffix: str) -> str:
        return f"tidefill_read_{suffix}"

    async def open(self, login: ReadLogin, password: str) -> None:
        self.passwords[login.suffix] = password


@pytest.fixture
async def shown(monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[bytes]:
    def password(*_: object) -> str:
        return "p@ss"

    monkeypatch.setattr(read_logins, "_password", password)
    broken = BrokenStores(AssertionError("reached"))
    async with doors(broken, place=PLACE, read_logins=Logins()) as http:
        yield (await http.get("/v1/read-login?password=true")).content


@pytest.fixture
def url(shown: bytes) -> Iterator[str]:
    class Answering(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(shown)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
            del format, args

    with HTTPServer(("127.0.0.1", 0), Answering) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def tidefill(url: str, *arguments: str, path: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "service.cli", "psql", "--url", url, *arguments]
    return subprocess.run(command, env={"PATH": path}, capture_output=True, text=True, check=False)


def test_u6_psql_runs_with_the_login_and_what_follows(url: str, tmp_path: Path) -> None:
    program = tmp_path / "psql"
    program.write_text('#!/bin/sh\necho "$PGUSER:$PGPASSWORD@$PGHOST:$PGPORT/$PGDATABASE" "$@"\n')
    program.chmod(0o755)
    done = tidefill(url, "-c", "\\d", "-x", path=f"{tmp_path}:/bin:/usr/bin")
    assert done.stdout == "tidefill_read_root:p@ss@127.0.0.1:35011/tide/fill -c \\d -x\n", done.stderr


def test_u6_without_psql_the_connection_string_is_printed(url: str, tmp_path: Path) -> None:
    done = tidefill(url, "--dsn", path=str(tmp_path))
    assert done.stdout == "postgresql://tidefill_read_root:p%40ss@127.0.0.1:35011/tide%2Ffill\n"
    missing = tidefill(url, path=str(tmp_path))
    assert (missing.returncode, "tidefill psql --dsn" in missing.stderr) == (2, True)


async def test_u6_the_password_is_shown_only_when_it_is_asked_for() -> None:
    logins = Logins()
    async with doors(BrokenStores(AssertionError("reached")), place=PLACE, read_logins=logins) as http:
        answer = await http.get("/v1/read-login")
        assert (answer.json()["password"], logins.passwords) == (None, {})
        assert answer.json()["dsn"] == "postgresql://tidefill_read_root@127.0.0.1:35011/tide%2Ffill"
        answer = await http.get("/v1/read-login?password=true")
        assert answer.json()["password"] == logins.passwords["root"]
    async with doors(BrokenStores(AssertionError("reached"))) as http:
        refused(await http.get("/v1/read-login"), 404, "not-found")
    assert PLACE.key not in repr(PLACE)
