"""Read an INSERT .. VALUES of plain constants without a parser, because it may have thousands of them.

Parsing such a statement would delay every other caller. The printed text equals that of `rows.RowScope`. A statement
with other values, or with an error to report, is left to `rows.RowScope`.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from service.protocol.columns import Column
from service.sql.text.tokens import UNREADABLE

_SPACE: Final = r"[ \t\r\n\f\v]*+"
_CONSTANT: Final = r"-?[0-9]++(?:\.[0-9]++)?+|'[^']*+(?:''[^']*+)*+'|(?i:true|false|null)"
_ROW: Final = rf"\({_SPACE}(?:{_CONSTANT}){_SPACE}(?:,{_SPACE}(?:{_CONSTANT}){_SPACE})*+\)"
_HEAD: Final = re.compile(rf"{_SPACE}insert\b(?:[^\"'$/;-]|\"[^\"]*+\")*?\bvalues{_SPACE}(?=\()", re.IGNORECASE)
"""Matches up to the first row. The pattern allows nothing that opens a comment or a string."""
_ROWS: Final = re.compile(rf"{_ROW}{_SPACE}(?:,{_SPACE}{_ROW}{_SPACE})*+(?=;|\Z)")
_END: Final = re.compile(r"[ \t\r\n\f\v;]*+\Z")
_EACH_ROW: Final = re.compile(_ROW)
_EACH_CONSTANT: Final = re.compile(_CONSTANT)


@dataclass(frozen=True, slots=True)
class Constants:
    """`text` is the statement without its terminator. `start` is the offset of its first row."""

    text: str
    start: int

    @property
    def rows(self) -> list[list[str]]:
        """The constants of every row, as written. Every row has at least one."""
        return [_EACH_CONSTANT.findall(row) for row in _EACH_ROW.findall(self.text, self.start)]


def constants_of(sql: str) -> Constants | None:
    """Return the rows of an INSERT of plain constants, or None for any other statement."""
    head = _HEAD.match(sql)
    rows = _ROWS.match(sql, head.end()) if head is not None else None
    if head is None or rows is None or _END.match(sql, rows.end()) is None or UNREADABLE.search(sql) is not None:
        return None
    return Constants(sql[: rows.end()], head.end())


def printed(rows: Sequence[Sequence[str]], columns: Sequence[Column], *, exact: bool) -> str | None:
    """Return the rows as VALUES for the first of `columns`, or for all of them if `exact`. None if a row has to be
    refused.
    """
    width = len(rows[0])
    if width > len(columns) or (exact and width < len(columns)) or any(len(row) != width for row in rows):
        return None
    types = [str(column.type) for column in columns[:width]]
    required = [at for at, column in enumerate(columns[:width]) if not column.nullable]
    if any(_is_null(row[at]) for row in rows for at in required):
        return None
    return "VALUES " + ", ".join(f"({', '.join(map(_cast, row, types))})" for row in rows)


def _is_null(constant: str) -> bool:
    return constant[0] in "nN"


def _cast(constant: str, type_: str) -> str:
    if _is_null(constant):
        return f"CAST(NULL AS {type_})"
    return f"CAST(({constant.upper() if constant[0] in 'tTfF' else constant}) AS {type_})"
