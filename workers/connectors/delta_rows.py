"""The rows of a Delta table that is read in place: pages of its history at one version, and changes between versions.

The history is cut into *pieces*: stretches of at most `PIECE_ROWS` rows of a file, in the order of the files' names.
Each piece belongs to a vnode of the relation, so that actors share them as they share any history. A position in a
vnode is the number of a piece and of a row in its file. Rows therefore have no vnode of their key, and a stage computes
it.

Changes are those that the table's own change feed has written. Where a commit has none, they follow from the files that
it added, removed, or marked rows of as deleted.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from service.protocol.columns import ColumnType, TypeName
from service.protocol.delta import DeltaPlace
from service.protocol.relation import TRAVEL_PREFIX, Relation
from workers.backfill.order import Position
from workers.backfill.positions import Block, PageSize, Span
from workers.connectors.delta_files import Files
from workers.connectors.delta_log import Commit, DataFile, commit_of, lacking, opened
from workers.connectors.port import RefusedRowError
from workers.state_store.port import CLOSE, LIVE, OPERATION, ArrowPage
from workers.state_store.wire import read_schema

PIECE_ROWS: Final = 1_000_000
BATCH_ROWS: Final = 1 << 16
Choose = Callable[[pa.Table], pa.Table]
CHANGES_MAX: Final = 2_000_000
"""So many changed rows are held at once."""
_CHANGE: Final = "_change_type"
_OLD: Final = ("delete", "update_preimage")
_AT: Final = f"{TRAVEL_PREFIX}at"

Kept = Mapping[str, pa.BooleanArray]
"""Which rows of a file are not marked as deleted. Files without marks are left out."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Some rows of a file, `end` excluded. None: to its end."""

    file: DataFile
    first: int
    end: int | None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A table at one version."""

    pieces: tuple[Piece, ...]
    kept: Kept
    rows: int
    """How many rows its log knows of, at most."""

    def of_vnode(self, vnode: int, vnode_count: int) -> Sequence[tuple[int, Piece]]:
        """Return the pieces of a vnode with their numbers. Few pieces are spread over all vnodes."""
        count = len(self.pieces)
        if count > vnode_count:
            numbers = range(vnode, count, vnode_count)
        else:
            # The only one for which `at * vnode_count // count` may be the vnode.
            at = -(-vnode * count // vnode_count)
            numbers = range(at, at + (at < count and at * vnode_count // count == vnode))
        return [(at, self.pieces[at]) for at in numbers]


@lru_cache(maxsize=4)
def snapshot_of(place: DeltaPlace, version: int) -> Snapshot:
    """Return a table at a version. Raises RefusedTableError if its log no longer has it."""
    table = opened(place, version)
    files: list[tuple[DataFile, int | None]] = []
    for action in pa.table(table.get_add_actions()).to_pylist():
        one = DataFile(unquote(action["path"]), action.get("partition") or {}, marked=False)
        files.append((one, action["num_records"]))
    files.sort(key=lambda one: one[0].path)
    pieces = [piece for one, rows in files for piece in _pieces(one, rows)]
    return Snapshot(tuple(pieces), _marks(place, version), sum(rows or 0 for _, rows in files))


def _pieces(file: DataFile, rows: int | None) -> Iterator[Piece]:
    if rows is None:
        yield Piece(file, 0, None)
        return
    bounds = [*range(0, rows, PIECE_ROWS), rows]
    yield from (Piece(file, first, end) for first, end in pairwise(bounds))


@lru_cache(maxsize=4)
def _marks(place: DeltaPlace, version: int) -> Kept:
    table = opened(place, version)
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
    reached: dict[int, Position | None] = {}
    rows: dict[int, int] = {}
    batches: list[pa.RecordBatch] = []
    if version is None:
        return ArrowPage((), {}, {span.vnode: None for span in block})
    snapshot, files, left = snapshot_of(place, version), Files.of(place), size.rows
    for span in block:
        reached[span.vnode] = None
        for batch, upto in _of_span(files, relation, snapshot, span, left if size.exact else None):
            batches.append(_wired(relation, batch, span.vnode))
            rows[span.vnode] = rows.get(span.vnode, 0) + batch.num_rows
            left -= batch.num_rows
            if left <= 0:
                reached[span.vnode] = upto
                return ArrowPage(tuple(batches), rows, reached)
    return ArrowPage(tuple(batches), rows, reached)


def _of_span(
    files: Files, relation: Relation, snapshot: Snapshot, span: Span, most: int | None
) -> Iterator[tuple[pa.Table, Position]]:
    """Yield the rows of a vnode after its position, each time with the position behind them."""
    number, row = (-1, 0) if span.after is None else (int(span.after[0] or 0), int(span.after[1] or 0))
    for at, piece in snapshot.of_vnode(span.vnode, relation.vnode_count):
        if at < number:
            continue
        first = row if at == number else piece.first
        for begins, batch in _read(files, relation, piece.file, first, piece.end):
            kept = _kept(snapshot.kept.get(piece.file.path), begins, batch)
            if most is not None and kept.num_rows > most:
                places = _places(snapshot.kept.get(piece.file.path), begins, batch.num_rows)
                yield kept.slice(0, most), (str(at), str(begins + places[most - 1].as_py() + 1))
                # A limit ends the page here.
                return
            if most is not None:
                most -= kept.num_rows
            yield kept, (str(at), str(begins + batch.num_rows))


def _places(kept: pa.BooleanArray | None, first: int, count: int) -> Any:
    every = pa.array(range(count), pa.int64())
    return every if kept is None else every.filter(kept.slice(first, count))


def _kept(kept: pa.BooleanArray | None, first: int, batch: pa.Table) -> pa.Table:
    return batch if kept is None else batch.filter(kept.slice(first, batch.num_rows))


def _read(
    files: Files, relation: Relation, one: DataFile, first: int, end: int | None, more: Sequence[str] = ()
) -> Iterator[tuple[int, pa.Table]]:
    """Yield rows of a file from `first` to `end`, in batches, each with the number of its first row.

    They have the columns of the relation in their wire types, and `more`.
    """
    try:
        with files.system.open_input_file(one.path) as opened_file:
            parquet = pq.ParquetFile(opened_file, coerce_int96_timestamp_unit="us")
            there = set(parquet.schema_arrow.names)
            names = [name for name in (*(column.name for column in relation.columns), *more) if name in there]
            begins = 0
            for group in range(parquet.num_row_groups):
                count = parquet.metadata.row_group(group).num_rows
                if begins + count > first and (end is None or begins < end):
                    at = begins
                    for batch in parquet.iter_batches(BATCH_ROWS, row_groups=[group], columns=names):
                        low, high = max(first - at, 0), batch.num_rows if end is None else min(end - at, batch.num_rows)
                        if low < high:
                            part = batch.slice(low, high - low)
                            yield at + low, _columns(relation, part, one, more)
                        at += batch.num_rows
                begins += count
    except FileNotFoundError:
        raise lacking(
            files, f"file {one.path} of the Delta table is gone: VACUUM has removed a version that was still to be read"
        ) from None


def _columns(relation: Relation, batch: pa.RecordBatch, one: DataFile, more: Sequence[str]) -> pa.Table:
    """Return the columns of a relation in their wire types. Those that a file lacks are NULL or of its partition."""
    schema, columns = read_schema(relation), dict[str, Any]()
    for column in relation.columns:
        wanted = schema.field(column.name).type
        if column.name in batch.schema.names:
            value = _wire(batch.column(column.name), column.type, wanted)
        else:
            value = _partition(one.values.get(column.name), column.type, wanted, batch.num_rows)
        if not column.nullable and value.null_count:
            raise RefusedRowError(f'column "{column.name}" of the primary key is NULL in file {one.path}')
        columns[column.name] = value
    return pa.table(columns | {name: batch.column(name) for name in more})


def _wire(value: Any, kind: ColumnType, wanted: pa.DataType) -> Any:
    """Return a column of a file in its wire type."""
    if pa.types.is_timestamp(value.type) and kind.name is TypeName.TIMESTAMPTZ and value.type.tz is None:
        # Spark's older form has no zone, and is UTC.
        value = pc.cast(value, pa.timestamp("us"), safe=False)
    if pa.types.is_list(value.type) and not pa.types.is_list(wanted):
        return pa.array([_texts(one) for one in value.to_pylist()], wanted)
    return value if value.type.equals(wanted) else pc.cast(value, wanted, safe=not pa.types.is_timestamp(wanted))


def _texts(elements: Sequence[Any] | None) -> str | None:
    """Return an array whose elements Arrow does not carry to Spark: as a JSON array of their texts."""
    if elements is None:
        return None
    return json.dumps([f"{one:f}" if isinstance(one, Decimal) else one for one in elements])


def _partition(value: Any, kind: ColumnType, wanted: pa.DataType, count: int) -> Any:
    """Return a value of a file's partition, which Delta's log has as a text."""
    given: Any = None if value == "" else value
    scalar: Any = pa.scalar(given)
    if isinstance(value, str) and kind.name in {TypeName.TIMESTAMP, TypeName.TIMESTAMPTZ}:
        scalar = pc.cast(scalar, pa.timestamp("us", "UTC") if value.endswith("Z") else pa.timestamp("us"))
    return pa.repeat(pc.cast(scalar, wanted, safe=False), count)


def _wired(relation: Relation, rows: pa.Table, vnode: int) -> pa.RecordBatch:
    """Return rows as they arrive from a store."""
    schema = read_schema(relation)
    arrays = [rows.column(column.name).combine_chunks() for column in relation.columns]
    vnodes = pa.repeat(pa.scalar(vnode, pa.int16()), rows.num_rows)
    return pa.RecordBatch.from_arrays([vnodes, *(_single(one) for one in arrays)], schema=schema)


def _single(column: Any) -> Any:
    return column.chunk(0) if isinstance(column, pa.ChunkedArray) else column


def changes_of(
    place: DeltaPlace, relation: Relation, after: int | None, upto: int
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the net changes between two versions: the old row of each key first, then the new ones.

    Changes of more than `CHANGES_MAX` rows are read several times, those of a part of the keys at a time. Raises
    RefusedTableError if the log or a file of them is gone.
    """
    files = Files.of(place)
    if after is None:
        snapshot = snapshot_of(place, upto)
        for piece in snapshot.pieces:
            for begins, batch in _read(files, relation, piece.file, piece.first, piece.end):
                yield LIVE, _wired(relation, _kept(snapshot.kept.get(piece.file.path), begins, batch), 0)
        return
    commits = {version: commit_of(files, version) for version in range(after + 1, upto + 1)}
    parts = -(-sum(_changed_rows(files, commit) for commit in commits.values()) // CHANGES_MAX)
    if parts <= 1:
        yield from _changes(files, place, relation, commits, _all)
        return
    key = [part.name for part in relation.key]
    for wanted in (CLOSE, LIVE):
        for part in range(parts):
            found = _changes(files, place, relation, commits, partial(_of_part, key, parts, part))
            yield from ((operation, rows) for operation, rows in found if operation == wanted)


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
            yield operation, _wired(relation, rows, 0)


def _changed_rows(files: Files, commit: Commit) -> int:
    """Return how many rows the files have from which the changes of a commit follow."""
    count = 0
    for one in commit.changes or (*commit.added, *commit.removed):
        with suppress(FileNotFoundError), files.system.open_input_file(one.path) as opened_file:
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
        for _, batch in _read(files, relation, one, 0, None, more=[_CHANGE]):
            old = pc.is_in(batch.column(_CHANGE), pa.array(_OLD))
            rows = batch.drop_columns([_CHANGE])
            yield CLOSE, rows.filter(old)
            yield LIVE, rows.filter(pc.invert(old))


def _by_files(
    files: Files, place: DeltaPlace, relation: Relation, version: int, commit: Commit
) -> Iterator[tuple[int, pa.Table]]:
    """Yield what follows from files that were added, removed, or marked."""
    before = _marks(place, version - 1) if any(one.marked for one in commit.removed) else {}
    now = _marks(place, version) if any(one.marked for one in commit.added) else {}
    added, removed = {one.path: one for one in commit.added}, {one.path: one for one in commit.removed}
    for path, one in {**removed, **added}.items():
        for begins, batch in _read(files, relation, one, 0, None):
            was = _rows_there(path in removed, before.get(path), begins, batch.num_rows)
            is_there = _rows_there(path in added, now.get(path), begins, batch.num_rows)
            yield CLOSE, batch.filter(pc.and_not(was, is_there))
            yield LIVE, batch.filter(pc.and_not(is_there, was))


def _rows_there(there: bool, kept: pa.BooleanArray | None, first: int, count: int) -> Any:  # noqa: FBT001 - of a file
    """Return which of some rows a table has: none if the file is no part of it."""
    if not there or kept is None:
        return pa.repeat(pa.scalar(there), count)
    return kept.slice(first, count)
