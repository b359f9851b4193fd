"""Which Java is chosen: tried with programs that answer like one, and with the wheel's real one."""

import subprocess
from pathlib import Path

import pytest

from service.embedded.java import find_java


def _java(home: Path, version: str, exit_code: int = 0) -> Path:
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(
        "#!/bin/sh\n"
        f"echo '    java.home = {home}' >&2\n"
        f"echo '    java.specification.version = {version}' >&2\n"
        f"exit {exit_code}\n"
    )
    program.chmod(0o755)
    return home


@pytest.mark.parametrize("version", ["17", "21"])
def test_java_home_comes_first(tmp_path: Path, version: str) -> None:
    chosen, other = _java(tmp_path / "chosen", version), _java(tmp_path / "other", "17")
    assert find_java({"JAVA_HOME": str(chosen), "PATH": str(other / "bin")}) == chosen


@pytest.mark.parametrize(("version", "exit_code"), [("11", 0), ("1.8", 0), ("25", 0), ("17", 1)])
def test_a_java_that_will_not_do_is_passed_over(tmp_path: Path, version: str, exit_code: int) -> None:
    unfit, fit = _java(tmp_path / "unfit", version, exit_code), _java(tmp_path / "fit", "17")
    assert find_java({"JAVA_HOME": str(unfit), "PATH": str(fit / "bin")}) == fit


def test_a_link_on_the_path_leads_to_the_real_home(tmp_path: Path) -> None:
    real = _java(tmp_path / "real", "17")
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "java").symlink_to(real / "bin" / "java")
    assert find_java({"PATH": str(tmp_path / "links")}) == real


def test_the_wheel_serves_a_machine_without_java(tmp_path: Path) -> None:
    home = find_java({"JAVA_HOME": str(tmp_path / "nowhere"), "PATH": str(tmp_path)})
    assert home is not None
    answer = subprocess.run([home / "bin" / "java", "-version"], check=True, capture_output=True, text=True)
    assert 'version "21' in answer.stderr


def test_no_java_at_all_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_wheel(name: str) -> None: ...

    monkeypatch.setattr("importlib.util.find_spec", no_wheel)
    assert find_java({"PATH": str(tmp_path)}) is None
