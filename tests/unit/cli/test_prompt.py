"""The prompt of `tidefill sql`."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from service.cli import prompt
from service.cli.prompt import candidates, typed


@pytest.fixture(autouse=True)
def history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(prompt, "_HISTORY", tmp_path / "history")
    return tmp_path / "history"


def lines(monkeypatch: pytest.MonkeyPatch, *given: str | BaseException) -> None:
    turns: Iterator[str | BaseException] = iter([*given, EOFError()])

    def read(_prompt: str) -> str:
        turn = next(turns)
        if isinstance(turn, BaseException):
            raise turn
        return turn

    monkeypatch.setattr("builtins.input", read)


def test_a_statement_ends_with_a_semicolon(monkeypatch: pytest.MonkeyPatch) -> None:
    lines(monkeypatch, "", "select 1", "  + 2;", " ", "select 3;")
    assert list(typed(list)) == ["select 1\n  + 2;", "select 3;"]


@pytest.mark.parametrize("command", ["\\d", "\\d t", "\\x", "help", "\\?;"])
def test_a_command_needs_none(monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    lines(monkeypatch, command)
    assert list(typed(list)) == [command.rstrip(";")]


@pytest.mark.parametrize("last", ["exit", "quit;", "\\q"])
def test_leaving(monkeypatch: pytest.MonkeyPatch, last: str) -> None:
    lines(monkeypatch, last, "select 1;")
    assert list(typed(list)) == []


def test_u7_leaving_in_the_middle_of_a_statement(monkeypatch: pytest.MonkeyPatch) -> None:
    lines(monkeypatch, "select 1", "\\q", "select 2;")
    assert list(typed(list)) == []


def test_ctrl_c_clears_what_was_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    lines(monkeypatch, "select", KeyboardInterrupt(), "select 1;")
    assert list(typed(list)) == ["select 1;"]


def test_keywords_and_relations_are_completed() -> None:
    assert candidates("or", ["orders", "t"]) == ["orders", "order"]
    assert candidates("OR", ["orders"]) == ["ORDER"]
