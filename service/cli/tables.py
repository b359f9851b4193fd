"""Lay out rows as lines of text: as a table, or with one value a line.

A result may have many thousand rows, so the widths are computed once, and no terminal library lays out each cell.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import Final
from unicodedata import combining, east_asian_width

_NUMBERS: Final = frozenset({"smallint", "integer", "bigint", "real", "double precision", "numeric"})
_BOLD: Final = "\x1b[1m{}\x1b[0m"
_DIM: Final = "\x1b[2m{}\x1b[0m"
_CONTROLS: Final = {code: f"\\x{code:02X}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}
"""Control characters, which could steer the user's terminal. psql shows them in the same way."""

Column = tuple[str, str]
"""A name and a Postgres type."""


def table(
    columns: Sequence[Column], rows: Iterable[Sequence[object]], *, width: int | None = None, colours: bool = False
) -> Iterator[str]:
    """Yield the lines of a table. Numbers are aligned right. With `width`, cells are folded so that lines fit."""
    names = [printable(name) for name, _ in columns]
    given = [*rows]
    cells = [[cell(value) for value in row] for row in given]
    widths = [max(map(_width, column)) for column in zip(names, *cells, strict=True)]
    if width is not None:
        widths = _fitted(widths, width - 3 * (len(widths) - 1))
    right = [kind in _NUMBERS for _, kind in columns]
    yield from _lines(names, [_BOLD if colours else "{}"] * len(names), widths, right, " ┃ ")
    yield "━╇━".join("━" * width for width in widths)
    for row, shown in zip(given, cells, strict=True):
        styles = [_DIM if colours and value is None else "{}" for value in row]
        yield from _lines(shown, styles, widths, right, " │ ")


def expanded(
    columns: Sequence[Column], rows: Iterable[Sequence[object]], *, width: int | None = None, colours: bool = False
) -> Iterator[str]:
    """Yield rows with one value a line, like psql's expanded display. The terminal folds long lines."""
    del width
    names = [printable(name) for name, _ in columns]
    longest = max(map(_width, names))
    for number, row in enumerate(rows, start=1):
        head = f"-[ row {number} ]"
        yield _BOLD.format(head) if colours else head
        for name, value in zip(names, row, strict=True):
            shown = _DIM.format("NULL") if value is None and colours else cell(value)
            yield f"{name}{' ' * (longest - _width(name))} | {shown}"


def cell(value: object) -> str:
    """Return a value as text, which may have several lines."""
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "t" if value else "f"
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False)
    return printable(str(value))


def printable(text: str) -> str:
    """Return the text with tabs expanded and control characters shown as their codes."""
    return text if text.isprintable() else text.expandtabs(8).translate(_CONTROLS)


def _width(text: str) -> int:
    """Return how many columns of a screen the widest line of a text takes."""
    return max(map(_line_width, text.split("\n"))) if "\n" in text else _line_width(text)


def _line_width(line: str) -> int:
    return len(line) if line.isascii() else sum(map(_char_width, line))


def _char_width(char: str) -> int:
    return 0 if combining(char) else 2 if east_asian_width(char) in "WF" else 1


def _fitted(widths: Sequence[int], available: int) -> list[int]:
    """Return the widths with the widest ones reduced to the same one, so that their sum is at most `available`."""
    rest, left = available, len(widths)
    for width in sorted(widths):
        if width * left > rest:
            return [min(one, max(rest // left, 2)) for one in widths]
        rest, left = rest - width, left - 1
    return list(widths)


def _lines(
    texts: Sequence[str], styles: Sequence[str], widths: Sequence[int], right: Sequence[bool], between: str
) -> Iterator[str]:
    """Yield the lines of one row."""
    folded = [_folded(text, width) for text, width in zip(texts, widths, strict=True)]
    for parts in zip_longest(*folded, fillvalue=""):
        shown: list[str] = []
        for part, style, width, to_right in zip(parts, styles, widths, right, strict=True):
            blanks = " " * (width - _line_width(part))
            text = style.format(part) if part else part
            shown.append(blanks + text if to_right else text + blanks)
        yield between.join(shown).rstrip()


def _folded(text: str, width: int) -> Sequence[str]:
    if "\n" not in text and _line_width(text) <= width:
        return (text,)
    return [part for line in text.split("\n") for part in _parts(line, width)]


def _parts(line: str, width: int) -> Iterator[str]:
    start = taken = 0
    for at, char in enumerate(line):
        taken += _char_width(char)
        if taken > width:
            yield line[start:at]
            start, taken = at, _char_width(char)
    yield line[start:]
