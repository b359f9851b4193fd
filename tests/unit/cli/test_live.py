"""Calls that take long show how they go, and can be left."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
import typer

from service.cli import live, watching
from service.cli.client import Service
from service.cli.live import Live, created_by

PROGRESS = {
    "ddl_id": 7,
    "name": "big",
    "progress": "50.00% (5/10)",
    "phase": "backfilling",
    "rows": 5,
    "total": 10,
    "percent": 50.0,
    "rows_per_second": 10.0,
    "eta_seconds": 1.0,
    "waiting_for": "paused",
}


class Calls:
    """A service whose progress ends the call that is waited for after a few looks."""

    def __init__(self) -> None:
        self.release = threading.Event()
        self.cancelled = False
        self.looks = 0
        self.checks = {"worker": "no worker is alive"}

    def __call__(self, request: httpx.Request) -> httpx.Response:
        match request.url.path:
            case "/v1/ddl-progress":
                self._look()
                return httpx.Response(200, json={"items": [PROGRESS], "next": None})
            case "/readyz":
                self._look()
                return httpx.Response(503, json={"status": "unavailable", "checks": self.checks})
            case "/v1/relations/big":
                return httpx.Response(200, json={"job": 7})
            case path:
                assert path == "/v1/jobs/7/cancel"
                self.cancelled = True
                return httpx.Response(200, json={})

    def _look(self) -> None:
        self.looks += 1
        if self.looks >= 3:
            self.release.set()

    def wait(self) -> str:
        assert self.release.wait(60)
        return "answer"


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[Calls]:
    monkeypatch.setattr(live, "SILENT_SECONDS", 0.01)
    monkeypatch.setattr(watching, "INTERVAL_SECONDS", 0.01)
    calls = Calls()
    yield calls
    calls.release.set()


def on(calls: Calls) -> Live:
    return Live(Service(httpx.Client(base_url="http://service", transport=httpx.MockTransport(calls))))


def test_u4_a_create_shows_its_jobs_progress_and_why_it_waits(calls: Calls, capsys: pytest.CaptureFixture[str]) -> None:
    assert on(calls).run(calls.wait, title="CREATE", creates="big") == "answer"
    assert "big: 50.00% (5/10) 10 rows/s ETA 0:01 [paused]" in capsys.readouterr().err


def test_u7_any_other_call_says_what_is_not_ready(calls: Calls, capsys: pytest.CaptureFixture[str]) -> None:
    assert on(calls).run(calls.wait, title="INSERT") == "answer"
    assert "INSERT:  waiting [worker: no worker is alive]" in capsys.readouterr().err


def test_scripts_that_read_json_are_told_nothing(calls: Calls, capsys: pytest.CaptureFixture[str]) -> None:
    calls.release.set()
    assert Live(on(calls).service, quiet=True).run(calls.wait, title="INSERT") == "answer"
    assert capsys.readouterr().err == ""


def interrupted(monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    """The first look is Ctrl-C; a terminal answers the question that follows."""
    turns: list[BaseException] = [KeyboardInterrupt()]
    elapsed: Callable[..., Any] = getattr(Live, "_follow")  # noqa: B009 - the name is private, and the test is about what interrupts it

    def follow(self: Live, *arguments: Any) -> Any:
        if turns:
            raise turns.pop()
        return elapsed(self, *arguments)

    monkeypatch.setattr(Live, "_follow", follow)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)

    def say(*_arguments: Any, **_options: Any) -> str:
        return answer

    monkeypatch.setattr(typer, "prompt", say)


def test_ctrl_c_leaves_a_create_to_the_background(
    calls: Calls, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    interrupted(monkeypatch, "b")
    assert on(calls).run(calls.wait, title="CREATE", creates="big") is None
    assert "tidefill watch big" in capsys.readouterr().err
    assert not calls.cancelled


def test_ctrl_c_cancels_a_create(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted(monkeypatch, "c")
    with pytest.raises(typer.Exit):
        on(calls).run(calls.wait, title="CREATE", creates="big")
    assert calls.cancelled


def test_ctrl_c_may_be_taken_back(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted(monkeypatch, "w")
    assert on(calls).run(calls.wait, title="CREATE", creates="big") == "answer"


def test_ctrl_c_ends_any_other_call(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted(monkeypatch, "b")
    with pytest.raises(KeyboardInterrupt):
        on(calls).run(calls.wait, title="INSERT")


@pytest.mark.parametrize(
    ("statement", "name"),
    [
        ("create materialized view Big as select 1", "big"),
        ('  CREATE TABLE IF NOT EXISTS public."B""ig" (*)', 'B"ig'),
        ("-- a note\n/* more */ Create Table t(id int)", "t"),
        ("create view v as select 1", None),
        ("insert into t values (1)", None),
    ],
)
def test_what_a_statement_creates(statement: str, name: str | None) -> None:
    assert created_by(statement) == name
