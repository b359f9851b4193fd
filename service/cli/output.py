"""Print results on standard output and complaints on standard error. Nothing is cut off in a pipe."""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from rich.console import Console, Group
from rich.markup import escape
from rich.table import Table
from rich.text import Text

_WIDE: Final = 100_000
"""The width of a pipe. Tables take the width they need, and are never wrapped for a screen."""
_NUMBERS: Final = frozenset({"smallint", "integer", "bigint", "real", "double precision", "numeric"})


def console(*, errors: bool = False) -> Console:
    """Return a console on the present standard output or standard error."""
    stream = sys.stderr if errors else sys.stdout
    return Console(file=stream, width=None if stream.isatty() else _WIDE, highlight=False, soft_wrap=False)


def say(text: str) -> None:
    """Print a line of plain text."""
    console().print(Text(text), no_wrap=not sys.stdout.isatty())


def note(text: str) -> None:
    """Print a line of plain text on standard error."""
    console(errors=True).print(Text(text), no_wrap=not sys.stderr.isatty())


def say_json(value: object) -> None:
    """Print a value as one line of JSON."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def complain(problem: Mapping[str, Any], *, sql: str | None = None) -> None:
    """Print an error. If its position in the statement is known, mark it under the line."""
    err = console(errors=True)
    err.print(f"[red]error:[/] {escape(str(problem.get('detail') or 'unknown'))}")
    position = problem.get("position")
    if sql is not None and isinstance(position, int):
        line, mark = marked(sql, position)
        err.print(Text(line))
        err.print(Text(mark, style="red"))
    for fault in (problem.get("errors") or ())[1:]:
        err.print(Text(f"       {fault.get('pointer', '')}: {fault.get('detail', '')}"))


def marked(sql: str, position: int) -> tuple[str, str]:
    """Return the line of `sql` with the 1-based position, and a line with a caret under it."""
    at = min(max(position - 1, 0), len(sql))
    start = sql.rfind("\n", 0, at) + 1
    end = sql.find("\n", at)
    line = sql[start : end if end >= 0 else len(sql)]
    # Tabs stay tabs, so that the caret is under the position on every screen.
    return line, "".join("\t" if char == "\t" else " " for char in line[: at - start]) + "^"


def table(columns: Sequence[tuple[str, str]], rows: Iterable[Sequence[object]]) -> Table:
    """Return a table of (name, Postgres type) columns. Numbers are aligned right, and NULL is dim."""
    drawn = Table(show_edge=False, pad_edge=False, header_style="bold")
    for name, kind in columns:
        drawn.add_column(Text(name), justify="right" if kind in _NUMBERS else "left", overflow="fold")
    for row in rows:
        drawn.add_row(*(cell(value) for value in row))
    return drawn


def expanded(columns: Sequence[tuple[str, str]], rows: Iterable[Sequence[object]]) -> Group:
    """Return rows with one value a line, like psql's expanded display."""
    width = max(len(name) for name, _ in columns)
    lines: list[Text] = []
    for number, row in enumerate(rows, start=1):
        lines.append(Text(f"-[ row {number} ]", style="bold"))
        lines += [
            Text(f"{name.ljust(width)} | ").append_text(cell(value))
            for (name, _), value in zip(columns, row, strict=True)
        ]
    return Group(*lines)


def cell(value: object) -> Text:
    """Return a value as text."""
    if value is None:
        return Text("NULL", style="dim")
    if isinstance(value, bool):
        return Text("t" if value else "f")
    if isinstance(value, dict | list):
        return Text(json.dumps(value, ensure_ascii=False))
    return Text(str(value))


def span(seconds: float | None) -> str:
    """Return a duration as text; a dash if it is unknown."""
    if seconds is None:
        return "-"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def speed(rows_per_second: float) -> str:
    """Return a rate as text."""
    return f"{rows_per_second:,.0f} rows/s"
