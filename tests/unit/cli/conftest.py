"""The command line on a service of canned answers."""

import httpx
import pytest
from typer.testing import CliRunner, Result

from service.cli import client, live, watching
from service.cli.app import app
from tests.support.canned_service import Command, Routes


@pytest.fixture
def routes() -> Routes:
    return Routes()


@pytest.fixture
def tokens() -> list[str | None]:
    return []


@pytest.fixture
def command(routes: Routes, tokens: list[str | None], monkeypatch: pytest.MonkeyPatch) -> Command:
    def open_http(url: str, token: str | None) -> httpx.Client:
        tokens.append(token)
        return httpx.Client(base_url=url, transport=httpx.MockTransport(routes))

    def run(*arguments: str, given: str | None = None) -> Result:
        return CliRunner().invoke(app, list(arguments), input=given, env={"TIDEFILL_URL": "http://service"})

    monkeypatch.setattr(client, "open_http", open_http)
    monkeypatch.setattr(watching, "INTERVAL_SECONDS", 0)
    monkeypatch.setattr(live, "SILENT_SECONDS", 0.05)
    return run
