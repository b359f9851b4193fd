"""The rows of a folder of Parquet files that is read in place.

The state store has a row for each file, from the epoch on in which it came (`service.protocol.relation.files_of`). So
the files of an epoch, and those that came between two, are found there, and a repeated epoch has the same ones.
"""

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa

from service.protocol.file_source import Folder
from service.protocol.ids import Epoch, RelationId
from service.protocol.relation import FILE_ROWS, MODIFIED, PATH, SIZE, Relation, files_in
from workers.backfill.order import Position
from workers.backfill.positions import Block, PageSize, Span
from workers.connectors.delta_files import Files, Stamp
from workers.connectors.folder_files import listed, values_of
from workers.connectors.folder_watch import FoundFile
from workers.connectors.parquet_rows import (
    DataFile,
    GoneFileError,
    Snapshot,
    page_of_pieces,
    pieces_of,
    read_rows,
    wired,
)
from workers.connectors.port import RefusedTableError
from workers.state_store.port import LIVE, OPERATION, VNODE, ArrowPage, VersionedStore

_MANY: Final = PageSize(100_000, exact=False)
_ALL_RUNS: Final = ((0, 0),)


def file_rows(found: Sequence[FoundFile]) -> Iterator[pa.RecordBatch]:
    """Yield what the state store keeps of files."""
    columns: Mapping[str, Any] = {
        OPERATION: pa.array([LIVE] * len(found), pa.int8()),
        VNODE: pa.array([0] * len(found), pa.int16()),
        PATH: pa.array([one.path for one in found], pa.string()),
        SIZE: pa.array([one.stamp.size for one in found], pa.int64()),
        MODIFIED: pa.array([one.stamp.modified for one in found], pa.int64()),
        FILE_ROWS: pa.array([one.rows for one in found], pa.int64()),
    }
    yield pa.RecordBatch.from_pydict(dict(columns))


def files_at(store: VersionedStore, relation: Relation, at: Epoch) -> tuple[FoundFile, ...]:
    """Return the files that a folder has at a committed epoch, in the order of their paths."""
    return _files_at(store, relation.id, relation.name, at)


# A committed epoch keeps its files. A task reads many pages of it.
@lru_cache(maxsize=4)
def _files_at(store: VersionedStore, relation: RelationId, name: str, at: Epoch) -> tuple[FoundFile, ...]:
    found: list[FoundFile] = []
    after: Position | None = None
    while True:
        page = store.read_page(files_in(relation, name), (Span(0, after),), at=at, size=_MANY)
        found += _found(page.batches)
        after = page.reached.get(0)
        if after is None:
            return tuple(sorted(found, key=lambda one: one.path))


def _found(batches: Iterable[pa.RecordBatch]) -> Iterator[FoundFile]:
    for batch in batches:
        for one in batch.select([PATH, SIZE, MODIFIED, FILE_ROWS]).to_pylist():
            yield FoundFile(one[PATH], Stamp(one[SIZE], one[MODIFIED]), one[FILE_ROWS])


def page_at(
    store: VersionedStore, folder: Folder, relation: Relation, at: Epoch, block: Block, *, size: PageSize
) -> ArrowPage:
    """Read a page of a block at a committed epoch."""
    files = Files.of(folder.place)
    with _to_be_there(folder):
        return page_of_pieces(files, relation, _snapshot(store, relation.id, relation.name, at), block, size=size)


@lru_cache(maxsize=4)
def _snapshot(store: VersionedStore, relation: RelationId, name: str, at: Epoch) -> Snapshot:
    found = _files_at(store, relation, name, at)
    return Snapshot(pieces_of((_file(one), one.rows) for one in found), {})


def _file(one: FoundFile) -> DataFile:
    return DataFile(one.path, values_of(one.path), stamp=one.stamp)


def changes_between(
    store: VersionedStore, folder: Folder, relation: Relation, after: Epoch, upto: Epoch
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the rows of the files that came between two committed epochs."""
    files = Files.of(folder.place)
    came = store.read_changes(files_in(relation.id, relation.name), after=after, upto=upto, runs=_ALL_RUNS)
    found = list(_found(batch for _, batch in came))
    with _to_be_there(folder):
        for one in found:
            for _, batch in read_rows(files, relation, _file(one), 0, None):
                yield LIVE, wired(relation, batch, 0)


@contextmanager
def _to_be_there(folder: Folder) -> Generator[None]:
    """Have the lack of a file say why the table cannot be read. If all files are gone, their storage may come back."""
    try:
        yield
    except GoneFileError as error:
        if not listed(folder):
            raise OSError("none of its files is there") from None
        raise RefusedTableError(f'file "{error.path}" is gone, and was still to be read') from None
