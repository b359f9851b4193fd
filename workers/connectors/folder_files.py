"""The Parquet files of a folder: which there are, and what the footer of each says.

A file is whole when its footer can be read: that is written last. Columns and their types are told in Delta's words.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.fs as pa_fs
import pyarrow.parquet as pq

from service.protocol.delta import DeltaPlace
from service.protocol.file_source import Folder
from workers.connectors.delta_files import Files, Stamp

_LOG: Final = "_delta_log"
_NULL: Final = "__HIVE_DEFAULT_PARTITION__"
_NAMES: Final = {
    "bool": "boolean",
    "int8": "byte",
    "uint8": "short",
    "int16": "short",
    "uint16": "integer",
    "int32": "integer",
    "uint32": "long",
    "int64": "long",
    "halffloat": "float",
    "float": "float",
    "double": "double",
    "string": "string",
    "large_string": "string",
    "string_view": "string",
    "binary": "binary",
    "large_binary": "binary",
    "binary_view": "binary",
    "date32[day]": "date",
    "date64[ms]": "date",
}
"""What Delta calls the types of Arrow that a file may have."""


class UnfinishedFileError(Exception):
    """A file is no whole Parquet file, or not yet."""


@dataclass(frozen=True, slots=True)
class Footer:
    """How many rows a file has, and its columns: each with its type in Delta's words."""

    rows: int
    columns: Mapping[str, object]


def takes(folder: Folder, path: str) -> bool:
    """Whether a file below a folder is read. A part of a path that begins with _ or . hides it, as in Spark."""
    parts = path.split("/")
    if any(part.startswith(("_", ".")) for part in parts):
        return False
    return fnmatchcase(path if "/" in folder.pattern else parts[-1], folder.pattern)


def listed(folder: Folder) -> Mapping[str, Stamp]:
    """Return the files that are read, by their paths. Raises OSError if there is no such folder, or its storage is
    away.

    The files of a Delta table are left out: its log says which of them count.
    """
    files = Files.of(folder.place)
    found: Any = files.system.get_file_info(pa_fs.FileSelector("", recursive=True, allow_not_found=files.in_store))
    tables = {one.path.removesuffix(_LOG) for one in found if one.base_name == _LOG}
    return {
        one.path: files.stamp_of(one)
        for one in found
        if one.type is pa_fs.FileType.File
        and takes(folder, one.path)
        and not any(one.path.startswith(table) for table in tables)
    }


@lru_cache(maxsize=1 << 14)
def footer_of(place: DeltaPlace, path: str, stamp: Stamp) -> Footer:
    """Return what a file is. Raises UnfinishedFileError, and OSError if its storage is away."""
    files = Files.of(place)
    try:
        with files.system.open_input_file(path) as opened:
            parquet = pq.ParquetFile(opened, coerce_int96_timestamp_unit="us")
            columns = {one.name: _type(one.type) for one in parquet.schema_arrow}
            footer = Footer(parquet.metadata.num_rows, {**dict.fromkeys(values_of(path), "string"), **columns})
        after = files.stamp(path)
    except FileNotFoundError:
        raise UnfinishedFileError("it is gone") from None
    except pa.ArrowInvalid:
        raise UnfinishedFileError("it is no whole Parquet file") from None
    if after != stamp:
        raise UnfinishedFileError("it is being written")
    return footer


def values_of(path: str) -> Mapping[str, str | None]:
    """Return the values of a file's partition, which its folders name as Hive does."""
    pairs = (part.partition("=") for part in path.split("/")[:-1])
    return {unquote(name): None if value == _NULL else unquote(value) for name, equal, value in pairs if name and equal}


def schema_of(columns: Mapping[str, object]) -> str:
    """Return columns as a schema in Delta's JSON."""
    return json.dumps({"fields": [{"name": name, "type": kind} for name, kind in columns.items()]})


def _type(kind: pa.DataType) -> object:
    """Return a type in Delta's words, or in Arrow's own if Delta has no such type."""
    if pa.types.is_dictionary(kind):
        return _type(kind.value_type)
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_timestamp(kind):
        return "timestamp_ntz" if kind.tz is None else "timestamp"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return {"type": "array", "elementType": _type(kind.value_type)}
    if pa.types.is_struct(kind) or pa.types.is_map(kind):
        return {"type": "struct" if pa.types.is_struct(kind) else "map"}
    return _NAMES.get(str(kind), str(kind))
