"""The process of one Arrow or Parquet body: `python -m service.columnar.child arrow|parquet PATH MEMORY`.

It writes the names of the columns, reads the table's columns in their order, and writes rows as CSV until there are no
more: each a pickled (whether it succeeded, the value or the error) behind its length. The kernel gives it MEMORY bytes
and no more, whatever a body of a few bytes unfolds to. Next: `service.columnar.process`, which is at the other end.
"""

import pickle
import resource
import signal
import sys
from pathlib import Path
from typing import Any, Final

from service.domain.errors import Invalid, MetaError

HEAD: Final = 8
TOO_MUCH: Final = "the body takes too much memory to be read: write smaller row groups, batches or values"


def framed(value: object) -> bytes:
    """Return a value as the bytes of one message."""
    content = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    return len(content).to_bytes(HEAD, "big") + content


def main(form: str, path: Path, memory: int) -> None:
    """Print the rows of a body."""
    # Not the address space: a file is mapped there, which takes no memory.
    resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        _print(form, path)
    except MetaError as error:
        _write(False, error)
    except MemoryError:
        _write(False, Invalid(TOO_MUCH))


def _print(form: str, path: Path) -> None:
    # What it takes to import counts as well.
    from service.columnar.reading import opened_parquet, opened_stream  # noqa: PLC0415

    rows = opened_parquet(path) if form == "parquet" else opened_stream(path)
    _write(True, rows.names)
    head = sys.stdin.buffer.read(HEAD)
    if len(head) < HEAD:
        return
    columns = pickle.loads(sys.stdin.buffer.read(int.from_bytes(head, "big")))  # noqa: S301 - from the service
    for chunk in rows.csv_of(columns):
        _write(True, chunk)
    _write(True, None)


def _write(succeeded: bool, value: Any) -> None:  # noqa: FBT001 - as it is read
    sys.stdout.buffer.write(framed((succeeded, value)))
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
