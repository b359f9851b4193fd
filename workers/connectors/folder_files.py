"""The Parquet files of a folder: which there are, and what the footer of each says.

A file is whole when its footer can be read: that is written last. Columns and their types are told in Delta's words.
"""

import json
import os
import re
import threading
import time
from collections.abc import Collection, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import chain
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.fs as pa_fs
import pyarrow.parquet as pq

from service.protocol.delta import DeltaPlace
from service.protocol.file_source import Folder
from workers.connectors.delta_files import Files, Stamp

_LOG: Final = "_delta_log"
_HIDING: Final = ("_", ".")
_MAGIC: Final = b"PAR1"
FOOTER_BYTES_MAX: Final = 16 << 20
_LARGE_BYTES: Final = 1 << 20
_LARGE: Final = threading.Lock()
"""Footers of more bytes are parsed one at a time, because that takes up to a hundred times their size (I13)."""
_SCHEMA: Final = re.compile(rb"\x15[\x80-\xff]*[\x00-\x7f]\x19(?:\xfc([\x80-\xff]{0,4}[\x00-\x7f])|([\x00-\xff]))")
"""How a footer begins in Thrift's compact protocol: its version, and the list of the schema with its size."""
COLUMNS_MAX: Final = 20_000
"""How many columns a file may have, and all files of a folder together."""
NAME_MAX: Final = 255
"""How many characters the name of a column may have."""
PATH_BYTES_MAX: Final = 1024
"""How long a path below the folder may be, as a key of S3. The state store keeps the paths as keys (I13)."""
ROWS_MAX: Final = 1 << 32
"""How many rows a file may have. Its footer may say any number."""
FILES_MAX: Final = 100_000
"""How many files a folder may have, of all kinds, without those of Delta tables in it."""
LIST_SECONDS: Final = 30.0
"""How long a folder of this machine may take to be listed."""
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


class TooWideError(UnfinishedFileError):
    """A file has too many columns."""


@dataclass(frozen=True, slots=True)
class Footer:
    """How many rows a file has, and its columns: each with its type in Delta's words."""

    rows: int
    columns: Mapping[str, object]


_KNOWN: Final[dict[tuple[DeltaPlace, str, Stamp], Footer]] = {}
"""The footers of few columns that were read, so that a recovery need not read them again."""
_KNOWN_MAX: Final = 1 << 14
_FEW_COLUMNS: Final = 200


def takes(folder: Folder, path: str) -> bool:
    """Whether a file below a folder is read. A part of a path that begins with _ or . hides it, as in Spark."""
    parts = path.split("/")
    if any(part.startswith(_HIDING) for part in parts):
        return False
    return fnmatchcase(path if "/" in folder.pattern else parts[-1], folder.pattern)


def listed(folder: Folder) -> Mapping[str, Stamp]:
    """Return the files that are read, by their paths. Raises OSError if there is no such folder, or its storage is
    away.

    The files of a Delta table are left out: its log says which of them count.
    """
    files = Files.of(folder.place)
    if files.in_store:
        found: Any = files.system.get_file_info(pa_fs.FileSelector("", recursive=True, allow_not_found=True))
    else:
        found = files.system.get_file_info(_walked(folder.place.location))
    tables = {one.path.removesuffix(_LOG) for one in found if one.base_name == _LOG}
    return {
        one.path: files.stamp_of(one)
        for one in found
        if one.type is pa_fs.FileType.File and takes(folder, one.path) and not _is_within(one.path, tables)
    }


def _is_within(path: str, folders: Collection[str]) -> bool:
    """Whether one of the folders, whose paths end with a slash, is above a file. The outermost one is empty."""
    ends = (place + 1 for place, letter in enumerate(path) if letter == "/")
    return any(path[:end] in folders for end in chain((0,), ends))


