"""The connector `deltalake`: the options of a sink into a Delta table, and the table's schema.

Option names and `type` are RisingWave's. `docs/sinks.md` describes them for users.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from service.protocol.columns import Column, ColumnType, TypeName

NAME: Final = "deltalake"
APP: Final = "app"
"""The option that tidefill adds: who commits. Delta keeps the last epoch of each app."""
_KNOWN: Final = frozenset({"location", "type", "primary_key", "force_append_only", "commit_interval", APP})
_KINDS: Final = ("append-only", "upsert")
_SECONDS: Final = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_INTERVAL: Final = re.compile(r"(?P<number>\d{1,9}(\.\d{1,3})?) ?(?P<unit>[a-z]*)")
_TYPES: Final = {
    TypeName.BOOLEAN: "boolean",
    TypeName.SMALLINT: "short",
    TypeName.INTEGER: "integer",
    TypeName.BIGINT: "long",
    TypeName.REAL: "float",
    TypeName.DOUBLE: "double",
    TypeName.TEXT: "string",
    TypeName.BYTEA: "binary",
    TypeName.DATE: "date",
    TypeName.TIMESTAMP: "timestamp_ntz",
    TypeName.TIMESTAMPTZ: "timestamp",
    # Delta has no equal type, so these are Postgres's texts.
    TypeName.TIME: "string",
    TypeName.UUID: "string",
    TypeName.JSONB: "string",
    TypeName.INTERVAL: "string",
}


@dataclass(frozen=True, slots=True)
class DeltaOptions:
    """What a sink does to its table: it appends rows, or it keeps the rows that have the `key`."""

    location: str
    app: str
    upsert: bool
    key: tuple[str, ...]
    """Columns that identify a row. Empty if rows are only appended."""
    force_append_only: bool = False
    """Whether rows that ended are left out, so that they stay in the table."""
    commit_seconds: float = 10.0
    """The least time between two commits."""


def read(options: Mapping[str, str], columns: Sequence[Column], key: Sequence[str]) -> DeltaOptions:
    """Return the options of a sink of these columns. `key` is that of its rows. Raises ValueError with the reason."""
    if unknown := options.keys() - _KNOWN:
        raise ValueError(f'unknown option "{min(unknown)}"')
    for column in columns:
        delta_type(column)
    kind = options.get("type", "upsert")
    if kind not in _KINDS:
        raise ValueError(f'type "{kind}" is not one of {", ".join(_KINDS)}')
    force = options.get("force_append_only", "false").lower()
    if force not in ("true", "false"):
        raise ValueError("force_append_only is true or false")
    upsert = kind == "upsert"
    if upsert and force == "true":
        raise ValueError("force_append_only is for type 'append-only'")
    if not upsert and "primary_key" in options:
        raise ValueError("primary_key is for type 'upsert'")
    return DeltaOptions(
        location=_location(options.get("location")),
        app=options.get(APP, ""),
        upsert=upsert,
        key=_key(options.get("primary_key"), columns, key) if upsert else (),
        force_append_only=force == "true",
        commit_seconds=_seconds(options.get("commit_interval", "10 s")),
    )


def delta_type(column: Column) -> object:
    """Return the type of a column in the JSON of Delta's schemas. Raises ValueError for a type that has none."""
    kind = column.type
    if kind.array:
        element = _scalar(column.name, kind.element)
        return {"type": "array", "elementType": element, "containsNull": True}
    return _scalar(column.name, kind)


def delta_schema(columns: Sequence[Column]) -> str:
    """Return the schema of a table of these columns, as Delta writes it. Every column may be NULL."""
    fields = [{"name": one.name, "type": delta_type(one), "nullable": True, "metadata": {}} for one in columns]
    return json.dumps({"type": "struct", "fields": fields})


def _scalar(name: str, kind: ColumnType) -> str:
    if kind.name is not TypeName.NUMERIC:
        return _TYPES[kind.name]
    if kind.precision is None:
        raise ValueError(
            f'column "{name}" is a numeric without precision, which Delta has not: cast it, as in'
            f" {name}::numeric(38, 10)"
        )
    return f"decimal({kind.precision},{kind.scale})"


def _location(text: str | None) -> str:
    path = "" if text is None else text.removeprefix("file://")
    if not path.startswith("/"):
        raise ValueError("location is the absolute path of a folder that workers reach, as in '/data/orders'")
    return path.rstrip("/") or "/"


def _key(named: str | None, columns: Sequence[Column], key: Sequence[str]) -> tuple[str, ...]:
    there = {column.name for column in columns}
    chosen = [one.strip() for one in named.split(",")] if named is not None else list(key)
    if named is not None and (missing := [one for one in chosen if one not in there]):
        raise ValueError(f'primary_key: there is no column "{missing[0]}"')
    if not chosen or not there.issuperset(chosen):
        raise ValueError("the rows' key is no column of the sink: primary_key = '..' names columns that identify a row")
    return tuple(dict.fromkeys(chosen))


def _seconds(text: str) -> float:
    found = _INTERVAL.fullmatch(text.strip().lower())
    if found is None or found["unit"] not in _SECONDS:
        raise ValueError(f"commit_interval \"{text}\" is not a time such as '10 s'")
    return float(found["number"]) * _SECONDS[found["unit"]]
