"""The command line: what it calls, what it prints, how it ends."""

import io
import json
import shlex
from typing import Any
from unittest.mock import Mock

import httpx
import pytest
from rich.console import Console

from service import bootstrap
from service.cli import bars, output
from service.cli.stage import asking
from tests.support.canned_service import Command, Routes

PROGRESS = {
    "ddl_id": 7,
    "name": "m",
    "progress": "50.00% (5/10)",
    "phase": "backfilling",
    "rows": 5,
    "total": 10,
    "percent": 50.0,
    "rows_per_second": 1234.4,
    "eta_seconds": 61.0,
    "waiting_for": None,
}
JOB = {
    "id": 7,
    "name": "m",
    "kind": "materialized view",
    "state": "Created",
    "error": None,
    "progress": {
        "text": "100%",
        "phase": "created",
        "rows_per_second": 0.0,
        "eta_seconds": None,
        "waiting_for": None,
    },
}
VERIFIED = {
    "epoch": "9",
    "equal": True,
    "rows": 10,
    "expected_rows": 10,
    "digest": "0a",
    "expected_digest": "0a",
    "differences": [],
}


def problem(status: int, **members: object) -> httpx.Response:
    return httpx.Response(status, json={"type": "urn:x", "status": status, **members})


def result(tag: str, *rows: list[Any], session: dict[str, str] | None = None) -> dict[str, Any]:
    columns = [{"name": "a", "type": "bigint"}] if rows else []
    return {
        "tag": tag,
        "columns": columns,
        "rows": list(rows),
        "notices": [],
        "session": session or {},
        "truncated": False,
    }


def test_statements_run_in_turn_and_carry_the_session(command: Command, routes: Routes) -> None:
    routes.on("POST", "/v1/sql", result("SET", session={"background_ddl": "true"}), result("SELECT 1", [None]))
    ended = command("sql", "-c", "set background_ddl = true; select ';' -- not; two\n")
    assert ended.exit_code == 0, ended.output
    bodies = [body for _, _, body in routes.calls]
    assert bodies == [
        {"sql": "set background_ddl = true", "session": {}},
        {"sql": "select ';' -- not; two", "session": {"background_ddl": "true"}},
    ]
    assert "NULL" in ended.stdout
    assert ended.stdout.endswith("SELECT 1\n")


def test_what_a_demo_says_to_type_is_a_command(command: Command, routes: Routes) -> None:
    routes.on("POST", "/v1/sql", result("SELECT 1", ["x"]))
    query = "select status from big_orders where status = 'open'"
    _, *arguments = shlex.split(asking("http://service", query))
    ended = command(*arguments)
    assert ended.exit_code == 0, ended.output
    assert routes.calls == [("POST", "/v1/sql", {"sql": query, "session": {}})]


def test_a_refused_statement_is_marked_at_its_place_and_ends_the_script(command: Command, routes: Routes) -> None:
    routes.on("POST", "/v1/sql", problem(422, detail='column "nope" does not exist', position=18))
    ended = command("sql", given="select 1,\n       nope from t; select 2")
    assert ended.exit_code == 1
    assert len(routes.calls) == 1
    assert ended.stdout == ""
    assert ended.stderr.splitlines() == [
        'error: column "nope" does not exist',
        "       nope from t",
        "       ^",
    ]


def test_json_is_one_line_for_each_statement(command: Command, routes: Routes) -> None:
    routes.on("POST", "/v1/sql", result("SELECT 1", ["é"]))
    ended = command("sql", "--json", "-c", "select 1; select 2")
    assert [json.loads(line)["rows"] for line in ended.stdout.splitlines()] == [[["é"]], [["é"]]]


def test_a_wide_value_is_not_cut_in_a_pipe(command: Command, routes: Routes) -> None:
    routes.on("POST", "/v1/sql", result("SELECT 1", ["x" * 500]))
    assert "x" * 500 in command("sql", "-c", "select 1").stdout


@pytest.mark.parametrize(
    ("answer", "code", "said"),
    [
        (problem(404, detail="job 7 not found"), 1, "job 7 not found"),
        (problem(401, detail="send a token"), 1, "send a token"),
        (problem(503, detail="cluster under recovery[worker lost]"), 3, "cluster under recovery[worker lost]"),
        (httpx.Response(502, text="<html>"), 3, "the service answered 502"),
        (httpx.Response(500, json=["odd"]), 3, "the service answered 500"),
        (httpx.ConnectError("refused"), 3, "no service at http://service: refused"),
        (httpx.ReadError("gone"), 3, "no service at http://service: gone"),
    ],
)
def test_what_goes_wrong_has_one_message_and_a_code(
    command: Command, routes: Routes, answer: object, code: int, said: str
) -> None:
    routes.on("POST", "/v1/jobs/7/verify", answer)
    ended = command("verify", "7")
    assert (ended.exit_code, ended.stdout) == (code, "")
    assert ended.stderr == f"error: {said}\n"


