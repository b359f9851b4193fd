"""Show the progress of a long call: a bar for a CREATE, otherwise the elapsed time and the reason of the wait.

The call runs on a thread of its own. Without a terminal, changes are printed as lines on standard error.
"""

import re
import sys
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from dataclasses import dataclass
from functools import partial
from itertools import count
from threading import Thread
from typing import Any, Final

import typer

from service.cli import output, watching
from service.cli.client import ExitCode, RefusedError, Service, UnreachableError

Look = Callable[[], watching.Progress | None]
SILENT_SECONDS: Final = 2.0
"""A call that takes less shows only its result."""
_CREATED: Final = re.compile(
    r"""(?:\s|--[^\n]*\n|/\*.*?\*/)*create\s+(?:materialized\s+view|table)\s+(?:if\s+not\s+exists\s+)?
    (?:public\s*\.\s*)?(?:"(?P<quoted>(?:[^"]|"")+)"|(?P<plain>\w+))""",
    re.IGNORECASE | re.VERBOSE | re.DOTALL,
)

_INSERTED: Final = re.compile(
    r"""(?:\s|--[^\n]*\n|/\*.*?\*/)*insert\s+into\s+
    (?:public\s*\.\s*)?(?:"(?P<quoted>(?:[^"]|"")+)"|(?P<plain>\w+))""",
    re.IGNORECASE | re.VERBOSE | re.DOTALL,
)


def inserted_into(statement: str) -> str | None:
    """Return the name of the table into which a statement inserts; None for other statements."""
    return _name(_INSERTED.match(statement))


def created_by(statement: str) -> str | None:
    """Return the name of the table or materialized view that a statement creates; None for other statements."""
    return _name(_CREATED.match(statement))


def _name(found: re.Match[str] | None) -> str | None:
    if found is None:
        return None
    return found["quoted"].replace('""', '"') if found["quoted"] else found["plain"].lower()


@dataclass(frozen=True, slots=True)
class Live:
    """Runs calls of one service and shows their progress."""

    service: Service
    quiet: bool = False

    def run(self, call: Callable[[], Any], *, title: str, creates: str | None = None, look: Look | None = None) -> Any:
        """Return the result of `call`, or None when the user leaves a CREATE to the background. `look` returns the
        progress of the call itself, None while there is none.

        Raises the errors of `call`, and KeyboardInterrupt at Ctrl-C.
        """
        future = _start(call)
        if look is None and creates is not None:
            look = partial(self._creation, creates)
        while True:
            try:
                return self._follow(future, title, look)
            except KeyboardInterrupt:
                if creates is None:
                    raise
                if self._leaves(creates):
                    return None

    def _follow(self, future: "Future[Any]", title: str, look: Look | None) -> Any:
        if self.quiet:
            return future.result()
        try:
            return future.result(SILENT_SECONDS)
        except NotYet:
            if future.done():
                raise
        with watching.progress_view(errors=True) as view:
            for turn in count():
                view.show([self._state(title, look, SILENT_SECONDS + turn * watching.INTERVAL_SECONDS)])
                try:
                    return future.result(watching.INTERVAL_SECONDS)
                except NotYet:
                    if future.done():
                        raise
        raise AssertionError("a call either ends or is waited for")

    def _state(self, title: str, look: Look | None, seconds: float) -> watching.Progress:
        """Return the call's own progress, or else the title with the checks that fail."""
        try:
            found = None if look is None else look()
            return found or watching.elapsed(title, seconds, self.service.not_ready())
        except (RefusedError, UnreachableError) as error:
            return watching.elapsed(title, seconds, str(error))

    def _creation(self, creates: str) -> watching.Progress | None:
        jobs = self.service.items("/v1/ddl-progress")
        return next((job for job in jobs if job["name"] == creates), None)

    def rows_of(self, table: str) -> watching.Progress | None:
        """Return how many of the rows that a statement puts into `table` are published, None before they are."""
        writing = [one for one in self.service.items("/v1/staged-statements") if one["relation"] == table]
        return watching.publishing(writing[-1]) if writing else None

    def _leaves(self, creates: str) -> bool:
        """Ask the user how to proceed with a CREATE after Ctrl-C. Return whether to leave it to the background.

        Cancelling it ends the command.
        """
        answer = "b"
        if sys.stdin.isatty():
            question = f"{creates} is being created. Go on in the [b]ackground, [c]ancel it, or [w]ait on?"
            answer = typer.prompt(question, default="b", err=True).strip().lower()[:1]
        if answer == "w":
            return False
        if answer == "c":
            self.service.post(f"/v1/jobs/{self.service.job_called(creates)}/cancel")
            output.note(f"{creates} cancelled")
            raise typer.Exit(ExitCode.INTERRUPTED)
        output.note(f"{creates} goes on in the background: tidefill watch {creates}, tidefill cancel {creates}")
        return True


def _start(call: Callable[[], Any]) -> "Future[Any]":
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:  # noqa: BLE001 - raised again by the future's reader
            future.set_exception(error)

    # A daemon thread, so that a user who leaves does not wait for the answer.
    Thread(target=run, daemon=True).start()
    return future
