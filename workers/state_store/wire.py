"""How each column type travels, exactly or as text: Postgres -> Arrow -> Spark -> Arrow -> Postgres.

Two ways lead back into Postgres. *Binary* COPY (ADBC) is the faster one. It takes the native types, numeric as decimal,
uuid as sixteen bytes, and lists of native elements. A relation with any other column is written as *CSV*, where such
columns are Postgres texts; a numeric without a precision is one. Reads fetch as text every type that the binary reader
would alter.
"""

import io
from collections.abc import Callable, Iterable
from datetime import date, datetime
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from service.protocol.columns import ColumnType, TypeName
from service.protocol.quoting import quoted
from service.protocol.relation import Relation
from workers.state_store.port import CLOSE, OPERATION, VNODE

_ARROW: Final = {
    TypeName.BOOLEAN: pa.bool_(),
    TypeName.SMALLINT: pa.int16(),
    TypeName.INTEGER: pa.int32(),
    TypeName.BIGINT: pa.int64(),
    TypeName.REAL: pa.float32(),
    TypeName.DOUBLE: pa.float64(),
    TypeName.TEXT: pa.string(),
    TypeName.BYTEA: pa.binary(),
    TypeName.DATE: pa.date32(),
    TypeName.TIMESTAMP: pa.timestamp("us"),
    TypeName.TIMESTAMPTZ: pa.timestamp("us", "UTC"),
}


def native_element(kind: ColumnType) -> bool:
    """Whether Arrow carries a value, or the elements of an array, unchanged. See `ColumnType.native`."""
    return (kind.element if kind.array else kind).native


def read_type(kind: ColumnType) -> pa.DataType:
    """Return the Arrow type in which a column arrives from Postgres."""
    if not native_element(kind):
        return pa.string()
    scalar = _ARROW[kind.name]
    return pa.list_(scalar) if kind.array else scalar


def is_close(batch: pa.RecordBatch) -> pa.BooleanArray:
    """Return for each row whether its operation ends a version."""
    return pc.equal(batch.column(OPERATION), pa.scalar(CLOSE, pa.int8()))


def read_schema(relation: Relation) -> pa.Schema:
    """Return the schema in which a relation's rows arrive: `_vnode`, and the columns in their wire types.

    Those of a lake are in Parquet, from which a numeric comes as a decimal: its text would cost more than all the rest.
    """
    return _schema(relation, read_type if relation.lake is None else _lake_type)


def stored_schema(relation: Relation) -> pa.Schema:
    """Return the schema in which rows of a relation arrive from Postgres, even if the relation lies in a lake."""
    return _schema(relation, read_type)


def _schema(relation: Relation, arrives: Callable[[ColumnType], pa.DataType]) -> pa.Schema:
    columns = [pa.field(column.name, arrives(column.type)) for column in relation.columns]
    return pa.schema([pa.field(VNODE, pa.int16()), *columns])


def _lake_type(kind: ColumnType) -> pa.DataType:
    if kind.array or kind.precision is None:
        return read_type(kind)
    return pa.decimal128(kind.precision, kind.scale or 0)


def from_wire(name: str, kind: ColumnType) -> str:
    """Return the Spark SQL expression that casts a wire column to its Spark type."""
    column = ticked(name)
    if kind.array and not native_element(kind):
        texts = f"from_json({column}, 'array<string>')"
        return texts if kind.spark == "array<string>" else f"cast({texts} as {kind.spark})"
    return f"cast({column} as {kind.spark})" if kind.name is TypeName.NUMERIC else column


def writes_binary(relation: Relation) -> bool:
    """Whether every column of a relation can be written by binary COPY."""
    return all(_writes_binary(column.type) for column in relation.columns)


def copy_csv(cursor: Any, table: str, batches: Iterable[pa.RecordBatch | pa.Table]) -> None:
    """Copy batches into a table's columns of their names as CSV, for columns that binary COPY does not take.

    Types that CSV does not carry are texts already.
    """
    incoming = iter(batches)
    first = next(incoming, None)
    if first is None:
        return
    names = ", ".join(quoted(name) for name in first.schema.names)
    with cursor.copy(f"copy {table} ({names}) from stdin (format csv)") as copy:
        copy.write(_csv(first))
        for batch in incoming:
            copy.write(_csv(batch))


def _writes_binary(kind: ColumnType) -> bool:
    return native_element(kind) or (
        not kind.array and not kind.unbounded and kind.name in {TypeName.NUMERIC, TypeName.UUID}
    )


def to_wire(name: str, kind: ColumnType, *, binary: bool) -> str:
    """Return the Spark SQL expression that casts a column of a Spark type to the type that is written."""
    column = ticked(name)
    if binary:
        return f"unhex(replace({column}, '-', ''))" if kind.name is TypeName.UUID else column
    if kind.array:
        return _array_text(column, kind.element)
    if kind.name is TypeName.BYTEA:
        return f"concat('\\\\x', lower(hex({column})))"
    return column


def _array_text(column: str, element: ColumnType) -> str:
    """Return the expression of a Postgres array literal: every element quoted, NULL bare."""
    text = "concat('\\\\x', lower(hex(x)))" if element.name is TypeName.BYTEA else "cast(x as string)"
    escaped = f"replace(replace({text}, '\\\\', '\\\\\\\\'), '\"', '\\\\\"')"
    item = f"coalesce(concat('\"', {escaped}, '\"'), 'NULL')"
    return f"concat('{{', array_join(transform({column}, x -> {item}), ','), '}}')"


def ticked(name: str) -> str:
    """Return an identifier quoted for Spark SQL."""
    return "`" + name.replace("`", "``") + "`"


def key_text(value: object, kind: ColumnType) -> str | None:
    """Return the Postgres text of a key value from Arrow, as one element of a position."""
    match value:
        case None:
            return None
        case bool():
            return "true" if value else "false"
        case bytes():
            return "\\x" + value.hex()
        case datetime():
            return value.isoformat(sep=" ")
        case date():
            return value.isoformat()
        case float():
            return _float_text(value, kind)
        case _:
            return str(value)


def _float_text(value: float, kind: ColumnType) -> str:
    text = repr(value)
    # float4 values arrive widened to float8; nine digits identify each of them.
    return f"{value:.9g}" if kind.name is TypeName.REAL and text not in {"nan", "inf", "-inf"} else text


def _csv(batch: pa.RecordBatch | pa.Table) -> bytes:
    """Return a batch as CSV. NULL is an empty field and an empty text a quoted one, as Postgres expects."""
    sink = io.BytesIO()
    pyarrow.csv.write_csv(batch, sink, pyarrow.csv.WriteOptions(include_header=False))
    return sink.getvalue()
