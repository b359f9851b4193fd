"""The connector `deltalake`: where a Delta table lies, and the options and the schema of a sink into one.

Option names and `type` are RisingWave's. `docs/sinks.md` describes them for users.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from service.protocol.columns import Column, ColumnType, TypeName

NAME: Final = "deltalake"
APP: Final = "app"
"""The option that tidefill adds: who commits. Delta keeps the last epoch of each app."""
ENDPOINT: Final = "s3.endpoint"
REGION: Final = "s3.region"
ACCESS_KEY: Final = "s3.access.key"
SECRET_KEY: Final = "s3.secret.key"  # noqa: S105 - an option's name
_S3: Final = frozenset({ENDPOINT, REGION, ACCESS_KEY, SECRET_KEY})
PLACE: Final = _S3 | {"location"}
"""The options that say where a table lies."""
_KNOWN: Final = PLACE | {
    "type",
    "primary_key",
    "force_append_only",
    "commit_interval",
    "partition_by",
    "retention",
    APP,
}
IN_A_LAKE: Final = PLACE | {"commit_interval", "partition_by", "retention"}
"""The options of a view whose rows lie in a Delta table."""
_UPSERT: Final = "upsert"
_KINDS: Final = ("append-only", _UPSERT)
STAGING: Final = "_tidefill"
"""The folder of a table in which rows wait for the commit that makes them part of it."""
COMMIT_SECONDS_MAX: Final = 86_400
RETENTION_SECONDS_MAX: Final = 365 * 86_400
_SECONDS: Final = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}
_UNITS: Final = {"hour": "h", "hours": "h", "day": "d", "days": "d"}
_INTERVAL: Final = re.compile(r"(?P<number>\d{1,9}(\.\d{1,3})?) ?(?P<unit>[a-z]*)")
_OBJECT: Final = re.compile(r"s3a?://(?P<path>[a-z0-9][a-z0-9.-]+(/(?!\.{1,2}(/|$))[A-Za-z0-9._=-]+)+)/?")
_ENDPOINT: Final = re.compile(r"https?://[^/@?#]+/?")
_NO_PARTITIONS: Final = {
    TypeName.BYTEA: "its values are no texts",
    TypeName.REAL: "its values are not exact",
    TypeName.DOUBLE: "its values are not exact",
}
_NAMES: Final = {"smallint": "short", "int": "integer", "bigint": "long"}
"""What Delta calls otherwise than Spark does. Types that Spark has not are Postgres's texts in both."""


@dataclass(frozen=True, slots=True)
class ObjectStore:
    """How to reach an object store that speaks S3. `endpoint` is None for Amazon's own."""

    endpoint: str | None
    region: str
    access_key: str = field(repr=False)
    secret_key: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaPlace:
    """Where a table lies: in a folder, or in an object store."""

    location: str
    store: ObjectStore | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaOptions(DeltaPlace):
    """The options of a sink. Its table gets all rows appended, or has one row for each `key`."""

    app: str
    upsert: bool
    key: tuple[str, ...]
    """Columns that identify a row. Empty if rows are only appended."""
    force_append_only: bool = False
    """Whether rows that ended are left out, so that they stay in the table."""
    commit_seconds: float = 10.0
    """The least time between two commits."""
    retention_seconds: float = 86_400.0
    """How long files stay that newer versions have replaced, at least."""
    partitions: tuple[str, ...] = ()
    """Columns whose values have folders of their own."""


def location_of(options: Mapping[str, str]) -> str:
    """Return the location that the options give. Raises ValueError with the reason."""
    return _location(options.get("location"))


def place_of(options: Mapping[str, str]) -> DeltaPlace:
    """Return where the options say that a table lies. Raises ValueError with the reason."""
    location = _location(options.get("location"))
    return DeltaPlace(location=location, store=_store(location, options))


def is_upsert(options: Mapping[str, str]) -> bool:
    """Whether a sink of these options changes rows that it has written."""
    return _kind(options) == _UPSERT


def _kind(options: Mapping[str, str]) -> str:
    return options.get("type", _UPSERT)


def read(options: Mapping[str, str], columns: Sequence[Column], key: Sequence[str]) -> DeltaOptions:
    """Return the options of a sink of these columns. `key` is that of its rows. Raises ValueError with the reason."""
    if unknown := options.keys() - _KNOWN:
        raise ValueError(f'unknown option "{min(unknown)}"')
    for column in columns:
        delta_type(column)
    kind = _kind(options)
    if kind not in _KINDS:
        raise ValueError(f'type "{kind}" is not one of {", ".join(_KINDS)}')
    force = options.get("force_append_only", "false").lower()
    if force not in ("true", "false"):
        raise ValueError("force_append_only is true or false")
    upsert = is_upsert(options)
    if upsert and force == "true":
        raise ValueError("force_append_only is for type 'append-only'")
    if not upsert and "primary_key" in options:
        raise ValueError("primary_key is for type 'upsert'")
    place = place_of(options)
    return DeltaOptions(
        location=place.location,
        store=place.store,
        app=options.get(APP, ""),
        upsert=upsert,
        key=_key(options.get("primary_key"), columns, key) if upsert else (),
        force_append_only=force == "true",
        commit_seconds=_seconds("commit_interval", options.get("commit_interval", "10 s"), COMMIT_SECONDS_MAX),
        retention_seconds=_retention(options, upsert=upsert),
        partitions=_partitions(options.get("partition_by"), columns, upsert=upsert),
    )


