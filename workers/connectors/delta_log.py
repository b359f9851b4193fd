"""The log of a Delta table that is read in place: its versions, and the files of a commit.

Other programs write this log, so it may contain anything, of any size (I13). Next: `workers.connectors.delta_watch`.
"""

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from service.protocol.delta import DeltaPlace
from workers.connectors.delta_files import Files, delta_table, in_a_line
from workers.connectors.parquet_rows import DataFile
from workers.connectors.port import RefusedTableError

_LINE_BYTES: Final = 4 << 20
_COMMIT_BYTES: Final = 256 << 20
"""A commit of a quarter of a million files has about as much."""
_READ: Final = frozenset({"deletionVectors", "timestampNtz", "vacuumProtocolCheck", "v2Checkpoint", "columnMapping"})
"""The features of Delta with which tables can be read, columnMapping as long as it is not used."""
_MAPPING: Final = "delta.columnMapping.mode"


@dataclass(frozen=True, slots=True)
class Commit:
    """The changes of a version. With `changes`, files of rows that say themselves what became of them, the others
    need not be read.
    """

    changes: tuple[DataFile, ...]
    added: tuple[DataFile, ...]
    removed: tuple[DataFile, ...]


def rows_of(table: DeltaTable) -> int:
    """Return how many rows the log of a table knows of. It counts those that are marked as deleted, too."""
    counts: Any = pa.table(table.get_add_actions()).column("num_records")
    return max(int(pc.sum(counts).as_py() or 0), 0)


def known_rows(place: DeltaPlace, version: int) -> int:
    """Return `rows_of` a table in a version. Raises as `opened` does."""
    return rows_of(opened(place, version))


def commit_of(files: Files, version: int) -> Commit:
    """Return what a version has changed. Raises RefusedTableError if it is no longer in the log, and OSError if there
    is no log.
    """
    changes: list[DataFile] = []
    added: list[DataFile] = []
    removed: list[DataFile] = []
    for action in actions_of(files, version):
        if (one := action.get("cdc")) is not None:
            changes.append(_file(one))
        elif (one := action.get("add")) is not None and one.get("dataChange", True):
            added.append(_file(one))
        elif (one := action.get("remove")) is not None and one.get("dataChange", True):
            removed.append(_file(one))
    return Commit(tuple(changes), tuple(added), tuple(removed))


def _file(action: Mapping[str, Any]) -> DataFile:
    return DataFile(
        unquote(action["path"]), action.get("partitionValues") or {}, action.get("deletionVector") is not None
    )


def name_of(version: int) -> str:
    """Return the path of the file that makes a version."""
    return f"_delta_log/{version:020}.json"


def actions_of(files: Files, version: int) -> Iterator[dict[str, Any]]:
    """Iterate over the actions of a version. Raises RefusedTableError if it is no longer in the log or too large, and
    OSError if there is no log.
    """
    try:
        with files.opened(name_of(version)) as file:
            if file.size() > _COMMIT_BYTES:
                raise RefusedTableError(f"the log of version {version} has more than {_COMMIT_BYTES >> 20} MB")
            # While a line is parsed no other thread runs, those that answer the service included (I13).
            lines = io.BufferedReader(cast("io.RawIOBase", file))
            while line := lines.readline(_LINE_BYTES + 1):
                if len(line) > _LINE_BYTES:
                    raise RefusedTableError(
                        f"an action in the log of version {version} has more than {_LINE_BYTES >> 20} MB"
                    )
                if line.strip():
                    yield json.loads(line)
    except FileNotFoundError:
        raise lacking(
            files, f"version {version} is no longer in the log of the Delta table: its changes cannot be read"
        ) from None


def check_protocol(features: Sequence[str]) -> None:
    """Raise RefusedTableError for a feature of Delta that changes what the files mean."""
    if unknown := sorted(set(features) - _READ):
        raise RefusedTableError(f"the Delta table has the feature {unknown[0]}, which cannot be read in place")


def check_mapping(configuration: Mapping[str, str | None]) -> None:
    """Raise RefusedTableError if files have other names for the columns."""
    mode = configuration.get(_MAPPING) or "none"
    if mode != "none":
        raise RefusedTableError(f"the Delta table maps its columns by {mode}, and cannot be read in place")


def opened(place: DeltaPlace, version: int) -> DeltaTable:
    """Return the table in a version. Raises RefusedTableError if its log no longer has it, and OSError if the whole
    table is away.
    """
    try:
        with in_a_line():
            return delta_table(place, version)
    except DeltaError as error:
        raise lacking(Files.of(place), f"version {version} of {place.location} cannot be read: {error}") from error


def lacking(files: Files, message: str) -> Exception:
    """Return the error of a table in which something is missing. If all of it is, its storage may come back."""
    return RefusedTableError(message) if files.names("_delta_log") else OSError("its Delta table is away")
