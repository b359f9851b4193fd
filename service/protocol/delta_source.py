"""A table that is read in place: the options of a Delta table, and the columns that a schema in Delta's words gives it.

`docs/lake.md` describes them for users.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from service.protocol.columns import Column, ColumnType, TypeName
from service.protocol.delta import PLACE, DeltaPlace, place_of
from service.protocol.quoting import quoted

FIRST: Final = "first_version"
"""The option that tidefill adds: the version with which the table begins."""
ROWS: Final = "first_rows"
"""The option that tidefill adds: about how many rows that version has."""
_KNOWN: Final = PLACE | {FIRST, ROWS}
_TYPES: Final = {
    "string": TypeName.TEXT,
    "long": TypeName.BIGINT,
    "integer": TypeName.INTEGER,
    "short": TypeName.SMALLINT,
    "byte": TypeName.SMALLINT,
    "float": TypeName.REAL,
    "double": TypeName.DOUBLE,
    "boolean": TypeName.BOOLEAN,
    "binary": TypeName.BYTEA,
    "date": TypeName.DATE,
    "timestamp": TypeName.TIMESTAMPTZ,
    "timestamp_ntz": TypeName.TIMESTAMP,
}
_DECIMAL: Final = re.compile(r"decimal\((?P<precision>\d+), ?(?P<scale>\d+)\)")


@dataclass(frozen=True, slots=True)
class DeltaColumns:
    """The columns of a Delta table: those that a table may have, and why it may not have the others."""

    columns: tuple[Column, ...]
    refused: Mapping[str, str] = field(default_factory=dict[str, str])


def source_place(options: Mapping[str, str]) -> DeltaPlace:
    """Return where the table lies. Raises ValueError with the reason for a refusal."""
    if unknown := options.keys() - _KNOWN:
        raise ValueError(f'unknown option "{min(unknown)}"')
    return place_of(options)


def delta_columns(schema: str) -> DeltaColumns:
    """Return the columns of a schema in Delta's JSON."""
    columns: list[Column] = []
    refused: dict[str, str] = {}
    for one in json.loads(schema)["fields"]:
        name = str(one["name"])
        try:
            columns.append(Column(name=name, type=_type(one["type"]), nullable=True))
        except ValueError as error:
            refused[name] = str(error)
    return DeltaColumns(tuple(columns), refused)


def chosen_columns(there: DeltaColumns, wanted: Sequence[Column] | None, key: Sequence[str]) -> tuple[Column, ...]:
    """Return the columns of a table: those that it declares, or all. Those of the key are not NULL.

    Raises ValueError with the reason for a refusal.
    """
    known = {one.name: one for one in there.columns}
    if wanted is None and not (known or there.refused):
        raise ValueError("no whole file is there, whose columns * could be: name the columns with their types")
    if wanted is None and there.refused:
        name, reason = min(there.refused.items())
        named = ", ".join(f"{quoted(one.name)} {one.type}" for one in there.columns)
        raise ValueError(f'column "{name}" {reason}. Name the others instead of *: ({named}, PRIMARY KEY ..)')
    for one in wanted or ():
        _check(there, known, one)
    names = [one.name for one in (there.columns if wanted is None else wanted)]
    for name in key:
        if name not in names:
            raise ValueError(f'column "{name}" named in key does not exist there')
        if reason := known[name].type.why_not_a_key:
            raise ValueError(f'column "{name}" cannot be part of a primary key: {reason}')
    return tuple(known[name].model_copy(update={"nullable": name not in key}) for name in names)


def _check(there: DeltaColumns, known: Mapping[str, Column], wanted: Column) -> None:
    """Raise ValueError unless the Delta table has a column."""
    name = wanted.name
    if name in there.refused:
        raise ValueError(f'column "{name}" {there.refused[name]}')
    if name not in known:
        raise ValueError(f'column "{name}" does not exist there')
    if known[name].type != wanted.type:
        raise ValueError(f'column "{name}" is {known[name].type} there, not {wanted.type}')


def _type(given: Any) -> ColumnType:
    if isinstance(given, dict):
        kind = str(given.get("type"))
        element = given.get("elementType")
        if kind != "array" or not isinstance(element, str):
            raise ValueError(f"is a {kind}, which no column of a table can hold")
        scalar = _type(element)
        if scalar.name is TypeName.NUMERIC:
            raise ValueError("is an array of decimals, which cannot be read exactly")
        return ColumnType(scalar.name, array=True)
    if found := _DECIMAL.fullmatch(given):
        return ColumnType(TypeName.NUMERIC, int(found["precision"]), int(found["scale"]))
    if given not in _TYPES:
        raise ValueError(f"has type {given}, which is not supported")
    return ColumnType(_TYPES[given])
