"""`tidefill open` prints the address of the pages, and leaves it to the system to open it."""

import pytest
import typer
from typer.testing import CliRunner

from service.cli.app import app


def test_the_pages_are_opened_and_their_address_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr(typer, "launch", opened.append)
    ended = CliRunner().invoke(app, ["open"], env={"TIDEFILL_URL": "http://127.0.0.1:8701"})
    assert (ended.exit_code, ended.stdout) == (0, "http://127.0.0.1:8701\n")
    assert opened == ["http://127.0.0.1:8701"]
