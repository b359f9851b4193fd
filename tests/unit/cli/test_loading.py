"""`tidefill load`."""

import gzip
import json
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from service.cli import client
from service.cli.app import app


class Loads:
    """A service that takes rows."""

    def __init__(self) -> None:
        self.requests: list[httpx.Request] = []
        self.answer = httpx.Response(200, json={"rows": 1234})

    def __call__(self, request: httpx.Request) -> httpx.Response:
        request.read()
        self.requests.append(request)
        return self.answer


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> Loads:
    loads = Loads()

    def open_http(url: str, _token: str | None) -> httpx.Client:
        return httpx.Client(base_url=url, transport=httpx.MockTransport(loads))

    monkeypatch.setattr(client, "open_http", open_http)
    return loads


def test_a_followed_table_is_read_again(loads: Loads) -> None:
    ended = CliRunner().invoke(app, ["reload", 'my "t"'])
    assert ended.stdout == 'my "t" follows again, and its history is read: tidefill watch my "t"\n'
    assert json.loads(loads.requests[-1].content) == {"sql": 'ALTER TABLE "my ""t""" RELOAD'}


@pytest.mark.parametrize(
    ("name", "media", "encoding"),
    [
        ("t.csv", "text/csv", None),
        ("t.CSV.gz", "text/csv", "gzip"),
        ("t.ndjson", "application/x-ndjson", None),
        ("t.jsonl.gz", "application/x-ndjson", "gzip"),
        ("t.arrow", "application/vnd.apache.arrow.stream", None),
        ("t.parquet", "application/vnd.apache.parquet", None),
    ],
)
def test_u10_a_file_is_sent_as_its_suffix_says(
    loads: Loads, tmp_path: Path, name: str, media: str, encoding: str | None
) -> None:
    file = tmp_path / name
    file.write_bytes(gzip.compress(b"a\n1\n") if encoding else b"a\n1\n")
    ended = CliRunner().invoke(app, ["load", str(file)])
    assert ended.exit_code == 0, ended.output
    assert ended.stdout == "t: 1,234 rows loaded\n"
    (request,) = loads.requests
    assert request.url.path == "/v1/relations/t/rows"
    assert (request.headers["content-type"], request.headers.get("content-encoding")) == (media, encoding)
    assert request.content == file.read_bytes()
    assert request.headers["content-length"] == str(file.stat().st_size)


def test_u10_the_input_is_loaded_into_a_named_table(loads: Loads) -> None:
    arguments = ["load", "-", "--table", "a/b", "--format", "ndjson", "--columns", "x,y", "--json"]
    ended = CliRunner().invoke(app, arguments, input='{"x": 1}\n')
    assert json.loads(ended.stdout) == {"table": "a/b", "rows": 1234}
    (request,) = loads.requests
    assert request.url.raw_path == b"/v1/relations/a%2Fb/rows?columns=x%2Cy"
    assert request.content == b'{"x": 1}\n'


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("x.txt",), "--format"),
        (("-", "--format", "csv"), "--table"),
        (("/nowhere/t.csv",), "is no file"),
    ],
)
def test_u10_what_cannot_be_loaded_is_said_without_a_call(loads: Loads, arguments: tuple[str, ...], said: str) -> None:
    ended = CliRunner().invoke(app, ["load", *arguments])
    assert ended.exit_code == 2
    assert said in " ".join(ended.stderr.split())
    assert loads.requests == []


def test_u10_a_load_that_is_refused_says_why(loads: Loads, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a\nx\n")
    loads.answer = httpx.Response(422, json={"detail": 'row 1 (line 2), column "a": no'})
    ended = CliRunner().invoke(app, ["load", str(tmp_path / "t.csv")])
    assert ended.exit_code == 1
    assert ended.stderr == 'error: row 1 (line 2), column "a": no\n'
