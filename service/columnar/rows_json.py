"""Read rows as NDJSON: one object a line, with the columns' names as keys. Each row has every column.

Numbers keep the digits that were sent, because they never pass through a binary float. A `jsonb` column accepts any
JSON value as it is, an array column a list. Every other column also accepts a string, as Postgres's text of the value.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, Never

from service.domain.errors import Invalid
from service.domain.uploading import PARTIAL
from service.protocol.columns import Column, ColumnType, TypeName
from service.protocol.quoting import array_literal, csv_field

LINE_BYTES_MAX: Final = 16 << 20
_PORTION_BYTES: Final = 256 << 10
_NUMBERS: Final = frozenset(
    {TypeName.SMALLINT, TypeName.INTEGER, TypeName.BIGINT, TypeName.REAL, TypeName.DOUBLE, TypeName.NUMERIC}
)


class _Number(str):
    """A number as it was written."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class JsonRows:
    """The rows of a file. Each has its own keys, so the file as a whole has no columns."""

    path: Path
    names: tuple[str, ...] = ()

    def csv_of(self, columns: Sequence[Column]) -> Iterator[bytes]:
        """Yield the rows as CSV in the order of `columns`. Raises Invalid with the row, from 1, and the column."""
        rows = _Rows(columns)
        with self.path.open("rb") as file:
            while lines := list(_portion(file)):
                yield rows.csv(lines)


def _portion(file: BinaryIO) -> Iterator[bytes]:
    """Yield the next lines. Of a line that is too long, yield enough to detect it."""
    size = 0
    while size < _PORTION_BYTES and (line := file.readline(LINE_BYTES_MAX + 1)):
        size += len(line)
        yield line


class _Rows:
    """Converts lines, and counts the rows among them."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = columns
        self._names = {column.name for column in columns}
        self.read = 0

    def csv(self, lines: Sequence[bytes]) -> bytes:
        """Return a CSV line for each row. Blank lines are skipped."""
        return "".join(self._printed(lines)).encode()

    def _printed(self, lines: Sequence[bytes]) -> Iterator[str]:
        for line in lines:
            if line and not line.isspace():
                self.read += 1
                row = self._row(line)
                yield ",".join(self._field(row, column) for column in self._columns) + "\n"

    def _row(self, line: bytes) -> Mapping[str, Any]:
        if self.read == 1 and line.startswith(b"\x1f\x8b"):
            raise Invalid("the body is packed: send it with Content-Encoding: gzip")
        if len(line.removesuffix(b"\n")) > LINE_BYTES_MAX:
            raise Invalid(f"row {self.read}: the line is longer than {LINE_BYTES_MAX} bytes")
        try:
            row = json.loads(
                line.decode(),
                parse_int=_Number,
                parse_float=_Number,
                parse_constant=_refuse_constant,
                object_pairs_hook=_object,
            )
        except (ValueError, RecursionError) as error:
            raise Invalid(f"row {self.read}: {error}") from error
        if not isinstance(row, dict):
            raise Invalid(f"row {self.read}: an object is expected, not {_named(row)}")
        if not row.keys() <= self._names:
            unknown = next(name for name in row if name not in self._names)
            raise Invalid(f'row {self.read}: unknown column "{unknown}"')
        if len(row) < len(self._columns):
            missing = next(column.name for column in self._columns if column.name not in row)
            raise Invalid(f'row {self.read}: columns missing: "{missing}"{PARTIAL}')
        return row

    def _field(self, row: Mapping[str, Any], column: Column) -> str:
        try:
            text = csv_field(_text(row[column.name], column.type))
            text.encode()
        except (ValueError, RecursionError) as error:
            raise Invalid(f'row {self.read}, column "{column.name}": {error}') from error
        return text


def _text(value: Any, kind: ColumnType) -> str | None:
    """Return Postgres's text of a value. Raises ValueError if its JSON type does not fit."""
    if value is None:
        return None
    if kind.array:
        if not isinstance(value, list):
            raise _misfit(value, kind)
        return array_literal([_text(element, kind.element) for element in value])
    return _json(value) if kind.name is TypeName.JSONB else _scalar(value, kind)


def _scalar(value: Any, kind: ColumnType) -> str:
    if isinstance(value, bool) and kind.name is TypeName.BOOLEAN:
        return "true" if value else "false"
    if isinstance(value, _Number) and kind.name in _NUMBERS:
        return str(value)
    if isinstance(value, str) and not isinstance(value, _Number):
        return value
    raise _misfit(value, kind)


def _json(value: Any) -> str:
    """Return the JSON text of a value, with numbers as they were written."""
    if isinstance(value, _Number):
        return str(value)
    if isinstance(value, dict):
        return "{" + ",".join(f"{_json(key)}:{_json(member)}" for key, member in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_json, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def _misfit(value: object, kind: ColumnType) -> ValueError:
    return ValueError(f"{kind} is expected, not {_named(value)}")


def _named(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case _Number():
            return "a number"
        case str():
            return "a string"
        case list():
            return "a list"
        case _:
            return "an object"


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        twice = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        msg = f'"{twice}" is given twice'
        raise ValueError(msg)
    return members


def _refuse_constant(text: str) -> Never:
    msg = f'{text} is not JSON: send "{text}" as a string'
    raise ValueError(msg)
