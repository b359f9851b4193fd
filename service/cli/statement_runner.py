"""Run a user's SQL: one statement a call, with the session map kept between the calls."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import typer

from service.cli import output, prompt
from service.cli.client import ExitCode, RefusedError, Service, UnreachableError
from service.cli.live import Live, created_by, inserted_into
from service.cli.statements import split

_KINDS: Final = {"\\dt": "table", "\\dm": "materialized view", "\\dv": "view"}
"""The rows of commands that list one kind of relation."""


@dataclass(slots=True)
class StatementRunner:
    """Runs statements and prints their results. `session` is the session map of the last answer."""

    service: Service
    as_json: bool
    session: Mapping[str, str] = field(default_factory=dict[str, str])
    expanded: bool = False
    """Whether rows are shown with one value a line."""

    def script(self, text: str) -> None:
        """Run every statement and command of `text`, and stop at the first failure."""
        for statement in split(text):
            if statement == "\\q":
                return
            try:
                done = self._typed(statement)
            except RefusedError as error:
                output.complain(error.problem, sql=statement, as_json=self.as_json)
                raise typer.Exit(error.exit_code) from None
            if not done:
                raise typer.Exit(ExitCode.INTERRUPTED)

    def prompt(self) -> None:
        """Read statements until the input ends or the user leaves. A failed statement does not end the session."""
        output.say(f"tidefill at {self.service.http.base_url}. End a statement with a semicolon; \\? for help.")
        for text in prompt.typed(self._names):
            for statement in [prompt.HELP_COMMAND] if text == "help" else split(text):
                try:
                    self._typed(statement)
                except RefusedError as error:
                    output.complain(error.problem, sql=statement)
                except UnreachableError as error:
                    output.complain({"detail": f"no answer: {error}"})
                except KeyboardInterrupt:
                    output.note("no longer waited for; the statement may still be carried out")

    def _typed(self, text: str) -> bool:
        """Run a statement or a command. Return whether it was done; False if it was left to the background.

        Raises RefusedError.
        """
        if not text.startswith("\\"):
            return self._run(text)
        command, _, rest = text.partition(" ")
        match command, rest.strip():
            case "\\?", _:
                output.say(prompt.HELP)
            case "\\x", _:
                self.expanded = not self.expanded
                output.note(f"expanded display is {'on' if self.expanded else 'off'}")
            case "\\d", name if name:
                return self._run(f"DESCRIBE {name}")
            case (("\\d" | "\\dt" | "\\dm" | "\\dv"), ""):
                self._relations(_KINDS.get(command))
            case _:
                raise RefusedError({"detail": f"unknown command {text}: \\? lists the commands"}, 400)
        return True

    def _run(self, statement: str) -> bool:
        body = {"sql": statement, "session": dict(self.session)}
        live, table = Live(self.service, quiet=self.as_json), inserted_into(statement)
        result = live.run(
            lambda: self.service.post("/v1/sql", body),
            title=statement.split(maxsplit=1)[0].upper(),
            creates=created_by(statement),
            look=None if table is None else partial(live.rows_of, table),
        )
        if result is None:
            return False
        self.session = result["session"]
        if self.as_json:
            output.say_json(result)
        else:
            self._show(result)
        return True

    def _show(self, result: Mapping[str, Any]) -> None:
        for notice in result["notices"]:
            output.note(f"NOTICE: {notice}")
        if result["columns"]:
            columns = [(column["name"], column["type"]) for column in result["columns"]]
            output.show_rows(columns, result["rows"], one_value_a_line=self.expanded)
        output.say(result["tag"])
        if result["truncated"]:
            output.note(f"NOTICE: only the first {len(result['rows']):,} rows are shown; SET row_limit = N shows more")

    def _relations(self, kind: str | None) -> None:
        found = [one for one in self.service.pages("/v1/relations") if kind in {None, one["kind"]}]
        if self.as_json:
            output.say_json(found)
        elif found:
            output.show_rows([("Name", "text"), ("Kind", "text")], ((one["name"], one["kind"]) for one in found))
        else:
            output.say(f"no {kind or 'relation'}s: CREATE TABLE and CREATE MATERIALIZED VIEW make one")

    def _names(self) -> list[str]:
        try:
            return [str(one["name"]) for one in self.service.pages("/v1/relations")]
        except (RefusedError, UnreachableError):
            return []


def exit_code_of(verified: Mapping[str, Any]) -> ExitCode:
    """Return the exit code for a verification."""
    return ExitCode.OK if verified["equal"] else ExitCode.DIFFERS
