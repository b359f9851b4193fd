"""The partitions of a Delta table: a folder for each value, in Hive's style, and values as the texts of Delta's log."""

from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime
from typing import Any, Final
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from workers.connectors.port import RefusedRowError

Values = tuple[str | None, ...]
"""The texts of the partition columns, None for NULL."""
_NULL: Final = "__HIVE_DEFAULT_PARTITION__"
_NAME_MAX: Final = 200
"""File systems allow names of 255 bytes."""


def folder_of(columns: Sequence[str], values: Values) -> str:
    """Return the folder of a partition, with a slash behind it; nothing if the table has no partitions."""
    return "".join(f"{quote(name, safe='')}={_escaped(value)}/" for name, value in zip(columns, values, strict=True))


def parted(rows: pa.RecordBatch, columns: Sequence[str]) -> Iterator[tuple[Values, pa.RecordBatch]]:
    """Yield the rows of each partition without its columns. Raises RefusedRowError."""
    if not columns:
        yield (), rows
    if not columns or not rows.num_rows:
        return
    texts: list[list[str | None]] = []
    place = np.zeros(rows.num_rows, np.int64)
    for name in columns:
        coded: Any = pc.dictionary_encode(rows.column(name), null_encoding="encode")
        found = [_text(name, value) for value in _values(name, coded.dictionary)]
        codes = coded.indices.to_numpy(zero_copy_only=False)
        texts.append([found[code] for code in codes])  # of each row
        _, place = np.unique(place * len(found) + codes, return_inverse=True)
    rest = rows.drop_columns(list(columns)).take(pa.array(np.argsort(place, kind="stable"), pa.int64()))
    _, firsts, counts = np.unique(place, return_index=True, return_counts=True)
    begins = np.cumsum(counts) - counts
    for first, begin, count in zip(firsts, begins, counts, strict=True):
        yield tuple(one[first] for one in texts), rest.slice(begin, count)


def check_partitions(rows: pa.RecordBatch, columns: Sequence[str]) -> None:
    """Raise RefusedRowError if rows have values that no partition can have."""
    for name in columns:
        for value in _values(name, pc.unique(rows.column(name))):
            _text(name, value)


def _values(name: str, found: Any) -> list[Any]:
    try:
        return found.to_pylist()
    except (ValueError, OverflowError) as error:
        raise RefusedRowError(f"partition {name} takes no year before 1 or after 9999") from error


def _text(name: str, value: Any) -> str | None:
    """Return a value as Delta writes it."""
    match value:
        case None:
            return None
        case bool():
            return str(value).lower()
        case datetime() if value.tzinfo is not None:
            return value.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        case datetime():
            return value.isoformat(sep=" ", timespec="microseconds")
        case date():
            return value.isoformat()
        case "":
            raise RefusedRowError(f"partition {name} takes no empty text, which Delta reads as NULL")
        case _ if len(_escaped(str(value))) > _NAME_MAX:
            raise RefusedRowError(f"partition {name} takes no text that is so long: {str(value)[:40]}..")
        case _:
            return str(value)


def _escaped(value: str | None) -> str:
    return _NULL if value is None else quote(value, safe="")
