"""Run a user's SQL: one statement a call, with the session map kept between the calls."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx
import typer

from service.cli import output, prompt
from service.cli.client import ExitCode, RefusedError, Service
from service.cli.live import Live, created_by
from service.cli.statements import split


@dataclass(slots=True)
class StatementRunner:
    """Runs statements and prints their results. `session` is the session map of the last answer."""

    service: Service
    as_json: bool
    session: Mapping[str, str] = field(default_factory=dict[str, str])
    expanded: bool = False
    """Whether rows are shown with one value a line."""

    def script(self, text: str) -> None:
        """Run every statement of `text`, and stop at the first failure."""
        for statement in split(text):
            try:
                self._run(statement)
            except RefusedError as error:
                output.complain(error.problem, sql=statement)
                raise typer.Exit(error.exit_code) from None

    def prompt(self) -> None:
        """Read statements until the input ends or the user leaves. A failed statement does not end the session."""
        output.say(f"tidefill at {self.service.http.base_url}. End a statement with a semicolon; \\? for help.")
        for text in prompt.typed(self._names):
            for statement in [text] if text.startswith("\\") or text == "help" else split(text):
                try:
                    self._typed(statement)
                except RefusedError as error:
                    output.complain(error.problem, sql=statement)
                except httpx.TransportError as error:
                    output.complain({"detail": f"no answer: {error}"})
                except KeyboardInterrupt:
                    output.note("no longer waited for; the statement may still be carried out")

    def _typed(self, text: str) -> None:
        command, _, rest = text.partition(" ")
        match command:
            case "\\?" | "help":
                output.say(prompt.HELP)
            case "\\x":
                self.expanded = not self.expanded
                output.say(f"expanded display is {'on' if self.expanded else 'off'}")
            case "\\d" if rest.strip():
                self._run(f"DESCRIBE {rest.strip()}")
            case "\\d":
                self._relations()
            case _ if command.startswith("\\"):
                output.complain({"detail": f"unknown command {command}: \\? lists the commands"})
            case _:
                self._run(text)

    def _run(self, statement: str) -> None:
        body = {"sql": statement, "session": dict(self.session)}
        result = Live(self.service, quiet=self.as_json).run(
            lambda: self.service.post("/v1/sql", body),
            title=statement.split(maxsplit=1)[0].upper(),
            creates=created_by(statement),
        )
        if result is None:
            return
        self.session = result["session"]
        if self.as_json:
            output.say_json(result)
        else:
            self._show(result)

    def _show(self, result: Mapping[str, Any]) -> None:
        for notice in result["notices"]:
            output.note(f"NOTICE: {notice}")
        if result["columns"]:
            columns = [(column["name"], column["type"]) for column in result["columns"]]
            show = output.expanded if self.expanded else output.table
            output.console().print(show(columns, result["rows"]))
        output.say(result["tag"])
        if result["truncated"]:
            output.note(f"NOTICE: only the first {len(result['rows']):,} rows are shown; SET row_limit = N shows more")

    def _relations(self) -> None:
        found = list(self.service.pages("/v1/relations"))
        if not found:
            output.say("no relations: CREATE TABLE makes one")
            return
        output.console().print(
            output.table([("Name", "text"), ("Kind", "text")], ((one["name"], one["kind"]) for one in found))
        )

    def _names(self) -> list[str]:
        try:
            return [str(one["name"]) for one in self.service.pages("/v1/relations")]
        except (RefusedError, httpx.TransportError):
            return []


def exit_code_of(verified: Mapping[str, Any]) -> ExitCode:
    """Return the exit code for a verification."""
    return ExitCode.OK if verified["equal"] else ExitCode.DIFFERS
