"""The process for one body: `python -m service.columnar.child arrow|parquet|ndjson PATH MEMORY`.

It writes the names of the file's columns, reads the columns of the table in their order, and writes rows as CSV until
the end. Each message is its length, a letter for its kind, and its bytes. No message contains code, because a malicious
body may have taken over this process. The kernel limits its data to MEMORY bytes, even if a body of a few bytes expands
to more. Next: `service.columnar.process`, the other end.
"""

import json
import resource
import signal
import sys
from collections.abc import Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import Final, Protocol

from pydantic import TypeAdapter

from service.columnar.rows_json import JsonRows
from service.domain.errors import MetaError
from service.protocol.columns import Column

HEAD: Final = 8
MESSAGE_MAX: Final = 4 << 20
"""Bytes. A row may be many times as long; the service keeps one message in memory at a time."""
COLUMNS: Final = TypeAdapter(tuple[Column, ...])
TOO_MUCH: Final = "the body takes too much memory to be read: write smaller row groups, batches or values"


class _Rows(Protocol):
    """The rows of an opened file."""

    @property
    def names(self) -> tuple[str, ...]: ...

    def csv_of(self, columns: Sequence[Column]) -> Iterator[bytes]: ...


class Kind(bytes, Enum):
    """The kind of a message: names as JSON, columns as JSON, rows, the end of the rows, or the reason of a refusal."""

    NAMES = b"n"
    COLUMNS = b"c"
    ROWS = b"r"
    END = b"e"
    REFUSED = b"x"


def framed(kind: Kind, content: bytes | memoryview = b"") -> Iterator[bytes | memoryview]:
    """Yield the parts of one message."""
    yield len(content).to_bytes(HEAD, "big") + kind.value
    yield content


def main(form: str, path: Path, memory: int) -> None:
    """Print the rows of a body."""
    # Not the address space, because a file is mapped there without taking memory.
    resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        _print(form, path)
    except MetaError as error:
        _write(Kind.REFUSED, error.message.encode())
    except MemoryError:
        _write(Kind.REFUSED, TOO_MUCH.encode())


def _print(form: str, path: Path) -> None:
    rows = _opened(form, path)
    _write(Kind.NAMES, json.dumps(rows.names).encode())
    head = sys.stdin.buffer.read(HEAD + 1)
    if len(head) < HEAD + 1:
        return
    columns = COLUMNS.validate_json(sys.stdin.buffer.read(int.from_bytes(head[:HEAD], "big")))
    for chunk in rows.csv_of(columns):
        for start in range(0, len(chunk), MESSAGE_MAX):
            _write(Kind.ROWS, memoryview(chunk)[start : start + MESSAGE_MAX])
    _write(Kind.END)


def _opened(form: str, path: Path) -> _Rows:
    if form == "ndjson":
        return JsonRows(path)
    # Imported under the limit, so that the memory of the imports counts as well.
    from service.columnar.reading import opened_parquet, opened_stream  # noqa: PLC0415

    return opened_parquet(path) if form == "parquet" else opened_stream(path)


def _write(kind: Kind, content: bytes | memoryview = b"") -> None:
    sys.stdout.buffer.writelines(framed(kind, content))
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
