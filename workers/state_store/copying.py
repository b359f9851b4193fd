"""Copy Arrow batches into Postgres as CSV, for columns that binary COPY does not take (`workers.state_store.wire`)."""

import io
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pyarrow.csv

from service.protocol.quoting import quoted


def copy_csv(cursor: Any, table: str, batches: Iterable[pa.RecordBatch | pa.Table]) -> None:
    """Copy batches into a table's columns of their names. Types that CSV does not carry are texts already."""
    incoming = iter(batches)
    first = next(incoming, None)
    if first is None:
        return
    names = ", ".join(quoted(name) for name in first.schema.names)
    with cursor.copy(f"copy {table} ({names}) from stdin (format csv)") as copy:
        copy.write(_csv(first))
        for batch in incoming:
            copy.write(_csv(batch))


def _csv(batch: pa.RecordBatch | pa.Table) -> bytes:
    """Return a batch as CSV. NULL is an empty field and an empty text a quoted one, as Postgres expects."""
    sink = io.BytesIO()
    pyarrow.csv.write_csv(batch, sink, pyarrow.csv.WriteOptions(include_header=False))
    return sink.getvalue()
