"""Running SQL for a person: one statement a call, the session map kept between them."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import httpx
import typer

from service.cli import output
from service.cli.client import ExitCode, RefusedError, Service
from service.cli.statements import is_complete, split


@dataclass(slots=True)
class StatementRunner:
    """Runs statements and prints what they give. `session` is what the last answer said it is."""

    service: Service
    as_json: bool
    session: Mapping[str, str] = field(default_factory=dict[str, str])

    def script(self, text: str) -> None:
        """Run every statement of `text`, and stop at the first that fails."""
        for statement in split(text):
            try:
                self._run(statement)
            except RefusedError as error:
                output.complain(error.problem, sql=statement)
                raise typer.Exit(error.exit_code) from None

    def prompt(self) -> None:
        """Read statements until the input ends or `quit` is typed; a failed one does not end the session."""
        with suppress(ImportError):
            # Line editing and history, where the platform has them: importing it is what turns them on.
            import_module("readline")
        for text in _typed():
            for statement in split(text):
                try:
                    self._run(statement)
                except RefusedError as error:
                    output.complain(error.problem, sql=statement)
                except httpx.TransportError as error:
                    output.complain({"detail": f"no answer: {error}"})

    def _run(self, statement: str) -> None:
        result = self.service.post("/v1/sql", {"sql": statement, "session": dict(self.session)})
        self.session = result["session"]
        if self.as_json:
            output.say_json(result)
        else:
            _show(result)


def _show(result: Mapping[str, Any]) -> None:
    for notice in result["notices"]:
        output.console(errors=True).print(f"NOTICE: {notice}", markup=False)
    if result["columns"]:
        columns = [(column["name"], column["type"]) for column in result["columns"]]
        output.console().print(output.table(columns, result["rows"]))
    output.say(result["tag"])
    if result["truncated"]:
        output.console(errors=True).print("NOTICE: the row cap (row_limit) cut the rows", markup=False)


def _typed() -> Iterator[str]:
    """Yield what is typed, each time it ends with a semicolon."""
    lines: list[str] = []
    while True:
        try:
            line = input("tidefill> " if not lines else "      ... ")
        except KeyboardInterrupt:
            lines.clear()
            sys.stdout.write("\n")
            continue
        except EOFError:
            sys.stdout.write("\n")
            return
        if not lines and line.strip() in {"\\q", "exit", "quit"}:
            return
        lines.append(line)
        if is_complete("\n".join(lines)):
            yield "\n".join(lines)
            lines.clear()


def exit_code_of(verified: Mapping[str, Any]) -> ExitCode:
    """Return how a verification ends the command."""
    return ExitCode.OK if verified["equal"] else ExitCode.DIFFERS