def delta_type(column: Column) -> object:
    """Return the type of a column in the JSON of Delta's schemas. Raises ValueError for a type that has none.

    A numeric without precision is a text where users do not see it.
    """
    kind = column.type
    scalar = kind.element if kind.array else kind
    if scalar.unbounded and not column.hidden:
        raise ValueError(
            f'column "{column.name}" is a numeric without precision, which Delta has not: cast it, as in'
            f" {column.name}::numeric(38, 10)"
        )
    name = _NAMES.get(scalar.spark, scalar.spark)
    return {"type": "array", "elementType": name, "containsNull": True} if kind.array else name


def delta_schema(columns: Sequence[Column]) -> str:
    """Return the schema of a table of these columns, as Delta writes it. Every column may be NULL."""
    fields = [{"name": one.name, "type": delta_type(one), "nullable": True, "metadata": {}} for one in columns]
    return json.dumps({"type": "struct", "fields": fields})


def _location(text: str | None) -> str:
    if text is not None and text.startswith(("s3://", "s3a://")):
        found = _OBJECT.fullmatch(text)
        if found is None:
            raise ValueError("location in an object store is s3://bucket/path, of letters, digits and . _ - =")
        return f"s3://{found['path']}"
    path = "" if text is None else text.removeprefix("file://")
    if not path.startswith("/"):
        raise ValueError(
            "location is the absolute path of a folder that workers reach, as in '/data/orders', or 's3://bucket/path'"
        )
    return path.rstrip("/") or "/"


def _store(location: str, options: Mapping[str, str]) -> ObjectStore | None:
    given = sorted(_S3 & options.keys())
    if not location.startswith("s3://"):
        if given:
            raise ValueError(f"{given[0]} is for a location such as s3://bucket/path")
        return None
    for needed in (ACCESS_KEY, SECRET_KEY):
        if not options.get(needed):
            raise ValueError(f"{needed} is missing: an object store asks who writes")
    endpoint = options.get(ENDPOINT)
    if endpoint is None and not options.get(REGION):
        raise ValueError(f"{REGION} is missing, or {ENDPOINT} of another object store than Amazon's")
    if endpoint is not None and _ENDPOINT.fullmatch(endpoint) is None:
        raise ValueError(f"{ENDPOINT} is an address such as https://minio.example:9000")
    return ObjectStore(
        endpoint=None if endpoint is None else endpoint.rstrip("/"),
        region=options.get(REGION) or "us-east-1",
        access_key=options[ACCESS_KEY],
        secret_key=options[SECRET_KEY],
    )


def _partitions(named: str | None, columns: Sequence[Column], *, upsert: bool) -> tuple[str, ...]:
    if named is None:
        return ()
    types = {column.name: column.type for column in columns}
    chosen = tuple(dict.fromkeys(one.strip() for one in named.split(",")))
    for one in chosen:
        if one not in types:
            raise ValueError(f'partition_by: there is no column "{one}"')
        if (reason := _no_partition(types[one], upsert=upsert)) is not None:
            raise ValueError(f'partition_by: column "{one}" cannot be one: {reason}')
    if len(chosen) == len(types):
        raise ValueError("partition_by: a table has other columns besides")
    return chosen


def _no_partition(kind: ColumnType, *, upsert: bool) -> str | None:
    """Return why Delta cannot partition by a type, so that every reader finds the same values."""
    if kind.array:
        return "it is an array"
    if kind.name is TypeName.NUMERIC and kind.scale:
        return "delta-rs writes and reads negative fractions wrongly"
    if kind.name is TypeName.TIMESTAMPTZ and upsert:
        return "a merge of delta-rs leaves out the time zone: use type 'append-only', or a date"
    return _NO_PARTITIONS.get(kind.name)


def _key(named: str | None, columns: Sequence[Column], key: Sequence[str]) -> tuple[str, ...]:
    there = {column.name for column in columns}
    chosen = [one.strip() for one in named.split(",")] if named is not None else list(key)
    if named is not None and (missing := [one for one in chosen if one not in there]):
        raise ValueError(f'primary_key: there is no column "{missing[0]}"')
    if not chosen or not there.issuperset(chosen):
        raise ValueError("the rows' key is no column of the sink: primary_key = '..' names columns that identify a row")
    return tuple(dict.fromkeys(chosen))


def _retention(options: Mapping[str, str], *, upsert: bool) -> float:
    if not upsert and "retention" in options:
        raise ValueError("retention is for type 'upsert': others may write into a table that is only appended to")
    return _seconds("retention", options.get("retention", "1 day"), RETENTION_SECONDS_MAX)


def _seconds(option: str, text: str, most: int) -> float:
    found = _INTERVAL.fullmatch(text.strip().lower())
    unit = None if found is None else _SECONDS.get(_UNITS.get(found["unit"], found["unit"]))
    if found is None or unit is None:
        raise ValueError(f"{option} \"{text}\" is not a time such as '10 s'")
    seconds = float(found["number"]) * unit
    if seconds > most:
        days = most // 86_400
        raise ValueError(f"{option} is at most {'one day' if days == 1 else f'{days} days'}")
    return seconds
