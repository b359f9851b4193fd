"""The rows of Parquet files that are read in place: pages of many files, and all rows of one.

Files are cut into *pieces*: stretches of at most `PIECE_ROWS` rows of a file, in the order of the files' names. Each
piece belongs to a vnode of the relation, so that actors share them as they share any history. A position in a vnode is
the number of a piece and of a row in its file. Rows therefore have no vnode of their key, and a stage computes it.
"""

import json
import re
import resource
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from itertools import islice
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from service.protocol.columns import ColumnType, TypeName
from service.protocol.relation import Relation
from workers.backfill.order import Position
from workers.backfill.positions import Block, PageSize, Span
from workers.connectors.delta_files import Files, Stamp
from workers.connectors.port import RefusedRowError, RefusedTableError
from workers.memory import allocated
from workers.state_store.port import ArrowPage
from workers.state_store.wire import read_schema

PIECE_ROWS: Final = 1_000_000
PIECES_MAX: Final = 1 << 20
"""The most pieces of a table. A log or a footer may say any number of rows of a file."""
BATCH_ROWS: Final = 1 << 16
BATCH_BYTES: Final = 64 << 20
"""About how many bytes a batch has at most, by what a file says of itself."""
MEMORY: Final = 3 << 30
"""The most memory, in bytes, that a process may allocate to read a file, beyond what it has. A small file may expand to
gigabytes, and only reading it tells.
"""
_UNDECODABLE: Final = re.compile(
    r"deserialize|decompress|[Cc]orrupt|Unexpected end of|page header|[Uu]nknown encoding|[Ii]nvalid (Parquet|number)"
)
"""What Arrow says of pages that it cannot decode. It says so with the class of errors of a storage."""

Kept = Mapping[str, pa.BooleanArray]
"""Which rows of a file are not marked as deleted. Files without marks are left out."""


class GoneFileError(Exception):
    """A file that was still to be read is gone."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file of rows: its path in the table, the values of its partition as Delta's texts, and whether rows of it are
    marked as deleted. With a `stamp` it must have it still when it is read.
    """

    path: str
    values: Mapping[str, str | None]
    marked: bool = False
    stamp: Stamp | None = None


@dataclass(frozen=True, slots=True)
class Piece:
    """Some rows of a file, `end` excluded. None: to its end."""

    file: DataFile
    first: int
    end: int | None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A table at one version."""

    pieces: Sequence[Piece]
    kept: Kept

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


def pieces_of(files: Iterable[tuple[DataFile, int | None]]) -> Sequence[Piece]:
    """Return the pieces of files. The number of a file's rows may be unknown. Raises RefusedTableError."""
    pieces = list(islice(_pieces(files), PIECES_MAX + 1))
    if len(pieces) > PIECES_MAX:
        raise RefusedTableError(f"its files say more rows than {PIECES_MAX} pieces of {PIECE_ROWS} can have")
    return pieces


def _pieces(files: Iterable[tuple[DataFile, int | None]]) -> Iterator[Piece]:
    for file, rows in files:
        if rows is None:
            yield Piece(file, 0, None)
        else:
            yield from (Piece(file, first, min(first + PIECE_ROWS, rows)) for first in range(0, rows, PIECE_ROWS))


def page_of_pieces(files: Files, relation: Relation, snapshot: Snapshot, block: Block, *, size: PageSize) -> ArrowPage:
    """Read a page of a block. Raises GoneFileError, and RefusedTableError for a file that changed."""
    reached: dict[int, Position | None] = {}
    rows: dict[int, int] = {}
    batches: list[pa.RecordBatch] = []
    left = size.rows
    for span in block:
        reached[span.vnode] = None
        for batch, upto in _of_span(files, relation, snapshot, span, left if size.exact else None):
            batches.append(wired(relation, batch, span.vnode))
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
        for begins, batch in read_rows(files, relation, piece.file, first, piece.end):
            kept = kept_rows(snapshot.kept.get(piece.file.path), begins, batch)
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