@pytest.mark.parametrize("arguments", [("throttle", "7", "fast"), ("throttle", "7", "-1"), ("verify",), ("nope",)])
def test_a_wrong_use_is_told_without_a_call(command: Command, routes: Routes, arguments: tuple[str, ...]) -> None:
    assert command(*arguments).exit_code == 2
    assert routes.calls == []


@pytest.mark.parametrize(
    ("arguments", "call"),
    [
        (("pause",), ("POST", "/v1/mutations?wait=applied", {"type": "pause"})),
        (("resume",), ("POST", "/v1/mutations?wait=applied", {"type": "resume"})),
        (("pause", "7"), ("POST", "/v1/jobs/7/pause", None)),
        (("resume", "7"), ("POST", "/v1/jobs/7/resume", None)),
        (("throttle", "7", "100"), ("PATCH", "/v1/jobs/7", {"backfill_rate_limit": 100})),
        (("throttle", "7", "auto"), ("PATCH", "/v1/jobs/7", {"backfill_rate_limit": "auto"})),
        (("throttle", "7", "unlimited"), ("PATCH", "/v1/jobs/7", {"backfill_rate_limit": None})),
        (("throttle", "8", "0", "--fragment"), ("PATCH", "/v1/fragments/8", {"backfill_rate_limit": 0})),
    ],
)
def test_a_control_is_one_call_and_tells_its_epoch(
    command: Command, routes: Routes, arguments: tuple[str, ...], call: tuple[str, str, Any]
) -> None:
    routes.on(call[0], call[1].partition("?")[0], {"command": 1, "epoch": "42"})
    ended = command(*arguments)
    assert ended.exit_code == 0, ended.output
    assert routes.calls == [call]
    assert ended.stdout.endswith("at epoch 42\n")


def test_u6_a_job_is_rescaled(command: Command, routes: Routes) -> None:
    routes.on("PATCH", "/v1/jobs/7", {"command": 1, "epoch": "42"})
    assert command("rescale", "7", "4").stdout == "7 rescaled to 4 at epoch 42\n"
    command("rescale", "7", "adaptive", "--backfill")
    assert [body for _, _, body in routes.calls] == [{"parallelism": 4}, {"backfill_parallelism": "adaptive"}]


def test_u5_a_pause_without_effect_says_so(command: Command, routes: Routes) -> None:
    routes.on("POST", "/v1/jobs/7/pause", {"command": 1, "epoch": "42", "notice": "m has read its history"})
    ended = command("pause", "7")
    assert (ended.stdout, ended.stderr) == ("7 paused at epoch 42\n", "NOTICE: m has read its history\n")


def test_u7_a_stage_is_not_called_by_its_hidden_relation(command: Command, routes: Routes) -> None:
    waits = [{"fragment": 2, "upstream": "__top10_1", "waits_for": []}]
    routes.on("GET", "/v1/ddl-progress", [{**PROGRESS, "waiting": None, "waits": waits}], [])
    routes.on("GET", "/v1/jobs/7", {"job": JOB, "fragments": []})
    assert "[the result of stage 1 of top10 after the next barrier]" in command("watch").stdout
    scan = {**SCAN, "upstream": "__top10_1", "total": None, "auto": None}
    routes.on(
        "GET", "/v1/jobs/7", {"job": {**JOB, "waiting": None}, "fragments": [scan], "backfill_order": [], "engines": {}}
    )
    shown = command("job", "7").stdout
    assert "the result of stage 1 of top10" in shown
    assert "not known yet" in shown


def test_a_job_may_be_called_by_the_name_of_what_it_creates(command: Command, routes: Routes) -> None:
    routes.on("GET", "/v1/relations/a/b", {"job": 7})
    routes.on("POST", "/v1/jobs/7/cancel", {"cancelled": 7})
    ended = command("cancel", "a/b")
    assert ended.exit_code == 0, ended.output
    assert [path for _, path, _ in routes.calls] == ["/v1/relations/a%2Fb", "/v1/jobs/7/cancel"]


def test_a_verification_shows_both_digests_and_ends_by_its_result(command: Command, routes: Routes) -> None:
    different = {
        **VERIFIED,
        "equal": False,
        "expected_digest": "0b",
        "differences": [{"vnode": 3, "missing": [["1", None]], "extra": [], "unequal": [["2", "x"]]}],
        "keys_differing": 20000,
    }
    routes.on("POST", "/v1/jobs/7/verify", VERIFIED, different)
    equal = command("verify", "7")
    assert equal.exit_code == 0
    assert "equal at epoch 9" in equal.stdout
    differs = command("verify", "7")
    assert differs.exit_code == 4
    assert "digest 0a" in differs.stdout
    assert "digest 0b" in differs.stdout
    assert "20,000 keys" in differs.stdout
    assert "vnode 3: missing (1, NULL)" in differs.stdout
    assert "vnode 3: unequal (2, x)" in differs.stdout


