"""A folder of Parquet files that is read in place: what it has now, and the files that come.

A file is read once. One that is gone or has changed since breaks the table, because its rows were already given on. One
that is not whole, or whose columns have other types, is left out until it is. Next: `workers.connectors.folder_rows`.
"""

import time
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from threading import Lock
from typing import Final

from typing_extensions import override

from service.protocol.delta_source import delta_columns
from service.protocol.file_source import Folder, folder_of
from workers.connectors.delta_files import Files, Stamp, in_a_line
from workers.connectors.folder_files import (
    COLUMNS_MAX,
    Footer,
    TooWideError,
    UnfinishedFileError,
    footer_of,
    listed,
    schema_of,
)
from workers.connectors.places import check_place
from workers.connectors.port import RefusedTableError, TableShape
from workers.connectors.watching import Watching

AT_ONCE: Final = 8
"""How many footers are read at once."""
DESCRIBED_MAX: Final = 1000
"""So many files say which columns a table may have. Somebody waits for the answer."""
PATIENCE_SECONDS: Final = 60.0
"""A file that is not whole for so long is told of."""


def describe(options: Mapping[str, str]) -> TableShape:
    """Return what a folder has now: the columns of its whole files. Raises RefusedTableError with the reason if
    these cannot be the rows of one table.
    """
    folder = folder_of(options)
    check_place(folder.place)
    try:
        with in_a_line():
            return _shape(folder)
    except OSError as error:
        raise RefusedTableError(f"{folder.place.location} cannot be read by the worker: {error}") from error


def _shape(folder: Folder) -> TableShape:
    """Return what a folder has now. The first refusal ends the reading, and only the columns of all files are held."""
    rows, columns = 0, dict[str, object]()
    if Files.of(folder.place).there("_delta_log"):
        raise RefusedTableError(f"{folder.place.location} is a Delta table: connector = 'deltalake' reads it")
    first = dict(islice(sorted(listed(folder).items()), DESCRIBED_MAX))
    with closing(_footers(folder, first)) as footers:
        for path, footer in footers:
            if isinstance(footer, Footer):
                rows += footer.rows
                _merge(columns, path, footer)
            elif isinstance(footer, TooWideError):
                raise RefusedTableError(f'file "{path}": {footer}')
    return TableShape(0, schema_of(columns), rows)


def _merge(columns: dict[str, object], path: str, footer: Footer) -> None:
    """Add the columns of a file to those of the others. Raises RefusedTableError."""
    for name, kind in footer.columns.items():
        if columns.setdefault(name, kind) != kind:
            raise RefusedTableError(f'column "{name}" is {columns[name]} in one file, and {kind} in "{path}"')
    if len(columns) > COLUMNS_MAX:
        raise RefusedTableError(f"its files have more than {COLUMNS_MAX} columns together")


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A whole file."""

    path: str
    stamp: Stamp
    rows: int


@dataclass(frozen=True, slots=True)
class _LeftOut:
    """A file that is not read: why, and since when. One that is not whole may be being written."""

    stamp: Stamp
    why: str
    since: float
    unfinished: bool

    def told(self, now: float) -> bool:
        """Whether users have to know of it."""
        return not self.unfinished or now - self.since >= PATIENCE_SECONDS


@dataclass
class FolderWatch(Watching):
    """Looks for new files. `known` are those that were found before."""

    folder: Folder
    known: dict[str, Stamp]
    _found: list[FoundFile] = field(default_factory=list[FoundFile])
    _left_out: dict[str, _LeftOut] = field(default_factory=dict[str, _LeftOut])
    _lock: Lock = field(default_factory=Lock)

    def take(self, rows: int) -> Sequence[FoundFile]:
        """Return files that were found, each once: the first ones that have so many rows together, or more."""
        with self._lock:
            count, left = 0, rows
            while count < len(self._found) and left > 0:
                left -= self._found[count].rows
                count += 1
            taken, self._found = self._found[:count], self._found[count:]
        return taken

    @override
    def look(self) -> None:
        """Find what is new. Raises OSError if the storage is away, and RefusedTableError if a file is left out."""
        with in_a_line():
            there = listed(self.folder)
            if self.known and not there:
                raise OSError("none of its files is there")
            self._check_known(there)
            self._left_out = {path: one for path, one in self._left_out.items() if there.get(path) == one.stamp}
            new = {
                path: stamp for path, stamp in there.items() if path not in self.known and path not in self._left_out
            }
            self._look_at(dict(sorted(new.items(), key=lambda one: (one[1].modified, one[0]))))
        told = sorted(path for path, one in self._left_out.items() if one.told(_now()))
        if told:
            raise RefusedTableError(f'file "{told[0]}" is left out: {self._left_out[told[0]].why}. Others are read')

    def _look_at(self, new: Mapping[str, Stamp]) -> None:
        with closing(_footers(self.folder, new)) as footers:
            for path, footer in footers:
                if self.over:
                    return
                self._judge(path, new[path], footer)

    def _check_known(self, there: Mapping[str, Stamp]) -> None:
        """Break the table if a file is not what it was when it was taken."""
        files = Files.of(self.place)
        for path in [path for path, stamp in self.known.items() if there.get(path) != stamp]:
            try:
                # A list of files may be older than what was found since.
                same = files.stamp(path) == self.known[path]
            except FileNotFoundError:
                if not files.there(""):
                    raise OSError("its folder is away") from None
                what = "is gone"
            else:
                what = "has changed"
                if same:
                    continue
            if not self._forgotten(path):
                self.broken = f'file "{path}" {what} since it was first read'
                return

    def _forgotten(self, path: str) -> bool:
        """Forget a file that was found, and return whether nobody took it before."""
        with self._lock:
            left = [one for one in self._found if one.path != path]
            if len(left) == len(self._found):
                return False
            self._found = left
        del self.known[path]
        return True

    def _judge(self, path: str, stamp: Stamp, footer: Footer | UnfinishedFileError) -> None:
        """Take a file if its rows may be those of the table."""
        unfinished = isinstance(footer, UnfinishedFileError)
        why = str(footer) if isinstance(footer, UnfinishedFileError) else self._differs(footer)
        if why is not None:
            self._left_out[path] = _LeftOut(stamp, why, _now(), unfinished)
        elif isinstance(footer, Footer):
            with self._lock:
                self.known[path] = stamp
                self._found.append(FoundFile(path, stamp, footer.rows))

    def _differs(self, footer: Footer) -> str | None:
        there = delta_columns(schema_of(footer.columns))
        types = {one.name: one.type for one in there.columns}
        for column in self.relation.columns:
            if column.name in there.refused:
                return f'column "{column.name}" {there.refused[column.name]}'
            if column.name not in types and not column.nullable:
                return f'column "{column.name}" of the primary key is not in it'
            if types.get(column.name, column.type) != column.type:
                return f'column "{column.name}" is {types[column.name]} in it, and {column.type} in the table'
        return None


def _now() -> float:
    return time.monotonic()  # noqa: TID251 - a thread of its own paces itself


def _footers(folder: Folder, files: Mapping[str, Stamp]) -> Generator[tuple[str, Footer | UnfinishedFileError]]:
    """Yield what each file is, in order. Raises OSError if the storage is away."""
    if not files:
        return
    with ThreadPoolExecutor(min(AT_ONCE, len(files))) as pool:
        yield from pool.map(partial(_footer, folder), files.items())


def _footer(folder: Folder, file: tuple[str, Stamp]) -> tuple[str, Footer | UnfinishedFileError]:
    path, stamp = file
    try:
        return path, footer_of(folder.place, path, stamp)
    except UnfinishedFileError as error:
        return path, error
