"""Read rows from Arrow or Parquet in slices, convert them to the table's types, and print them as CSV.

This module owns pyarrow in the service. A value that the column's type cannot keep exactly is refused with its row and
column, never altered. A string is accepted for any type, as Postgres's text of the value. The file comes from a client,
so every batch is validated in full before its values are read.
"""

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.ipc as pa_ipc
import pyarrow.parquet as pa_parquet

from service.columnar.child import TOO_MUCH
from service.domain.errors import Invalid
from service.protocol.columns import Column, ColumnType, TypeName
from service.protocol.quoting import array_literal

_Array: TypeAlias = "pa.Array[Any]"
_Convert: TypeAlias = "Callable[[_Array, ColumnType], _Array | None]"

SLICE_ROWS: Final = 8_192
"""Rows that are converted at a time. This bounds memory (I8) and the search for an invalid row."""

SLICE_BYTES: Final = 8 << 20
"""Limit of the decoded size of such a slice. A few encoded bytes may stand for as many values as there are rows. Larger
slices are halved.
"""

_UNREADABLE: Final = (pa.ArrowException, OSError, ValueError, TypeError, KeyError)
"""The errors that pyarrow raises for a file that does not have its declared format."""
_PRINTED: Final = pa_csv.WriteOptions(include_header=False, quoting_style="all_valid")


@dataclass(frozen=True, slots=True)
class ArrowRows:
    """The rows of an opened file."""

    names: tuple[str, ...]
    batches: Iterator[pa.RecordBatch]

    def csv_of(self, columns: Sequence[Column]) -> Iterator[bytes]:
        """Yield the rows as CSV in the order of `columns`, which are all columns of the file. Raises Invalid."""
        places = [self.names.index(column.name) for column in columns]
        first = 1
        for part in _readable(_slices(self.batches)):
            arrays = [
                _converted(part.column(place), column, first) for place, column in zip(places, columns, strict=True)
            ]
            yield _printed(arrays)
            first += part.num_rows


def opened_stream(path: Path) -> ArrowRows:
    """Open an Arrow IPC stream. Raises Invalid."""
    try:
        reader = pa_ipc.open_stream(pa.memory_map(str(path)))
    except _UNREADABLE as error:
        raise _unreadable(error) from error
    return ArrowRows(tuple(reader.schema.names), iter(reader))


def opened_parquet(path: Path) -> ArrowRows:
    """Open a Parquet file. Raises Invalid."""
    try:
        source = _mapped(path)
        names = tuple(source.schema_arrow.names)
    except _UNREADABLE as error:
        raise _unreadable(error) from error
    return ArrowRows(names, source.iter_batches(batch_size=SLICE_ROWS))


def _mapped(path: Path) -> pa_parquet.ParquetFile:
    """Open a file so that a value that many rows share is in memory once."""
    schema = pa_parquet.read_schema(pa.memory_map(str(path)))
    once = [field.name for field in schema if _is_text(field.type) or _is_binary(field.type)]
    return pa_parquet.ParquetFile(pa.memory_map(str(path)), read_dictionary=once)


