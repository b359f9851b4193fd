"""Folders into which programs drop Parquet files, for tests."""

import os
from collections.abc import Iterable
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from service.protocol.columns import Column, KeyColumn
from service.protocol.connector import Connector
from service.protocol.delta_source import chosen_columns
from service.protocol.file_source import NAME, folder_columns
from service.protocol.ids import RelationId
from service.protocol.relation import Relation, RelationKind
from workers.connectors.folder_watch import describe

VNODES = 8


def rows(first: int, count: int, city: str = "Oslo") -> pa.Table:
    """Return so many rows with ids from `first` on."""
    ids = range(first, first + count)
    amounts = [Decimal(one % 17 - 3).scaleb(-1) for one in ids]
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "city": pa.array([city if one % 3 else None for one in ids]),
            "amount": pa.array(amounts, pa.decimal128(10, 2)),
        }
    )


def drop(path: Path, table: pa.Table, *, group_rows: int = 1000) -> Path:
    """Write a file beside its place, and move it there whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}")
    pq.write_table(table, beside, row_group_size=group_rows)
    beside.rename(path)
    return path


def touch(path: Path) -> None:
    """Change the time of a file, and nothing else."""
    found = path.stat()
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns + 1_000_000))


def relation_of(options: dict[str, str], wanted: Iterable[Column] | None = None) -> Relation:
    """Return the relation of a folder, with the key `id`."""
    chosen = None if wanted is None else tuple(wanted)
    return Relation(
        id=RelationId(5),
        name="t",
        kind=RelationKind.TABLE,
        columns=chosen_columns(folder_columns(describe(options).schema, chosen), chosen, ["id"]),
        key=(KeyColumn(name="id"),),
        vnode_count=VNODES,
        lake=Connector(name=NAME, options=options),
    )
