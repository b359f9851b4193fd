"""The examples of README and tour do what is said there, in the order in which they are read."""

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tests.support.production import External
from tests.support.service import Service
from tests.support.waiting import until

pytestmark = pytest.mark.e2e
ROOT: Final = Path(__file__).parents[2]
PAGES: Final = (("README.md",), pytest.param(("README.md", "docs/tour.md"), marks=pytest.mark.soak))
"""The tour goes on where the README ends."""
_CONSOLE: Final = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_ANYTHING: Final = ".."


@pytest.fixture
def shop(service: Service, server: External) -> Iterator[str]:
    """The port of a server with the reader's own database and login."""
    server.run("create role app login replication password 'app-password'")
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("create database shop owner app")
    parts = conninfo_to_dict(server.url)
    mine = make_conninfo(server.url, dbname="shop", user="app", password="app-password")
    with psycopg.connect(mine) as connection:
        connection.execute("create table products (id bigint primary key, name text, price numeric(10,2))")
        connection.execute("insert into products select g, 'p' || g, g % 100 from generate_series(1, 1000) g")
    yield str(parts["port"])
    service.reset()
    until(lambda: not server.slots(), what="no slot is left (I9)")
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("drop database shop with (force)")
        connection.execute("drop role app")


@pytest.mark.parametrize("pages", PAGES, ids=len)
def test_the_examples_run_in_their_order(service: Service, shop: str, tmp_path: Path, pages: Sequence[str]) -> None:
    service.run("ALTER SYSTEM SET barrier_interval_ms = DEFAULT")
    tools = str(Path(sys.executable).parent)
    environment = {
        "PATH": f"{tools}:/usr/local/bin:/usr/bin:/bin",
        "TIDEFILL_URL": service.url,
        **({} if service.token is None else {"TIDEFILL_API_TOKEN": service.token}),
        "HOME": str(tmp_path),
    }
    # A reader's service has no token; this one has, and curl takes it from there.
    (tmp_path / ".curlrc").write_text(
        "".join(f'header = "{name}: {value}"\n' for name, value in service.headers.items())
    )
    ran = 0
    for page in pages:
        for command, shown in examples((ROOT / page).read_text()):
            if command.startswith(". .venv"):
                continue
            done = subprocess.run(
                ["/bin/bash", "-c", readers_own(command, service.url.removeprefix("http://"), shop, tmp_path)],
                env=environment,
                cwd=tmp_path,
                capture_output=True,
                text=True,
                timeout=240,
                check=False,
            )
            said = f"{page}: $ {command}\n{done.stdout}{done.stderr}"
            assert done.returncode == 0, said
            assert "urn:tidefill:problem" not in done.stdout, said
            if shown:
                pattern = re.escape(shown).replace(re.escape(_ANYTHING), ".*")
                assert re.fullmatch(pattern, "\n".join(map(str.rstrip, done.stdout.strip("\n").split("\n")))), said
            ran += 1
    assert ran > 20


def readers_own(command: str, service: str, port: str, folder: Path) -> str:
    """Put in where the reader's servers and folders are."""
    external = re.sub(r"(port ?= ?)5432", rf"\g<1>{port}", command)
    return external.replace("localhost:8700", service).replace("/tmp/lake", str(folder / "lake"))


def examples(text: str) -> Iterator[tuple[str, str]]:
    """Yield each command, which may go over several lines in quotes, and what is shown below it."""
    for block in _CONSOLE.findall(text):
        for example in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            lines = example.rstrip("\n").split("\n")
            length = next(n for n in range(1, len(lines) + 1) if whole("\n".join(lines[:n])))
            yield "\n".join(lines[:length]), "\n".join(lines[length:])


def whole(command: str) -> bool:
    try:
        shlex.split(command)
    except ValueError:
        return False
    return True