def _slices(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        # Validated before anything else reads it, because invalid offsets would be followed outside the buffers.
        batch.validate(full=True)
        for start in range(0, batch.num_rows, SLICE_ROWS):
            yield from _small(batch.slice(start, SLICE_ROWS))


def _small(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Halve rows until their decoded size is small."""
    if rows.num_rows <= 1 or sum(_total(_sizes(column)) for column in rows.columns) <= SLICE_BYTES:
        yield rows
        return
    half = rows.num_rows // 2
    yield from _small(rows.slice(0, half))
    yield from _small(rows.slice(half))


def _sizes(array: Any) -> Any:
    """Return an upper bound of the decoded bytes of each row."""
    kind = array.type
    if isinstance(array, pa.ExtensionArray):
        return _sizes(array.storage)
    if pa.types.is_dictionary(kind):
        return _sizes(array.dictionary).take(array.indices)
    if pa.types.is_run_end_encoded(kind):
        whole = pa.RunEndEncodedArray.from_arrays(array.run_ends, _sizes(array.values))
        return pc.call_function("run_end_decode", [whole.slice(array.offset, len(array))])
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        # Many views may share the same bytes. A view is four words, and the first is its length.
        end = array.offset + len(array)
        words = pa.Array.from_buffers(pa.int32(), 4 * end, [None, array.buffers()[1]])
        lengths = words.take(pa.array(range(4 * array.offset, 4 * end, 4), pa.int64()))
        return pc.if_else(array.is_valid(), lengths, 0).cast(pa.int64())
    if _is_text(kind) or _is_binary(kind):
        return pc.binary_length(array).cast(pa.int64())
    if _is_list(kind):
        largest = pc.max(_sizes(pc.list_flatten(array))).as_py() or 0
        return pc.multiply(pc.list_value_length(array).cast(pa.int64()), largest)
    return pa.repeat(pa.scalar(array.nbytes // max(len(array), 1), pa.int64()), len(array))


def _total(sizes: Any) -> int:
    return pc.sum(sizes).as_py() or 0


def _readable(parts: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    try:
        yield from parts
    except _UNREADABLE as error:
        raise _unreadable(error) from error


def _unreadable(error: Exception) -> Invalid:
    if isinstance(error, MemoryError):
        return Invalid(TOO_MUCH)
    return Invalid(f"the body cannot be read as what it is said to be: {error}")


def _printed(arrays: Sequence[_Array]) -> bytes:
    sink = BytesIO()
    pa_csv.write_csv(pa.record_batch(list(arrays), names=[str(place) for place in range(len(arrays))]), sink, _PRINTED)
    return sink.getvalue()


def _converted(array: _Array, column: Column, first: int) -> _Array:
    """Return the array in a type whose printed form Postgres reads as the column's type. Raises Invalid."""
    try:
        return _as(array, column.type)
    except _Misfit as error:
        raise Invalid(f'column "{column.name}": {error}') from None
    except (pa.ArrowException, ValueError) as error:
        row = first + _first_bad(array, column.type)
        raise Invalid(f'row {row}, column "{column.name}": {error}') from error


class _Misfit(Exception):
    """The array's type cannot be converted to the column's."""


def _first_bad(array: _Array, kind: ColumnType) -> int:
    for place in range(len(array)):
        try:
            _as(array.slice(place, 1), kind)
        except (pa.ArrowException, ValueError):
            return place
    return 0


def _as(array: _Array, kind: ColumnType) -> _Array:
    array = _plain(array)
    source = array.type
    if pa.types.is_null(source) or _is_text(source):
        return array.cast(pa.string())
    if kind.array:
        if not _is_list(source):
            raise _Misfit(f"{kind} is expected, not {source}")
        return _array_literals(array, kind.element)
    convert = _CONVERT.get(kind.name)
    converted = None if convert is None else convert(array, kind)
    if converted is None:
        raise _Misfit(f"{kind} is expected, not {source}")
    return converted


def _plain(array: _Array) -> _Array:
    """Return the values behind an encoding or an extension type."""
    if isinstance(array, pa.ExtensionArray):
        return _plain(array.storage)
    if pa.types.is_dictionary(array.type):
        return _plain(array.cast(array.type.value_type))
    if pa.types.is_run_end_encoded(array.type):
        return _plain(pc.call_function("run_end_decode", [array]))
    return array


def _is_text(source: pa.DataType) -> bool:
    return pa.types.is_string(source) or pa.types.is_large_string(source) or pa.types.is_string_view(source)


def _is_binary(source: pa.DataType) -> bool:
    return pa.types.is_binary(source) or pa.types.is_large_binary(source) or pa.types.is_binary_view(source)


def _is_list(source: pa.DataType) -> bool:
    return pa.types.is_list(source) or pa.types.is_large_list(source) or pa.types.is_fixed_size_list(source)


def _array_literals(array: _Array, element: ColumnType) -> _Array:
    texts: list[str | None] = _as(pc.list_flatten(array), element).cast(pa.string()).to_pylist()
    taken = iter(texts)
    lengths: list[int | None] = pc.list_value_length(array).to_pylist()
    rows = [None if length is None else array_literal([next(taken) for _ in range(length)]) for length in lengths]
    return pa.array(rows, pa.string())


def _cast(accepts: Callable[[pa.DataType], bool], target: pa.DataType) -> _Convert:
    """Return a conversion that accepts some types, and refuses each value that the cast would alter."""

    def convert(array: _Array, _kind: ColumnType) -> "_Array | None":
        return array.cast(target) if accepts(array.type) else None

    return convert


def _numeric(array: _Array, kind: ColumnType) -> "_Array | None":
    if pa.types.is_integer(array.type):
        return array
    # A binary float is not the decimal that its writer meant. The client must cast it, knowingly.
    return array.cast(pa.decimal128(kind.precision, kind.scale)) if pa.types.is_decimal(array.type) else None


def _bytea(array: _Array, _kind: ColumnType) -> "_Array | None":
    source = array.type
    if not (_is_binary(source) or pa.types.is_fixed_size_binary(source)):
        return None
    values: list[bytes | None] = array.to_pylist()
    return pa.array([None if value is None else "\\x" + value.hex() for value in values], pa.string())


def _uuid(array: _Array, _kind: ColumnType) -> "_Array | None":
    if not (pa.types.is_fixed_size_binary(array.type) and array.type.byte_width == 16):
        return None
    values: list[bytes | None] = array.to_pylist()
    return pa.array([None if value is None else str(uuid.UUID(bytes=value)) for value in values], pa.string())


def _is_narrow_float(source: pa.DataType) -> bool:
    return pa.types.is_float16(source) or pa.types.is_float32(source) or pa.types.is_integer(source)


def _is_number(source: pa.DataType) -> bool:
    return pa.types.is_floating(source) or pa.types.is_integer(source)


def _is_local_timestamp(source: pa.DataType) -> bool:
    return pa.types.is_timestamp(source) and source.tz is None


_CONVERT: Final[Mapping[TypeName, _Convert]] = MappingProxyType(
    {
        TypeName.BOOLEAN: _cast(pa.types.is_boolean, pa.bool_()),
        TypeName.SMALLINT: _cast(pa.types.is_integer, pa.int16()),
        TypeName.INTEGER: _cast(pa.types.is_integer, pa.int32()),
        TypeName.BIGINT: _cast(pa.types.is_integer, pa.int64()),
        TypeName.REAL: _cast(_is_narrow_float, pa.float32()),
        TypeName.DOUBLE: _cast(_is_number, pa.float64()),
        TypeName.NUMERIC: _numeric,
        TypeName.BYTEA: _bytea,
        TypeName.UUID: _uuid,
        TypeName.DATE: _cast(pa.types.is_date, pa.date32()),
        TypeName.TIME: _cast(pa.types.is_time, pa.time64("us")),
        TypeName.TIMESTAMP: _cast(_is_local_timestamp, pa.timestamp("us")),
        # A timestamp without a zone is UTC, as everywhere in tidefill.
        TypeName.TIMESTAMPTZ: _cast(pa.types.is_timestamp, pa.timestamp("us", tz="UTC")),
    }
)
"""Text, jsonb and interval accept strings only, which `_as` handles before it uses this table."""
