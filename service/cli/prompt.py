"""The prompt of `tidefill sql`: line editing, history, completion, and commands that begin with a backslash."""

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from service.cli.statements import is_complete

HELP: Final = """\
Type SQL and end a statement with a semicolon. Commands:
  \\d          list relations          \\d NAME   describe one
  \\dt \\dm     list tables, or materialized views
  \\x          show rows one value a line, or as a table again
  \\q          leave (also exit, quit, Ctrl-D)
  \\?          this help (also help)
SHOW JOBS lists running jobs; EXPLAIN CREATE .. shows the plan of a view; docs/sql.md describes the dialect."""
HELP_COMMAND: Final = "\\?"
_HISTORY: Final = Path("~/.tidefill_history")
_HISTORY_LINES: Final = 1000
_END: Final = "\x04"
"""The character that a terminal sends for Ctrl-D."""
_SECRET: Final = re.compile(r"\b(secret|password)\b", re.IGNORECASE)
_WORDS: Final = frozenset(
    {"ALTER", "CANCEL", "CASCADE", "CREATE", "DELETE", "DESCRIBE", "DROP", "EXISTS", "EXPLAIN", "FLUSH", "FROM"}
    | {"GROUP", "INSERT", "INTO", "JOBS", "KEY", "LIMIT", "MATERIALIZED", "ORDER", "PARAMETERS", "PRIMARY", "RECOVER"}
    | {"SECRET", "SELECT", "SET", "SHOW", "SOURCE", "SYSTEM", "TABLE", "UNION", "UPDATE", "VALUES", "VIEW", "WAIT"}
    | {"WHERE", "WITH"}
)


def typed(names: Callable[[], list[str]]) -> Iterator[str]:
    """Yield each complete statement or command that the user types, until the input ends. `names` returns the
    relations.
    """
    readline = _line_editing(names)
    lines: list[str] = []
    try:
        while (line := _line("      ... " if lines else "tidefill> ")) != _END:
            _forget_secret(readline, line or "")
            command = "" if line is None else line.strip().rstrip(";").strip()
            if _leaves(command, within=bool(lines)):
                return
            if line is None:
                lines.clear()
            elif not lines and (command.startswith("\\") or command == "help"):
                yield command
            elif lines or command:
                lines.append(line)
                if is_complete("\n".join(lines)):
                    yield "\n".join(lines)
                    lines.clear()
    finally:
        if readline is not None:
            _save(readline)


def _leaves(command: str, *, within: bool) -> bool:
    return command == "\\q" or (not within and command in {"exit", "quit"})


def _line(prompt: str) -> str | None:
    """Return the line that the user types; None after Ctrl-C, `_END` at the end of the input."""
    try:
        return input(prompt)
    except KeyboardInterrupt:
        sys.stdout.write("\n")
        return None
    except EOFError:
        sys.stdout.write("\n")
        return _END


def _save(readline: Any) -> None:
    with suppress(OSError):
        readline.set_history_length(_HISTORY_LINES)
        readline.write_history_file(_HISTORY.expanduser())


def _line_editing(names: Callable[[], list[str]]) -> Any:
    """Enable editing, history and completion. Return the readline module, or None where the platform has none."""
    try:
        readline: Any = import_module("readline")
    except ImportError:
        return None
    with suppress(OSError):
        readline.read_history_file(_HISTORY.expanduser())
    found: list[str] = []

    def complete(text: str, state: int) -> str | None:
        if state == 0:
            found[:] = candidates(text, names())
        return found[state] if state < len(found) else None

    readline.set_completer(complete)
    readline.parse_and_bind("tab: complete")
    return readline


def candidates(text: str, names: list[str]) -> list[str]:
    """Return the keywords and relations that begin with `text`. Keywords have the case of `text`."""
    keywords = [word if text.isupper() else word.lower() for word in _WORDS if word.startswith(text.upper())]
    return sorted(name for name in names if name.startswith(text)) + sorted(keywords)


def _forget_secret(readline: Any, line: str) -> None:
    """Remove a line that contains a secret from the history."""
    if readline is not None and _SECRET.search(line) and (length := readline.get_current_history_length()) > 0:
        readline.remove_history_item(length - 1)