def test_a_verification_by_the_store_shows_the_rows(command: Command, routes: Routes) -> None:
    routes.on("POST", "/v1/jobs/7/verify", {**VERIFIED, "equal": False, "rows_missing": ["(1,a)"]})
    found = command("verify", "7", "--engine", "store")
    assert found.exit_code == 4
    assert "missing (1,a)" in found.stdout


def test_jobs_are_read_page_by_page(command: Command, routes: Routes) -> None:
    routes.on("GET", "/v1/jobs", {"items": [JOB], "next": "7"}, {"items": [{**JOB, "id": 8}], "next": None})
    ended = command("jobs", "--json")
    assert [job["id"] for job in json.loads(ended.stdout)] == [7, 8]
    assert [dict(httpx.URL(f"http://x{path}").params)["after"] for _, path, _ in routes.calls] == ["0", "7"]
    assert "state=Created" in routes.calls[0][1]
    routes.on("GET", "/v1/jobs", {"items": [JOB], "next": None})
    shown = command("jobs", "--all")
    assert "materialized view" in shown.stdout
    assert "state=" not in routes.calls[-1][1]


def test_watching_ends_with_the_last_job(command: Command, routes: Routes) -> None:
    waiting = {**PROGRESS, "progress": "60.00% (6/10)", "waiting_for": "paused", "eta_seconds": None}
    routes.on("GET", "/v1/ddl-progress", [PROGRESS], [PROGRESS], [waiting], [])
    routes.on("GET", "/v1/jobs/7", {"job": JOB, "fragments": []})
    ended = command("watch")
    assert ended.exit_code == 0, ended.output
    assert ended.stdout.splitlines() == [
        "m: 50.00% (5/10) 1,234 rows/s ETA 1:01",
        "m: 60.00% (6/10) 1,234 rows/s ETA - [paused]",
        "m: Created",
    ]


def test_watching_waits_until_what_was_created_can_be_read(command: Command, routes: Routes) -> None:
    routes.on("GET", "/v1/ddl-progress", [PROGRESS], [])
    unpublished = {"job": {**JOB, "state": "Creating"}, "fragments": []}
    routes.on("GET", "/v1/jobs/7", unpublished, unpublished, {"job": JOB, "fragments": []})
    ended = command("watch")
    assert ended.exit_code == 0, ended.output
    assert ended.stdout.splitlines()[1:] == ["m: Created"]


def test_watching_says_what_waits_for_what(command: Command, routes: Routes) -> None:
    waits = [{"fragment": 2, "upstream": "b", "waits_for": ["a", "c"]}]
    moving = {**PROGRESS, "waiting": None, "waits": waits}
    paused = {**moving, "waiting": {"reason": "pause", "text": "every backfill is paused"}, "waiting_for": "paused"}
    ordered = {**moving, "waiting": {"reason": "backfill_order", "text": "b after a, c"}}
    routes.on("GET", "/v1/ddl-progress", [moving], [paused], [ordered], [])
    routes.on("GET", "/v1/jobs/7", {"job": JOB, "fragments": []})
    lines = command("watch").stdout.splitlines()
    assert [line.partition("1:01 ")[2] for line in lines[:3]] == [
        "[b after a, c]",
        "[every backfill is paused] [b after a, c]",
        "[b after a, c]",
    ]


