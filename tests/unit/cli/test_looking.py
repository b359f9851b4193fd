"""Commands that look at the service as a whole."""

from typing import Any

import httpx
import pytest

from service.cli.client import ExitCode
from tests.support.canned_service import Command, Routes

READY = {"status": "ok", "checks": {"leader": "ok", "worker": "ok"}}
UNREADY = {"status": "unavailable", "checks": {"leader": "ok", "worker": "no worker is alive"}}
GRAPH: dict[str, Any] = {"graph": 1, "status": "RUNNING", "recoveries": 2, "paused": True, "last_error": None}
JOB = {"id": 7, "name": "m", "state": "Failed", "error": "division by zero"}


def page(*items: object) -> dict[str, Any]:
    return {"items": list(items), "next": None}


@pytest.mark.parametrize(("readiness", "code"), [(READY, 200), (UNREADY, 503)])
def test_status_says_what_is_not_ready(command: Command, routes: Routes, readiness: Any, code: int) -> None:
    routes.on("GET", "/readyz", httpx.Response(code, json=readiness))
    routes.on("GET", "/v1/graphs", page(GRAPH))
    routes.on("GET", "/v1/jobs", page(JOB))
    ended = command("status")
    assert ended.exit_code == (0 if code == 200 else 3), ended.output
    assert ("no worker is alive" in ended.stdout) == (code == 503)
    assert "graph 1: Running, 2 recoveries, backfills paused" in ended.stdout
    assert "m (job 7) Failed: division by zero" in ended.stdout


@pytest.mark.parametrize("text", ["SELECT a FROM t", "CREATE MATERIALIZED VIEW explained AS SELECT a FROM t"])
def test_explain_takes_a_view_or_its_text(command: Command, routes: Routes, text: str) -> None:
    answer = {"tag": "EXPLAIN", "columns": [], "rows": [["Snapshot"]], "notices": [], "session": {}}
    routes.on("POST", "/v1/sql", answer)
    assert command("explain", text).stdout == "Snapshot\n"
    sent = {"sql": "EXPLAIN CREATE MATERIALIZED VIEW explained AS SELECT a FROM t"}
    assert routes.calls == [("POST", "/v1/sql", sent)]


def test_sources_show_every_followed_table(command: Command, routes: Routes) -> None:
    tables = [
        {"name": "a", "state": "following", "reason": None},
        {"name": "b", "state": "broken", "reason": 'column "x" was dropped'},
    ]
    routes.on(
        "GET",
        "/v1/sources",
        page({"name": "shop", "lag_bytes": 10, "retained_bytes": 3 << 20, "waiting": None, "tables": tables}),
    )
    shown = command("sources").stdout
    assert "3.0 MB" in shown
    assert 'column "x" was dropped' in shown


def test_a_check_that_fails_ends_with_an_exit_code(command: Command, routes: Routes) -> None:
    routes.on("POST", "/v1/sources/check", page({"item": "wal_level", "ok": False, "detail": "it is replica"}))
    ended = command("check", "hostname=127.0.0.1", "database.name=shop", "--table", "public.orders", "--secret", "s")
    assert ended.exit_code == 1
    assert "it is replica" in ended.stdout
    options = {"connector": "postgres-cdc", "hostname": "127.0.0.1", "database.name": "shop"}
    assert routes.calls[0][2] == {"options": options, "tables": ["public.orders"], "secret": "s"}


def test_check_names_an_option_without_a_value(command: Command, routes: Routes) -> None:
    assert command("check", "hostname").exit_code == 2
    assert routes.calls == []


def test_events_are_read_page_after_page(command: Command, routes: Routes) -> None:
    first = {"id": 1, "at": "2026-01-01", "kind": "job.started", "facts": {"job": 7, "error": None}}
    routes.on("GET", "/v1/events", {"items": [first], "next": "1"}, page({**first, "id": 2, "kind": "job.created"}))
    lines = command("events").stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["1", "2"]
    assert lines[0].endswith("job.started job=7")


def test_events_are_followed_over_a_cut_stream(command: Command, routes: Routes) -> None:
    def frame(number: int) -> httpx.Response:
        return httpx.Response(200, text=f'data: {{"id":{number},"at":"x","kind":"k","facts":{{}}}}\n\n')

    routes.on("GET", "/v1/events", frame(1), httpx.RemoteProtocolError("cut"), frame(2), KeyboardInterrupt())
    ended = command("events", "--follow")
    assert [line.split()[0] for line in ended.stdout.splitlines()] == ["1", "2"]
    assert [call[1] for call in routes.calls] == [f"/v1/events?after={n}" for n in (0, 1, 1, 2)]


@pytest.mark.parametrize(
    ("call", "answer", "said"),
    [
        (("events", "--follow"), httpx.Response(401, json={"detail": "send a token"}), "send a token"),
        (("status",), httpx.Response(502, text="<html>"), "the service answered 502"),
    ],
)
def test_what_is_no_answer_of_a_service_ends_with_a_message(
    command: Command, routes: Routes, call: tuple[str, ...], answer: httpx.Response, said: str
) -> None:
    routes.on("GET", "/v1/events" if call[0] == "events" else "/readyz", answer)
    ended = command(*call)
    assert ended.exit_code in {ExitCode.REFUSED, ExitCode.UNAVAILABLE}
    assert said in ended.stderr


@pytest.mark.parametrize(
    ("name", "path", "said"),
    [
        ("jobs", "/v1/jobs", "no jobs"),
        ("sources", "/v1/sources", "no sources"),
        ("workers", "/v1/workers", "no worker is alive"),
        ("watch", "/v1/ddl-progress", "nothing is being created"),
    ],
)
def test_u7_an_empty_list_says_so(command: Command, routes: Routes, name: str, path: str, said: str) -> None:
    routes.on("GET", path, page())
    assert command(name).stdout.startswith(said)


def test_the_version(command: Command) -> None:
    assert command("--version").stdout.startswith("tidefill ")
