"""Preparing without a Java says so: workers start all the same, only later."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from service.cli import app
from service.launchers.preparation import prepare


def test_a_java_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=rf"No such file or directory: '{tmp_path}/bin/java'"):
        prepare(tmp_path)


def test_the_command_says_what_it_means(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(java_home: Path | None) -> None:
        del java_home
        raise OSError("this Java cannot lay out classes: no")

    monkeypatch.setattr("service.launchers.preparation.prepare", fails)
    said = CliRunner().invoke(app.app, ["prepare"])
    assert said.exit_code == 1
    assert "workers will take longer to start: this Java cannot lay out classes: no" in " ".join(said.output.split())
