"""The rows of a Delta table that is read in place: pages of its history at one version, and changes between versions.

Changes are those that the table's own change feed has written. Where a commit has none, they follow from the files that
it added, removed, or marked rows of as deleted. Next: `workers.connectors.parquet_rows`, which reads the files.
"""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache, partial
from subprocess import TimeoutExpired
from typing import Any, Final, TypeVar
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable

from service.protocol.delta import DeltaPlace
from service.protocol.relation import TRAVEL_PREFIX, Relation
from workers.backfill.positions import Block, PageSize
from workers.connectors.delta_files import Files
from workers.connectors.delta_log import Commit, commit_of, lacking, name_of, opened
from workers.connectors.limited import Standing
from workers.connectors.parquet_rows import (
    MEMORY,
    DataFile,
    GoneFileError,
    Kept,
    Snapshot,
    bounded,
    kept_rows,
    page_of_pieces,
    pieces_of,
    read_rows,
    wired,
)
from workers.connectors.port import RefusedTableError
from workers.state_store.port import CLOSE, LIVE, OPERATION, ArrowPage

Choose = Callable[[pa.Table], pa.Table]
CHANGES_MAX: Final = 2_000_000
"""So many changed rows are held at once."""
T = TypeVar("T")
_LOGS: Final = Standing(MEMORY)
"""The process in which this one has logs read."""
_SECONDS: Final = 120.0
_CHANGE: Final = "_change_type"
_OLD: Final = ("delete", "update_preimage")
_AT: Final = f"{TRAVEL_PREFIX}at"


@contextmanager
def _to_be_there(files: Files) -> Generator[None]:
    """Have the lack of a file say why a table cannot be read."""
    try:
        yield
    except GoneFileError as error:
        message = (
            f"file {error.path} of the Delta table is gone: VACUUM has removed a version that was still to be read"
        )
        raise lacking(files, message) from None


@lru_cache(maxsize=4)
def snapshot_of(place: DeltaPlace, version: int) -> Snapshot:
    """Return a table at a version. Raises RefusedTableError if its log no longer has it."""
    return _apart(place, partial(_snapshot, place, version))


@lru_cache(maxsize=4)
def _marks_of(place: DeltaPlace, version: int) -> Kept:
    return _apart(place, partial(_marks_at, place, version))


def _apart(place: DeltaPlace, look: Callable[[], T]) -> T:
    """Return what a look at a log finds: a checkpoint or a mark of a few bytes may take gigabytes (I13)."""
    try:
        return _LOGS.call(_SECONDS, look)
    except MemoryError:
        raise RefusedTableError(
            f"the log of {place.location} takes more than {MEMORY >> 20} MB of memory to read"
        ) from None
    except TimeoutExpired:
        raise OSError(f"the log of {place.location} takes more than {_SECONDS:.0f} s to read") from None


def _snapshot(place: DeltaPlace, version: int) -> Snapshot:
    table = opened(place, version)
    files: list[tuple[DataFile, int | None]] = []
    for action in pa.table(table.get_add_actions()).to_pylist():
        one = DataFile(unquote(action["path"]), action.get("partition") or {}, marked=False)
        files.append((one, action["num_records"]))
    files.sort(key=lambda one: one[0].path)
    return Snapshot(pieces_of(files), _marks(place, table))


def _marks_at(place: DeltaPlace, version: int) -> Kept:
    return _marks(place, opened(place, version))


def _marks(place: DeltaPlace, table: DeltaTable) -> Kept:
    if "deletionVectors" not in (table.protocol().reader_features or ()):
        return {}
    found: dict[str, pa.BooleanArray] = {}
    root = f"{place.location}/"
    for batch in pa.table(table.deletion_vectors()).to_batches():
        for path, kept in zip(batch.column(0).to_pylist(), batch.column(1), strict=True):
            found[unquote(str(path)).removeprefix("file://").removeprefix(root)] = kept.values
    return found


