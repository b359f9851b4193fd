"""`tidefill token` and `tidefill audit`."""

import json

import httpx
import pytest

from service.cli.client import ExitCode
from tests.support.canned_service import Command, Routes

TOKEN = {
    "id": 7,
    "name": "ci",
    "role": "operator",
    "created_by": "TIDEFILL_API_TOKEN",
    "created_at": "2026-01-02T03:04:05Z",
    "expires_at": None,
    "last_used_at": None,
    "revoked_at": None,
}
ENTRY = {
    "id": 3,
    "at": "2026-01-02T03:04:05Z",
    "actor": "token 7 (ci)",
    "role": "operator",
    "method": "POST",
    "route": "/v1/jobs/{job}/pause",
    "statement": None,
    "target": "m",
    "outcome": "accepted",
    "request_id": None,
    "trace_id": None,
}


def page(*items: object, following: str | None = None) -> object:
    return {"items": list(items), "next": following}


def test_a_token_is_made_and_printed_alone(command: Command, routes: Routes) -> None:
    routes.on("POST", "/v1/tokens", {"id": 7, "name": "ci", "role": "operator", "expires_at": None, "text": "tdf_7_x"})
    ended = command("token", "create", "ci", "--role", "operator", "--expires", "90d")
    assert ended.stdout == "tdf_7_x\n", "a script takes the output as it is"
    assert routes.calls == [("POST", "/v1/tokens", {"name": "ci", "role": "operator", "expires_in_seconds": 7_776_000})]


@pytest.mark.parametrize("expires", ["90", "d", "0d", "-1d", "1y", "1.5d"])
def test_a_time_without_a_unit_is_refused(command: Command, routes: Routes, expires: str) -> None:
    ended = command("token", "create", "ci", f"--expires={expires}")
    assert ended.exit_code == ExitCode.USAGE
    assert routes.calls == []


def test_tokens_are_listed(command: Command, routes: Routes) -> None:
    routes.on("GET", "/v1/tokens", page(TOKEN))
    shown = command("token", "list").stdout
    assert "ci" in shown
    assert "operator" in shown
    routes.on("GET", "/v1/tokens", page())
    assert command("token", "list").stdout.startswith("no tokens")


def test_a_token_is_revoked_by_id_or_by_name(command: Command, routes: Routes) -> None:
    old = {**TOKEN, "id": 5, "revoked_at": "2026-01-01T00:00:00Z"}
    routes.on("GET", "/v1/tokens", page(old, TOKEN))
    routes.on("DELETE", "/v1/tokens/7", TOKEN)
    assert command("token", "revoke", "ci").stdout == "ci revoked\n"
    assert command("token", "revoke", "7").stdout == "ci revoked\n"
    assert [call[:2] for call in routes.calls if call[0] == "DELETE"] == [("DELETE", "/v1/tokens/7")] * 2
    assert command("token", "revoke", "other").exit_code == ExitCode.REFUSED


def test_the_audit_trail_is_shown_page_by_page(command: Command, routes: Routes) -> None:
    routes.on("GET", "/v1/audit", page(ENTRY, following="3"), page({**ENTRY, "id": 2, "actor": "http 127.0.0.1"}))
    shown = json.loads(command("audit", "--json", "--target", "m").stdout)
    assert [one["id"] for one in shown] == [3, 2]
    assert [call[1] for call in routes.calls] == ["/v1/audit?limit=50&target=m", "/v1/audit?before=3&limit=50&target=m"]
    routes.on("GET", "/v1/audit", page(ENTRY))
    assert "/v1/jobs/{job}/pause" in command("audit").stdout


def test_a_refusal_says_which_role_is_missing(command: Command, routes: Routes) -> None:
    detail = "this needs the role admin, and the caller has the role viewer"
    routes.on("GET", "/v1/tokens", httpx.Response(403, json={"detail": detail, "needs": "admin", "has": "viewer"}))
    ended = command("token", "list")
    assert ended.exit_code == ExitCode.REFUSED
    assert detail in ended.stderr