def test_bars_say_in_brackets_what_lines_do(command: Command, routes: Routes, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal: brackets are no markup."""
    drawn = io.StringIO()
    terminal = Console(file=drawn, force_terminal=True, color_system=None, width=200)
    monkeypatch.setattr(output, "is_terminal", Mock(return_value=True))
    monkeypatch.setattr(bars, "console", Mock(return_value=terminal))
    routes.on("GET", "/v1/ddl-progress", [{**PROGRESS, "waiting_for": "paused"}], [])
    routes.on("GET", "/v1/jobs/7", {"job": JOB, "fragments": []})
    assert command("watch").exit_code == 0
    assert "[paused]" in drawn.getvalue()


SCAN = {
    "id": 3,
    "scan_type": "ARRANGEMENT_BACKFILL",
    "upstream": "b",
    "rows": 5,
    "total": 10,
    "actors": [{}, {}],
    "positions": {"not_started": 1, "in_progress": 2, "completed": 5, "rows": 5},
    "rate_limit": 700,
    "auto": {"phase": "even steps", "move": "lowered", "reason": "the query gave false"},
    "finished": False,
    "waiting": False,
    "waits_for": [],
}


def test_a_job_is_shown_with_its_order_and_why_it_waits(command: Command, routes: Routes) -> None:
    waiting = {
        "reason": "barrier",
        "text": "worker w has not collected barrier 9: actors 4, 5",
        "since": "2026-01-01T00:00:00Z",
        "until": "2026-01-01T00:05:00Z",
    }
    shown = {
        "job": {**JOB, "state": "Creating", "waiting": waiting},
        "fragments": [
            {**SCAN, "id": 2, "upstream": "a", "finished": True, "auto": None, "rate_limit": None},
            SCAN,
            {**SCAN, "id": 4, "upstream": "c", "waiting": True, "waits_for": ["b"], "auto": None, "rate_limit": 0},
            {**SCAN, "id": 5, "scan_type": None, "auto": None},
        ],
        "backfill_order": [["a", "b"], ["b", "c"]],
        "engines": {"spark": {"jobs": 12, "rows": 3_000_000}, "store": {"jobs": 0, "rows": 0}},
    }
    routes.on("GET", "/v1/jobs/7", shown)
    lines = [" ".join(line.split()) for line in command("job", "7").stdout.splitlines()]
    assert lines[1:5] == [
        f"waits: {waiting['text']}, since 2026-01-01T00:00:00Z, until 2026-01-01T00:05:00Z",
        "read by: spark 3,000,000 rows in 12 jobs",
        "order: a -> b, b -> c",
        "auto: b lowered: the query gave false",
    ]
    cells = [[cell.strip() for cell in line.split("│")] for line in lines if "│" in line]
    assert [row[-2:] for row in cells] == [
        ["unlimited", "finished"],
        ["700 (auto, even steps)", "reading"],
        ["0", "after b"],
    ]
    assert json.loads(command("job", "7", "--json").stdout) == shown


def test_watching_a_job_that_fails_says_so(command: Command, routes: Routes) -> None:
    routes.on("GET", "/v1/ddl-progress", [PROGRESS, {**PROGRESS, "ddl_id": 9}], [{**PROGRESS, "ddl_id": 9}])
    routes.on("GET", "/v1/jobs/7", {"job": {**JOB, "state": "Failed", "error": "bad row"}, "fragments": []})
    ended = command("watch", "7")
    assert ended.exit_code == 1
    assert ended.stdout.splitlines()[-1] == "m: Failed: bad row"


def test_watching_nothing_is_done_at_once(command: Command, routes: Routes) -> None:
    routes.on("GET", "/v1/ddl-progress", [])
    ended = command("watch", "--json")
    assert (ended.exit_code, ended.stdout) == (0, "[]\n")


def test_the_token_comes_from_the_environment(
    command: Command, routes: Routes, tokens: list[str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEFILL_API_TOKEN", "secret")
    routes.on("GET", "/v1/ddl-progress", [])
    command("watch")
    assert tokens == ["secret"]
    assert "secret" not in command("watch", "--help").stdout


def test_migrate_needs_a_database(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TIDEFILL_DATABASE_URL", raising=False)
    assert command("migrate").exit_code == 2


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("nonsense", 2),
        ("mysql://u:secret@h/d", 2),
        ("postgresql://u:secret@127.0.0.1:port/d", 2),
        ("postgresql://u:secret@127.0.0.1:1/d", 3),
    ],
)
def test_migrate_says_what_is_wrong_with_its_database(command: Command, url: str, code: int) -> None:
    ended = command("migrate", "--database-url", url)
    assert ended.exit_code == code
    assert "Traceback" not in ended.output
    assert "secret" not in ended.output


def test_serve_refuses_settings_that_cannot_be(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEFILL_PORT", "many")
    ended = command("serve")
    assert ended.exit_code == 2
    assert "TIDEFILL_PORT" in ended.stderr
    monkeypatch.delenv("TIDEFILL_PORT")
    monkeypatch.setenv("TIDEFILL_ALLOWED_ORIGINS", "https://grafana.example")
    ended = command("serve")
    assert ended.exit_code == 2
    assert "allowed_origins" in ended.stderr
    monkeypatch.delenv("TIDEFILL_ALLOWED_ORIGINS")
    # Logging is set up once per process, onto a stream that here ends with the command.
    monkeypatch.setattr(bootstrap, "configure", Mock())
    monkeypatch.delenv("TIDEFILL_API_TOKEN", raising=False)
    ended = command("serve", "--host", "0.0.0.0")
    assert ended.exit_code == 2
    assert "TIDEFILL_API_TOKEN" in ended.stderr