def page_of(place: DeltaPlace, relation: Relation, version: int | None, block: Block, *, size: PageSize) -> ArrowPage:
    """Read a page of a block at a version. None is a table without a version, which has no rows."""
    if version is None:
        return ArrowPage((), {}, {span.vnode: None for span in block})
    files = Files.of(place)
    with _to_be_there(files):
        return page_of_pieces(files, relation, snapshot_of(place, version), block, size=size)


def changes_of(
    place: DeltaPlace, relation: Relation, after: int | None, upto: int
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the net changes between two versions: the old row of each key first, then the new ones.

    Changes of more than `CHANGES_MAX` rows are read several times, those of a part of the keys at a time. Raises
    RefusedTableError if the log or a file of them is gone.
    """
    files = Files.of(place)
    with _to_be_there(files):
        yield from _changed(files, place, relation, after, upto)


def _changed(
    files: Files, place: DeltaPlace, relation: Relation, after: int | None, upto: int
) -> Iterator[tuple[int, pa.RecordBatch]]:
    if after is None:
        snapshot = snapshot_of(place, upto)
        for piece in snapshot.pieces:
            for begins, batch in read_rows(files, relation, piece.file, piece.first, piece.end):
                yield LIVE, wired(relation, kept_rows(snapshot.kept.get(piece.file.path), begins, batch), 0)
        return
    commits = {version: _commit(files, version) for version in range(after + 1, upto + 1)}
    parts = -(-sum(_changed_rows(files, commit) for commit in commits.values()) // CHANGES_MAX)
    if parts <= 1:
        yield from _changes(files, place, relation, commits, _all)
        return
    key = [part.name for part in relation.key]
    for wanted in (CLOSE, LIVE):
        for part in range(parts):
            found = _changes(files, place, relation, commits, partial(_of_part, key, parts, part))
            yield from ((operation, rows) for operation, rows in found if operation == wanted)


def _commit(files: Files, version: int) -> Commit:
    with bounded(name_of(version)):
        return commit_of(files, version)


def _changes(
    files: Files, place: DeltaPlace, relation: Relation, commits: Mapping[int, Commit], chosen: Choose
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the net changes of the `chosen` rows in some versions, each with its commit."""
    events = [
        rows.append_column(OPERATION, pa.repeat(pa.scalar(operation, pa.int8()), rows.num_rows))
        for version, commit in commits.items()
        for operation, rows in _in_order(files, place, relation, version, commit, chosen)
    ]
    if not events:
        return
    for operation, rows in _net(pa.concat_tables(events), [part.name for part in relation.key]):
        if rows.num_rows:
            yield operation, wired(relation, rows, 0)


def _changed_rows(files: Files, commit: Commit) -> int:
    """Return how many rows the files have from which the changes of a commit follow."""
    count = 0
    for one in commit.changes or (*commit.added, *commit.removed):
        with suppress(FileNotFoundError), bounded(one.path), files.opened(one.path) as opened_file:
            count += pq.ParquetFile(opened_file).metadata.num_rows
    return count


def _all(rows: pa.Table) -> pa.Table:
    return rows


def _of_part(key: Sequence[str], parts: int, part: int, rows: pa.Table) -> pa.Table:
    """Return the rows with the keys of one of several parts of about the same size."""
    # To import pandas takes a third of a second, and few tables change so much at once.
    from pandas.util import hash_pandas_object  # noqa: PLC0415

    hash_rows: Any = hash_pandas_object  # its decorator hides its signature
    hashes = hash_rows(rows.select(list(key)).to_pandas(), index=False)
    return rows.filter(pa.array(hashes % parts == part, pa.bool_()))


def _net(every: pa.Table, key: Sequence[str]) -> Iterator[tuple[int, pa.Table]]:
    """Yield the first event of each key if it ended a row, then the last one if it began a row.

    A row that ended and began again as it was has not changed: a file was written anew for other rows.
    """
    numbered = every.append_column(_AT, pa.array(range(every.num_rows), pa.int64()))
    groups = numbered.select([*key, _AT]).group_by(list(key)).aggregate([(_AT, "min"), (_AT, "max")])
    first, last = (every.take(groups.column(f"{_AT}_{which}")) for which in ("min", "max"))
    differs = pc.invert(_same(first.drop_columns([OPERATION]), last.drop_columns([OPERATION])))
    for operation, rows in ((CLOSE, first), (LIVE, last)):
        mine: Any = pc.equal(rows.column(OPERATION), pa.scalar(operation, pa.int8()))
        # A row that only ended, or only began, is its first event and its last one.
        once = pc.equal(first.column(OPERATION), last.column(OPERATION))
        changed: Any = pc.and_(mine, pc.or_(differs, once))
        yield operation, rows.filter(changed)


def _same(some: pa.Table, others: pa.Table) -> Any:
    """Return which rows of two tables are the same. NULL is the same as NULL."""
    same: Any = pa.repeat(pa.scalar(value=True), some.num_rows)
    for name in some.schema.names:
        one: Any = some.column(name)
        other: Any = others.column(name)
        if pa.types.is_list(one.type):
            # Arrow compares no lists.
            equal = pa.array([a == b for a, b in zip(one.to_pylist(), other.to_pylist(), strict=True)], pa.bool_())
        else:
            nulls = pc.and_(one.is_null(), other.is_null())
            same_values: Any = pc.equal(one, other)
            equal = pc.or_(nulls, same_values.fill_null(False))
        same = pc.and_(same, equal)
    return same


def _in_order(
    files: Files, place: DeltaPlace, relation: Relation, version: int, commit: Commit, chosen: Choose
) -> Iterator[tuple[int, pa.Table]]:
    """Yield the `chosen` rows that a version has changed: those that it ended, then those that it began."""
    found = _fed(files, relation, commit) if commit.changes else _by_files(files, place, relation, version, commit)
    every = [(operation, chosen(rows)) for operation, rows in found]
    for operation in (CLOSE, LIVE):
        yield from ((operation, rows) for mine, rows in every if mine == operation and rows.num_rows)


def _fed(files: Files, relation: Relation, commit: Commit) -> Iterator[tuple[int, pa.Table]]:
    """Yield what the change feed says."""
    for one in commit.changes:
        for _, batch in read_rows(files, relation, one, 0, None, more=[_CHANGE]):
            old = pc.is_in(batch.column(_CHANGE), pa.array(_OLD))
            rows = batch.drop_columns([_CHANGE])
            yield CLOSE, rows.filter(old)
            yield LIVE, rows.filter(pc.invert(old))


def _by_files(
    files: Files, place: DeltaPlace, relation: Relation, version: int, commit: Commit
) -> Iterator[tuple[int, pa.Table]]:
    """Yield what follows from files that were added, removed, or marked."""
    before = _marks_of(place, version - 1) if any(one.marked for one in commit.removed) else {}
    now = _marks_of(place, version) if any(one.marked for one in commit.added) else {}
    added, removed = {one.path: one for one in commit.added}, {one.path: one for one in commit.removed}
    for path, one in {**removed, **added}.items():
        for begins, batch in read_rows(files, relation, one, 0, None):
            was = _rows_there(path in removed, before.get(path), begins, batch.num_rows)
            is_there = _rows_there(path in added, now.get(path), begins, batch.num_rows)
            yield CLOSE, batch.filter(pc.and_not(was, is_there))
            yield LIVE, batch.filter(pc.and_not(is_there, was))


def _rows_there(there: bool, kept: pa.BooleanArray | None, first: int, count: int) -> Any:  # noqa: FBT001 - of a file
    """Return which of some rows a table has: none if the file is no part of it."""
    if not there or kept is None:
        return pa.repeat(pa.scalar(there), count)
    return kept.slice(first, count)