def _walked(location: str) -> list[str]:
    """Return the paths of the files that a folder of this machine has, and of the logs of Delta tables, which say which
    of their files count. Links to folders are not followed: they may lead back.

    A name that is no text is left out, because neither Arrow nor Postgres could say it.
    """
    ends = time.monotonic() + LIST_SECONDS  # noqa: TID251 - it bounds itself
    found: list[str] = []

    def fails(error: OSError) -> None:
        raise error

    for at, folders, names in os.walk(location, onerror=fails):
        below = os.path.relpath(at, location)
        is_table = _LOG in (*folders, *names)
        found += [name if below == "." else f"{below}/{name}" for name in ((_LOG,) if is_table else names)]
        folders[:] = [name for name in folders if not (is_table or name.startswith(_HIDING))]
        late = time.monotonic() > ends  # noqa: TID251 - as above
        if late or len(found) > FILES_MAX:
            limit = f"takes more than {LIST_SECONDS:.0f} s to be listed" if late else f"has more than {FILES_MAX} files"
            raise OSError(f"the folder {limit}")
    return [path for path in found if path.encode(errors="ignore").decode() == path]


def footer_of(place: DeltaPlace, path: str, stamp: Stamp) -> Footer:
    """Return what a file is. Raises UnfinishedFileError or TooWideError, and OSError if its storage is away."""
    if (known := _KNOWN.get((place, path, stamp))) is not None:
        return known
    footer = _read(place, path, stamp)
    if len(footer.columns) <= _FEW_COLUMNS:
        if len(_KNOWN) >= _KNOWN_MAX:
            _KNOWN.clear()
        _KNOWN[place, path, stamp] = footer
    return footer


def _read(place: DeltaPlace, path: str, stamp: Stamp) -> Footer:
    if len(path.encode()) > PATH_BYTES_MAX:
        raise UnfinishedFileError(f"its path has more than {PATH_BYTES_MAX} bytes")
    files = Files.of(place)
    try:
        with files.opened(path) as opened:
            text = _footer_text(opened)
        after = files.stamp(path)
    except FileNotFoundError:
        raise UnfinishedFileError("it is gone") from None
    if (number := _columns_said(text)) > COLUMNS_MAX:
        raise TooWideError(f"it has {number} columns, and at most {COLUMNS_MAX} can be read")
    try:
        # A file of its own with nothing but the footer: whatever is wrong with that is no fault of the storage.
        with _LARGE if len(text) > _LARGE_BYTES else nullcontext():
            parquet = pq.ParquetFile(pa.BufferReader(_MAGIC + text), coerce_int96_timestamp_unit="us")
            columns = {one.name: _type(one.type) for one in parquet.schema_arrow}
            footer = Footer(parquet.metadata.num_rows, {**dict.fromkeys(values_of(path), "string"), **columns})
    except (pa.ArrowException, OSError) as error:
        raise UnfinishedFileError(f"its footer cannot be read: {error}") from None
    if any(len(name) > NAME_MAX for name in footer.columns):
        raise TooWideError(f"the name of a column has more than {NAME_MAX} characters")
    if after != stamp:
        raise UnfinishedFileError("it is being written")
    if not 0 <= footer.rows <= ROWS_MAX:
        raise UnfinishedFileError(f"its footer says {footer.rows} rows, and at most {ROWS_MAX} can be read")
    return footer


def _footer_text(opened: Any) -> bytes:
    """Return the footer of a file with its length and the magic number behind it."""
    size = opened.size()
    tail = opened.read_at(8, size - 8) if size >= 12 else b""
    length = int.from_bytes(tail[:4], "little")
    if tail[4:] != _MAGIC or length > size - 12:
        raise UnfinishedFileError("it is no whole Parquet file")
    if length > FOOTER_BYTES_MAX:
        raise UnfinishedFileError(f"its footer has {length} bytes, of {FOOTER_BYTES_MAX}")
    return opened.read_at(length + 8, size - 8 - length)


def _columns_said(text: bytes) -> int:
    """Return how many columns a footer has, by its first bytes. A group of columns counts as one more.

    Raises UnfinishedFileError if they are not those of a footer.
    """
    found = _SCHEMA.match(text)
    if found is None:
        raise UnfinishedFileError("its footer cannot be read: it does not begin with a schema")
    long, short = found[1], found[2]
    size = short[0] >> 4 if long is None else sum((byte & 0x7F) << 7 * place for place, byte in enumerate(long))
    return size - 1  # the root


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
