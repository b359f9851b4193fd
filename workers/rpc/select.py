"""Compute a query in Spark, whose rows a user waits for: in a process of its own (`workers.rpc.apart`)."""

from collections.abc import Sequence
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own customary name

from service.protocol.columns import ColumnType, TypeName
from service.protocol.request import Select, Selected
from workers.engines.whole import blocks_of
from workers.rpc.verify_stages import exchanging, staged
from workers.state_store.port import VersionedStore
from workers.state_store.wire import ticked


def select(spark: SparkSession, store: VersionedStore, request: Select, *, parallelism: int) -> Selected:
    """Return the rows. Raises ValueError for too many rows or bytes, and Spark's errors."""
    blocks = blocks_of(request.relation.vnode_count, parallelism)
    frame = staged(exchanging(spark, parallelism), store, request, blocks=blocks, tasks=parallelism)
    texts = [text_of(one.name, one.type).alias(one.name) for one in request.relation.visible]
    found = frame.select(*texts).limit(request.rows_max + (not request.any_rows)).collect()
    if len(found) > request.rows_max:
        msg = f"the result has more than {request.rows_max} rows (row_limit) to be put in order: give it a LIMIT"
        raise ValueError(msg)
    rows = tuple(tuple(row) for row in found)
    if sum(map(size_of, rows)) > request.bytes_max:
        msg = f"the result is larger than {request.bytes_max} bytes: select fewer or narrower rows, or read it in Spark"
        raise ValueError(msg)
    return Selected(id=request.id, rows=rows)


def size_of(row: Sequence[str | None]) -> int:
    """Return about how many bytes of JSON a row is: a NULL and a short text take some, too."""
    return 3 + sum(5 if value is None else len(value) + 3 for value in row)


def text_of(name: str, kind: ColumnType) -> Any:
    """Return a column as texts that Postgres reads. An array is a JSON array of such texts."""
    column = F.col(ticked(name))
    if kind.array:
        return F.to_json(F.transform(column, lambda element: _text(element, kind.element)))
    return _text(column, kind)


def _text(value: Any, kind: ColumnType) -> Any:
    if kind.name is TypeName.BYTEA:
        return F.concat(F.lit("\\x"), F.lower(F.hex(value)))
    return value.cast("string")
