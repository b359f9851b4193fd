"""Print results on standard output and complaints on standard error. Nothing is cut off in a pipe."""

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from service.cli import tables


def is_terminal(*, errors: bool = False) -> bool:
    """Whether standard output, or standard error, is a screen."""
    return (sys.stderr if errors else sys.stdout).isatty() and os.environ.get("TERM") != "dumb"


def say(text: str) -> None:
    """Print a line of plain text."""
    _print((tables.printable(text),))


def note(text: str) -> None:
    """Print a line of plain text on standard error."""
    _print((tables.printable(text),), errors=True)


def say_json(value: object, *, errors: bool = False) -> None:
    """Print a value as one line of JSON."""
    _print((json.dumps(value, ensure_ascii=False),), errors=errors)


def complain(problem: Mapping[str, Any], *, sql: str | None = None, as_json: bool = False) -> None:
    """Print an error. If its position in the statement is known, mark it under the line. JSON is the problem itself."""
    if as_json:
        say_json(problem, errors=True)
        return
    lines = [_red("error:") + f" {tables.printable(str(problem.get('detail') or 'unknown'))}"]
    position = problem.get("position")
    if sql is not None and isinstance(position, int):
        line, mark = marked(sql, position)
        lines += [line, _red(mark)]
    for fault in (problem.get("errors") or ())[1:]:
        lines.append(tables.printable(f"       {fault.get('pointer', '')}: {fault.get('detail', '')}"))
    _print(lines, errors=True)


def marked(sql: str, position: int) -> tuple[str, str]:
    """Return the line of `sql` with the 1-based position, and a line with a caret under it."""
    at = min(max(position - 1, 0), len(sql))
    start = sql.rfind("\n", 0, at) + 1
    end = sql.find("\n", at)
    line = sql[start : end if end >= 0 else len(sql)]
    # Tabs stay tabs, so that the caret is under the position on every screen.
    return line, "".join("\t" if char == "\t" else " " for char in line[: at - start]) + "^"


def show_rows(
    columns: Sequence[tables.Column], rows: Iterable[Sequence[object]], *, one_value_a_line: bool = False
) -> None:
    """Print rows as a table, or with one value a line. On a screen, a table is folded to its width."""
    layout = tables.expanded if one_value_a_line else tables.table
    screen = is_terminal()
    width = os.get_terminal_size(sys.stdout.fileno()).columns if screen else None
    _print(layout(columns, rows, width=width or None, colours=screen and "NO_COLOR" not in os.environ))


def _red(text: str) -> str:
    return f"\x1b[31m{text}\x1b[0m" if is_terminal(errors=True) and "NO_COLOR" not in os.environ else text


def _print(lines: Iterable[str], *, errors: bool = False) -> None:
    stream = sys.stderr if errors else sys.stdout
    stream.writelines(f"{line}\n" for line in lines)
    stream.flush()
