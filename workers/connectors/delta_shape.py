"""Read the log of another program's Delta table in a process whose memory is bounded (I13).

A checkpoint of a megabyte may take gigabytes once it is read, and only reading it tells. `shape_of` asks, and
`python -m workers.connectors.delta_shape` answers.
"""

import json
import resource
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError
from pydantic import TypeAdapter

from service.protocol.delta import DeltaPlace
from workers.connectors.delta_files import delta_table, in_a_line
from workers.connectors.delta_log import check_mapping, check_protocol, opened, rows_of
from workers.connectors.port import RefusedTableError, TableShape

MEMORY: Final = 3 << 30
"""The most memory, in bytes, that a process may allocate. A log of half a million files takes about as much."""
COLUMNS_MAX: Final = 20_000
_ASKED: Final = threading.BoundedSemaphore(3), 50.0
"""The most processes that look at tables for statements, and how many seconds each may take. One caller's statements
have two of them at most, and wait for somewhat longer (`operations.sources.lake.LOOK_WAIT`).
"""
_COUNTED: Final = threading.BoundedSemaphore(1), 120.0
"""The same for counting: a worker that starts counts the rows of all tables, and no statement waits for that."""
_PLACE: Final = TypeAdapter(DeltaPlace)


def shape_of(place: DeltaPlace, version: int | None = None, *, memory: int = MEMORY) -> TableShape:
    """Return what a table is in a version, or now.

    Raises RefusedTableError with the reason if it cannot be read in place, and OSError if its storage is away.
    """
    asked = json.dumps({"place": asdict(place), "version": version, "memory": memory})
    # `workers.spark.session.start` has put this code on the path of the worker's processes.
    command = [sys.executable, "-m", __spec__.name]
    places, seconds = _ASKED if version is None else _COUNTED
    try:
        with places:
            done = subprocess.run(  # noqa: S603 - no shell
                command, input=asked, capture_output=True, text=True, timeout=seconds, check=False
            )
    except subprocess.TimeoutExpired:
        raise RefusedTableError(f"the log of {place.location} takes more than {seconds:.0f} s to read") from None
    if done.returncode != 0:
        last = done.stderr.strip().rpartition("\n")[2]
        lacks_memory = done.returncode < 0 or "MemoryError" in last
        reason = f"takes more than {memory >> 20} MB of memory to read" if lacks_memory else f"cannot be read: {last}"
        raise RefusedTableError(f"the log of {place.location} {reason}")
    answer = json.loads(done.stdout)
    if (reason := answer.get("refused")) is not None:
        raise RefusedTableError(reason)
    if (reason := answer.get("away")) is not None:
        raise OSError(reason)
    return TableShape(**answer)


def _answer(asked: Mapping[str, Any]) -> Mapping[str, Any]:
    place, version = _PLACE.validate_python(asked["place"]), asked["version"]
    try:
        return asdict(_shape(_newest(place) if version is None else opened(place, version)))
    except RefusedTableError as error:
        return {"refused": str(error)}
    except OSError as error:
        return {"away": str(error)}


def _newest(place: DeltaPlace) -> DeltaTable:
    try:
        with in_a_line():
            return delta_table(place)
    except TableNotFoundError:
        raise RefusedTableError(f"there is no Delta table at {place.location}, as the worker sees it") from None
    except (OSError, DeltaError) as error:
        raise RefusedTableError(f"{place.location} cannot be read by the worker: {error}") from error


def _shape(table: DeltaTable) -> TableShape:
    check_protocol(list(table.protocol().reader_features or ()))
    check_mapping(table.metadata().configuration)
    if (number := len(table.schema().fields)) > COLUMNS_MAX:
        raise RefusedTableError(f"it has {number} columns, and at most {COLUMNS_MAX} can be read")
    return TableShape(table.version(), table.schema().to_json(), rows_of(table))


if __name__ == "__main__":
    question = json.load(sys.stdin)
    resource.setrlimit(resource.RLIMIT_DATA, (question["memory"], question["memory"]))
    sys.stdout.write(json.dumps(_answer(question)))
