"""The log of a Delta table that is read in place: what a table is, its next versions, and the files of a commit.

A version is followed as soon as it is there. The columns that the table had when it was made have to stay; files may be
added, removed and marked in any way. Next: `workers.connectors.delta_rows`, which reads the files.
"""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError
from typing_extensions import override

from service.protocol.delta import DeltaPlace
from service.protocol.delta_source import delta_columns, source_place
from workers.connectors.delta_files import Files, delta_table, in_a_line
from workers.connectors.parquet_rows import DataFile
from workers.connectors.places import check_place
from workers.connectors.port import RefusedTableError, TableShape
from workers.connectors.watching import Watching

COUNT_SECONDS: Final = 30.0
"""How often the rows of a table that changes are counted, which reads its whole log."""
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


def describe(options: Mapping[str, str]) -> TableShape:
    """Return what a table is now. Raises RefusedTableError with the reason if it cannot be read in place."""
    place = source_place(options)
    check_place(place)
    try:
        with in_a_line():
            table = delta_table(place)
            _check_protocol(list(table.protocol().reader_features or ()))
            _check_mapping(table.metadata().configuration)
            return TableShape(table.version(), table.schema().to_json(), rows_of(table))
    except TableNotFoundError:
        raise RefusedTableError(f"there is no Delta table at {place.location}, as the worker sees it") from None
    except (OSError, DeltaError) as error:
        raise RefusedTableError(f"{place.location} cannot be read by the worker: {error}") from error


def rows_of(table: DeltaTable) -> int:
    """Return how many rows the log of a table knows of. It counts those that are marked as deleted, too."""
    counts: Any = pa.table(table.get_add_actions()).column("num_records")
    return int(pc.sum(counts).as_py() or 0)


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


def _name(version: int) -> str:
    return f"_delta_log/{version:020}.json"


def actions_of(files: Files, version: int) -> list[dict[str, Any]]:
    """Return the actions of a version. Raises RefusedTableError if it is no longer in the log, and OSError if there is
    no log.
    """
    try:
        text = files.read(_name(version)).decode()
    except FileNotFoundError:
        raise lacking(
            files, f"version {version} is no longer in the log of the Delta table: its changes cannot be read"
        ) from None
    return [json.loads(line) for line in text.splitlines() if line.strip()]


def _check_protocol(features: Sequence[str]) -> None:
    if unknown := sorted(set(features) - _READ):
        raise RefusedTableError(f"the Delta table has the feature {unknown[0]}, which cannot be read in place")


def _check_mapping(configuration: Mapping[str, str | None]) -> None:
    mode = configuration.get(_MAPPING) or "none"
    if mode != "none":
        raise RefusedTableError(f"the Delta table maps its columns by {mode}, and cannot be read in place")


@dataclass
class Watch(Watching):
    """Looks for new versions of a table.

    `newest` is the last version up to which the table can be followed. `rows` is about how many rows the table has,
    None before they were counted.
    """

    newest: int
    rows: int | None = None
    _counted_at: float = -COUNT_SECONDS

    @override
    def look(self) -> None:
        """Go to the newest version that can be followed. Raises OSError if the storage is away."""
        before = self.newest
        self._go_on()
        if self.broken is None and (self.rows is None or self.newest > before):
            self._count()

    def _go_on(self) -> None:
        files = Files.of(self.place)
        while not self.over and files.there(_name(self.newest + 1)):
            try:
                self._check(files, self.newest + 1)
            except RefusedTableError as error:
                self.broken = f"version {self.newest + 1}: {error}"
            else:
                self.newest += 1
        # An object store says itself that it is away. A folder that is not mounted is empty.
        if not files.in_store and not files.there("_delta_log"):
            raise OSError("its Delta table is away")

    def _count(self) -> None:
        now = time.monotonic()  # noqa: TID251 - a thread of its own paces itself
        if now - self._counted_at >= COUNT_SECONDS:
            self._counted_at = now
            self.rows = rows_of(opened(self.place, self.newest))

    def _check(self, files: Files, version: int) -> None:
        for action in actions_of(files, version):
            if (protocol := action.get("protocol")) is not None:
                _check_protocol(protocol.get("readerFeatures") or ())
            if (metadata := action.get("metaData")) is not None:
                _check_mapping(metadata.get("configuration") or {})
                self._check_columns(metadata["schemaString"])

    def _check_columns(self, schema: str) -> None:
        there = delta_columns(schema)
        types = {one.name: one.type for one in there.columns}
        for column in self.relation.columns:
            if column.name not in types:
                how = there.refused.get(column.name, "is gone")
                raise RefusedTableError(f'column "{column.name}" {how}')
            if types[column.name] != column.type:
                raise RefusedTableError(f'column "{column.name}" was {column.type}, and is {types[column.name]}')


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