def kept_rows(kept: pa.BooleanArray | None, first: int, batch: pa.Table) -> pa.Table:
    """Return the rows of a batch, which begins at row `first` of its file, that are not marked."""
    return batch if kept is None else batch.filter(kept.slice(first, batch.num_rows))


def read_rows(
    files: Files, relation: Relation, one: DataFile, first: int, end: int | None, more: Sequence[str] = ()
) -> Iterator[tuple[int, pa.Table]]:
    """Yield rows of a file from `first` to `end`, in batches, each with the number of its first row.

    They have the columns of the relation in their wire types, and `more`. Raises GoneFileError, and RefusedTableError
    for a file that changed, or that takes too much memory.
    """
    with _read(one.path), bounded(one.path):
        if one.stamp is not None and files.stamp(one.path) != one.stamp:
            raise RefusedTableError(f'file "{one.path}" has changed since it was first read')
        with files.opened(one.path) as opened_file:
            parquet = pq.ParquetFile(opened_file, coerce_int96_timestamp_unit="us")
            there = set(parquet.schema_arrow.names)
            names = [name for name in (*(column.name for column in relation.columns), *more) if name in there]
            begins = 0
            for group in range(parquet.num_row_groups):
                said = parquet.metadata.row_group(group)
                count, size = said.num_rows, _batch_rows(said)
                if begins + count > first and (end is None or begins < end):
                    at = begins
                    for batch in parquet.iter_batches(size, row_groups=[group], columns=names):
                        low, high = max(first - at, 0), batch.num_rows if end is None else min(end - at, batch.num_rows)
                        if low < high:
                            part = batch.slice(low, high - low)
                            yield at + low, _columns(relation, part, one, more)
                        at += batch.num_rows
                begins += count


def _batch_rows(group: Any) -> int:
    """Return how many rows of a group a batch has."""
    width = max(group.total_byte_size, 1) / max(group.num_rows, 1)
    return max(1, min(BATCH_ROWS, int(BATCH_BYTES / width)))


@contextmanager
def bounded(path: str) -> Generator[None]:
    """Bound what this process may allocate beyond what it has (I13), so that no other thread of it lacks memory before.

    Raises RefusedTableError if a file takes more.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = allocated() + MEMORY
    resource.setrlimit(resource.RLIMIT_DATA, (wanted if soft == resource.RLIM_INFINITY else min(wanted, soft), hard))
    try:
        yield
    except MemoryError:
        raise RefusedTableError(f'file "{path}" takes more than {MEMORY >> 20} MB of memory to read') from None
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


@contextmanager
def _read(path: str) -> Generator[None]:
    """Raise GoneFileError if a file is gone, and RefusedTableError if it cannot be decoded."""
    try:
        yield
    except FileNotFoundError:
        raise GoneFileError(path) from None
    except (pa.ArrowInvalid, OSError) as error:
        if isinstance(error, pa.ArrowInvalid) or _UNDECODABLE.search(str(error)) is not None:
            raise RefusedTableError(f'file "{path}" cannot be decoded: {error}') from error
        raise


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
    if _is_list(value.type) and not _is_list(wanted):
        return pa.array([_texts(one) for one in value.to_pylist()], wanted)
    return value if value.type.equals(wanted) else pc.cast(value, wanted, safe=not pa.types.is_timestamp(wanted))


def _is_list(kind: pa.DataType) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind)


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


def wired(relation: Relation, rows: pa.Table, vnode: int) -> pa.RecordBatch:
    """Return rows as they arrive from a store."""
    schema = read_schema(relation)
    arrays = [rows.column(column.name).combine_chunks() for column in relation.columns]
    vnodes = pa.repeat(pa.scalar(vnode, pa.int16()), rows.num_rows)
    return pa.RecordBatch.from_arrays([vnodes, *(_single(one) for one in arrays)], schema=schema)


def _single(column: Any) -> Any:
    return column.chunk(0) if isinstance(column, pa.ChunkedArray) else column
