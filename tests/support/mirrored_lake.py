"""Delta tables that hold what tables of a service hold, brought there by another program: by delta-rs alone.

The tables, called `m_<name>`, are changed by statements. `sync` makes a Delta table equal to its table, by a MERGE of
the rows that differ, or by a DELETE and an append.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any, Final

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from tests.support.service import Service
from tests.support.spark_lake import SparkWriter
from tests.support.waiting import until

FED: Final = {"delta.enableChangeDataFeed": "true"}
_PROPERTIES: Final = (
    {"delta.enableChangeDataFeed": "true", "delta.enableDeletionVectors": "false"},
    {"delta.enableChangeDataFeed": "false", "delta.enableDeletionVectors": "true"},
    {"delta.enableChangeDataFeed": "true", "delta.enableDeletionVectors": "true"},
)
"""Those of tables that Spark makes, in turn."""
_COLUMN: Final = re.compile(r"(\w+) (integer|bigint|text|date|numeric\(15,2\))")
_KEY: Final = re.compile(r"(\w+) \w+ primary key|primary key \(([\w, ]+)\)")
_TYPES: Final = {
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "text": pa.string(),
    "date": pa.date32(),
    "numeric(15,2)": pa.decimal128(15, 2),
}


@dataclass(frozen=True, slots=True)
class Mirrored:
    """Tables by name, each with its CREATE TABLE, in a service and in a folder of Delta tables."""

    service: Service
    folder: Path
    texts: Mapping[str, str]
    spark: SparkWriter | None = None
    """The other program, if it is not delta-rs: a Spark session."""
    held: dict[str, pa.Table] = field(default_factory=dict[str, pa.Table])
    """What the Delta tables hold."""

    def mirror(self, text: str) -> str:
        """Return a query or a statement over the tables of the service, in place of those of the lake."""
        return re.sub(rf"\b({'|'.join(self.texts)})\b", r"m_\1", text)

    def create(self) -> None:
        """Create both, the Delta ones with what the others hold by now."""
        for number, name in enumerate(self.texts):
            rows = self.held[name] = self._rows(name)
            if self.spark is None:
                write_deltalake(self.folder / name, rows, configuration=FED)
            else:
                self.spark.create(self.folder / name, rows, _PROPERTIES[number % len(_PROPERTIES)])
            place = f"WITH (connector = 'deltalake', location = '{self.folder / name}')"
            self.service.run(f"CREATE TABLE {name} (*, PRIMARY KEY ({', '.join(self._key(name))})) {place}")

    def sync(self, random: Random, names: Iterable[str]) -> None:
        """Bring changes of some tables into the lake."""
        for name in names:
            rows, merges = self._rows(name), random.random() < 0.5
            if merges and self.spark is not None:
                self.spark.merge(self.folder / name, rows, self._key(name))
            elif merges:
                self._merge(name, rows)
            else:
                self._replace(name, rows)
            self.held[name] = rows

    def _rows(self, name: str) -> pa.Table:
        columns = dict(_COLUMN.findall(self.texts[name].partition("(")[2]))
        found = self.service.stored(f"SELECT {', '.join(columns)} FROM live.m_{name}")
        schema = pa.schema([(one, _TYPES[kind]) for one, kind in columns.items()])
        return pa.Table.from_pylist([dict(zip(columns, row, strict=True)) for row in found], schema)

    def _key(self, name: str) -> Sequence[str]:
        (alone, several), *_ = _KEY.findall(self.texts[name])
        return [alone] if alone else several.split(", ")

    def _merge(self, name: str, rows: pa.Table) -> None:
        key = self._key(name)
        # delta-rs binds `or` tighter.
        differs = " or ".join(f"(t.{one} is distinct from s.{one})" for one in rows.schema.names if one not in key)
        merge = DeltaTable(self.folder / name).merge(rows, _same("s", "t", key), source_alias="s", target_alias="t")
        merge.when_matched_update_all(
            differs
        ).when_not_matched_insert_all().when_not_matched_by_source_delete().execute()

    def _replace(self, name: str, rows: pa.Table) -> None:
        """Delete the rows that changed or are gone, and append those that came."""
        key = self._key(name)
        known = {tuple(row.values()) for row in self.held[name].to_pylist()}
        wanted = {tuple(row.values()) for row in rows.to_pylist()}
        lost = [dict(zip(rows.schema.names, row, strict=True)) for row in known - wanted]
        gone = " or ".join(f"({' and '.join(f'{one} = {row[one]}' for one in key)})" for row in lost)
        come = pa.Table.from_pylist(
            [dict(zip(rows.schema.names, row, strict=True)) for row in wanted - known], rows.schema
        )
        if self.spark is not None:
            self.spark.replace(self.folder / name, gone, come)
            return
        if gone:
            DeltaTable(self.folder / name).delete(gone)
        if come.num_rows:
            write_deltalake(self.folder / name, come, mode="append")


def in_lake(location: Path, columns: Sequence[str] | None = None) -> list[tuple[object, ...]]:
    """Return the rows of a Delta table as delta-rs reads them, in an order of their own, as a SELECT shows values."""
    read = DeltaTable(location).to_pyarrow_table(columns=None if columns is None else list(columns)).to_pylist()
    return sorted((tuple(shown(one) for one in row.values()) for row in read), key=repr)


def until_has(
    service: Service, name: str, found: Callable[[], list[tuple[object, ...]]], expected: list[tuple[object, ...]]
) -> None:
    """Wait until a relation has these rows."""
    until(
        lambda: found() == expected,
        what=lambda: (name, found()[:5], expected[:5], service.log_tail()),
        seconds=600,
    )


def shown(value: Any) -> object:
    """Return a value as a SELECT shows it."""
    if isinstance(value, Decimal):
        return str(value)
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def _same(one: str, other: str, key: Sequence[str]) -> str:
    return " and ".join(f"{one}.{part} = {other}.{part}" for part in key)
