"""`tidefill sql` with -c or piped text: commands, errors as JSON, and how it ends."""

import json
import threading
from collections.abc import Iterator
from functools import partial

import httpx
import pytest

from service.cli import live, watching
from service.cli.client import Service
from service.cli.live import Live, inserted_into
from service.cli.statements import split
from tests.support.canned_service import Command, Routes

DONE = {"tag": "OK", "columns": [], "rows": [], "notices": [], "session": {}, "truncated": False}
RELATIONS = {"items": [{"name": "t", "kind": "table"}, {"name": "m", "kind": "materialized view"}], "next": None}


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("\\d", ["\\d"]),
        ("\\d t; \n select 1", ["\\d t", "select 1"]),
        ("select 1; \\dt\nselect 2", ["select 1", "\\dt", "select 2"]),
        ("-- a note\n\\q", ["\\q"]),
        ("select 'a\\d'", ["select 'a\\d'"]),
    ],
)
def test_u10_a_command_ends_with_its_line(text: str, pieces: list[str]) -> None:
    assert list(split(text)) == pieces


def test_u10_commands_work_without_a_prompt(command: Command, routes: Routes) -> None:
    routes.on("GET", "/v1/relations", RELATIONS)
    routes.on("POST", "/v1/sql", DONE)
    lines = command("sql", "-c", "\\d").stdout.splitlines()
    assert [line.partition(" ")[0] for line in lines[2:]] == ["t", "m"]
    assert [line.partition(" ")[0] for line in command("sql", given="\\dt\n").stdout.splitlines()[2:]] == ["t"]
    ended = command("sql", given="\\d t\n\\q\nselect 1;")
    assert (ended.exit_code, ended.stdout) == (0, "OK\n")
    assert routes.calls[-1] == ("POST", "/v1/sql", {"sql": "DESCRIBE t", "session": {}})
    unknown = command("sql", "-c", "\\timing on")
    assert unknown.exit_code == 1
    assert unknown.stderr == "error: unknown command \\timing on: \\? lists the commands\n"


@pytest.mark.parametrize("arguments", [("sql", "--json", "-c", "selec 1"), ("verify", "7", "--json")])
def test_u10_errors_under_json_are_json(command: Command, routes: Routes, arguments: tuple[str, ...]) -> None:
    problem = {"type": "urn:x", "status": 422, "detail": "no", "position": 1}
    for path in ("/v1/sql", "/v1/jobs/7/verify"):
        routes.on("POST", path, httpx.Response(422, json=problem))
    ended = command(*arguments)
    assert ended.exit_code == 1
    assert json.loads(ended.stderr) == problem
    for path in ("/v1/sql", "/v1/jobs/7/verify"):
        routes.on("POST", path, httpx.ConnectError("refused"))
    assert json.loads(command(*arguments).stderr) == {"detail": "no service at http://service: refused"}


def test_u10_a_create_that_is_left_ends_with_130(
    command: Command, routes: Routes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And runs none of the statements behind it."""
    routes.on("POST", "/v1/sql", DONE)

    def interrupted(*_arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Live, "_follow", interrupted)
    ended = command("sql", "-c", "create materialized view m as select 1; drop table t")
    assert ended.exit_code == 130
    assert "goes on in the background" in ended.stderr
    assert [call for call in routes.calls if "drop" in str(call)] == []


class Publishing:
    """A service that publishes rows of a statement in three looks."""

    def __init__(self) -> None:
        self.rows = 0
        self.done = threading.Event()

    def __call__(self, request: httpx.Request) -> httpx.Response:
        assert request.url.path == "/v1/staged-statements"
        self.rows += 100_000
        if self.rows > 300_000:
            self.done.set()
        return httpx.Response(200, json={"items": [{"id": 1, "relation": "t", "rows": self.rows, "total": 400_000}]})


@pytest.fixture
def publishing(monkeypatch: pytest.MonkeyPatch) -> Iterator[Publishing]:
    monkeypatch.setattr(live, "SILENT_SECONDS", 0.01)
    monkeypatch.setattr(watching, "INTERVAL_SECONDS", 0.01)
    service = Publishing()
    yield service
    service.done.set()


def test_u10_an_insert_shows_how_many_rows_are_published(
    publishing: Publishing, capsys: pytest.CaptureFixture[str]
) -> None:
    http = httpx.Client(base_url="http://service", transport=httpx.MockTransport(publishing))
    shown = Live(Service(http))
    shown.run(lambda: publishing.done.wait(60), title="INSERT", look=partial(shown.rows_of, "t"))
    assert "into t: 25.00% (100000/400000) publishing\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("statement", "name"),
    [('Insert Into public."T""x" select 1', 'T"x'), ("-- x\ninsert into T values (1)", "t"), ("select 1", None)],
)
def test_u10_into_which_table_a_statement_inserts(statement: str, name: str | None) -> None:
    assert inserted_into(statement) == name
