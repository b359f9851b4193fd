"""The connector `file`: a folder of Parquet files, each of which is read once. Option names are RisingWave's.

`docs/lake.md` describes it for users.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from service.protocol.columns import Column
from service.protocol.delta import PLACE, DeltaPlace, place_of
from service.protocol.delta_source import FIRST, ROWS, DeltaColumns, delta_columns

NAME: Final = "file"
MATCH: Final = "match_pattern"
ALL: Final = "*.parquet"
PATTERN_MAX: Final = 255
"""How many characters a pattern may have. Each path is compared with it by the thread that all tables share."""
_KNOWN: Final = PLACE | {MATCH, FIRST, ROWS}


@dataclass(frozen=True, slots=True)
class Folder:
    """Where files lie, and which of them are read: those whose names match, or whose paths if the pattern is a path."""

    place: DeltaPlace
    pattern: str = ALL


def folder_of(options: Mapping[str, str]) -> Folder:
    """Return where the options say that files lie. Raises ValueError with the reason for a refusal."""
    if unknown := options.keys() - _KNOWN:
        raise ValueError(f'unknown option "{min(unknown)}"')
    pattern = options.get(MATCH, ALL)
    if not pattern or pattern.startswith("/"):
        raise ValueError(f"{MATCH} is the name of files below the location, as in '{ALL}'")
    if len(pattern) > PATTERN_MAX:
        raise ValueError(f"{MATCH} has at most {PATTERN_MAX} characters")
    return Folder(place_of(options), pattern)


def folder_columns(schema: str, wanted: Sequence[Column] | None) -> DeltaColumns:
    """Return the columns of a folder whose files have a schema. If no file is there yet, they are those that somebody
    wants.
    """
    there = delta_columns(schema)
    return there if there.columns or there.refused else DeltaColumns(tuple(wanted or ()))
