"""Define the column types: one value per Postgres type that tidefill keeps exactly, with its Spark type.

`docs/types.md` describes the same table for users. A type is *native* when Arrow carries it unchanged between Postgres
and Spark. Every other type travels as its Postgres text and is cast at both ends, because the binary readers are not
exact: they read numeric as text, cannot write uuid and jsonb, and turn infinite dates into garbage.
"""

import re
from enum import StrEnum
from functools import lru_cache
from typing import Annotated, Final, Self

from pydantic import BaseModel, ConfigDict, PlainSerializer, PlainValidator, WithJsonSchema
from pydantic.dataclasses import dataclass


class TypeName(StrEnum):
    """The scalar types, spelled as Postgres spells them."""

    BOOLEAN = "boolean"
    SMALLINT = "smallint"
    INTEGER = "integer"
    BIGINT = "bigint"
    REAL = "real"
    DOUBLE = "double precision"
    NUMERIC = "numeric"
    TEXT = "text"
    BYTEA = "bytea"
    DATE = "date"
    TIME = "time"
    TIMESTAMP = "timestamp"
    TIMESTAMPTZ = "timestamptz"
    UUID = "uuid"
    JSONB = "jsonb"
    INTERVAL = "interval"


ALIASES: Final = {
    "bool": TypeName.BOOLEAN,
    "int2": TypeName.SMALLINT,
    "int": TypeName.INTEGER,
    "int4": TypeName.INTEGER,
    "int8": TypeName.BIGINT,
    "float4": TypeName.REAL,
    "float": TypeName.DOUBLE,
    "float8": TypeName.DOUBLE,
    "double": TypeName.DOUBLE,
    "decimal": TypeName.NUMERIC,
    "varchar": TypeName.TEXT,
    "character varying": TypeName.TEXT,
    "string": TypeName.TEXT,
    "timestamp without time zone": TypeName.TIMESTAMP,
    "timestamp with time zone": TypeName.TIMESTAMPTZ,
    "time without time zone": TypeName.TIME,
}

_SPARK: Final = {
    TypeName.BOOLEAN: "boolean",
    TypeName.SMALLINT: "smallint",
    TypeName.INTEGER: "int",
    TypeName.BIGINT: "bigint",
    TypeName.REAL: "float",
    TypeName.DOUBLE: "double",
    TypeName.TEXT: "string",
    TypeName.BYTEA: "binary",
    TypeName.DATE: "date",
    TypeName.TIMESTAMP: "timestamp_ntz",
    TypeName.TIMESTAMPTZ: "timestamp",
    # Spark has no equal type, so these stay Postgres text. A numeric with a precision is a decimal.
    TypeName.NUMERIC: "string",
    TypeName.TIME: "string",
    TypeName.UUID: "string",
    TypeName.JSONB: "string",
    TypeName.INTERVAL: "string",
}

_NATIVE: Final = frozenset(
    {
        TypeName.BOOLEAN,
        TypeName.SMALLINT,
        TypeName.INTEGER,
        TypeName.BIGINT,
        TypeName.REAL,
        TypeName.DOUBLE,
        TypeName.TEXT,
        TypeName.BYTEA,
        TypeName.DATE,
        TypeName.TIMESTAMP,
        TypeName.TIMESTAMPTZ,
    }
)

# Reasons why Postgres and Spark cannot order a type the same way, so that it cannot be a key.
_NOT_A_KEY: Final = {
    TypeName.JSONB: "jsonb has an order of its own that Spark does not share",
    TypeName.INTERVAL: "equal intervals can have different texts (1 day = 24:00:00)",
}

NUMERIC_PRECISION_MAX: Final = 38
"""Spark's decimal holds 38 digits, so a wider numeric could not be kept exactly."""

_PATTERN: Final = re.compile(
    r"^\s*(?P<name>[a-z][a-z0-9 ]*?)\s*(\(\s*(?P<precision>\d+)\s*(,\s*(?P<scale>-?\d+)\s*)?\))?"
    r"\s*(?P<array>(\[\])*)\s*$"
)


@dataclass(frozen=True, slots=True)
class ColumnType:
    """A type such as `bigint`, `numeric(12,2)` or `integer[]`. Arrays have one dimension.

    Invariant: `precision` and `scale` are set for numeric only, both or none; `precision <= 38`, `0 <= scale <=
    precision`. A numeric without them is unbounded, as in Postgres: sums and averages have it. Spark has no such type.
    """

    name: TypeName
    precision: int | None = None
    scale: int | None = None
    array: bool = False

    def __post_init__(self) -> None:
        numeric = self.name is TypeName.NUMERIC
        assert (self.precision is None) == (self.scale is None), self
        assert numeric or self.precision is None, self
        if self.precision is not None and self.scale is not None:
            assert 0 <= self.scale <= self.precision <= NUMERIC_PRECISION_MAX, self

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the type that a text names, as a user or Postgres spells it. Raises ValueError with the reason of a
        refusal.
        """
        found = _PATTERN.match(text.lower())
        name = found and _name(found["name"])
        if not found or not name:
            msg = f'type "{text}" is not supported'
            raise ValueError(msg)
        if len(found["array"]) > len("[]"):
            msg = f'type "{text}" is not supported: arrays have one dimension'
            raise ValueError(msg)
        array = bool(found["array"])
        if name is not TypeName.NUMERIC:
            # Refuse varchar(n), timestamp(3) and time(0), because tidefill would not enforce the limit and must not
            # widen a type silently.
            if found["precision"]:
                msg = f'type "{text}" is not supported: use {name} without a length or precision'
                raise ValueError(msg)
            return cls(name, array=array)
        if not found["precision"]:
            return cls(name, array=array)
        precision, scale = int(found["precision"]), int(found["scale"] or 0)
        if not 0 <= scale <= precision <= NUMERIC_PRECISION_MAX or precision == 0:
            msg = f'type "{text}" is not supported: precision is 1 to {NUMERIC_PRECISION_MAX} and scale 0 to precision'
            raise ValueError(msg)
        return cls(name, precision, scale, array)

    @classmethod
    def declared(cls, text: str) -> Self:
        """Return the type of a cast or of an external column. Raises ValueError as `parse` does,
        and for an unbounded numeric.
        """
        kind = cls.parse(text)
        if kind.unbounded:
            msg = (
                f'type "{text}" needs a precision, such as numeric(38, 10): Spark cannot keep an unbounded one exactly'
            )
            raise ValueError(msg)
        return kind

    def __str__(self) -> str:
        """Postgres's spelling, which `parse` reads back."""
        scalar = str(self.name) if self.precision is None else f"numeric({self.precision},{self.scale})"
        return f"{scalar}[]" if self.array else scalar

    @property
    def element(self) -> "ColumnType":
        """The type of one element of an array. The type must be an array."""
        assert self.array, self
        return ColumnType(self.name, self.precision, self.scale)

    @property
    def unbounded(self) -> bool:
        """Whether it is a numeric without a precision, or an array of them."""
        return self.name is TypeName.NUMERIC and self.precision is None

    @property
    def spark(self) -> str:
        """The Spark SQL type that represents this type in a view's query."""
        scalar = _SPARK[self.name] if self.precision is None else f"decimal({self.precision},{self.scale})"
        return f"array<{scalar}>" if self.array else scalar

    @property
    def native(self) -> bool:
        """Whether Arrow carries the type exactly in both directions; otherwise a value travels as its Postgres text."""
        return not self.array and self.name in _NATIVE

    @property
    def looks_differ(self) -> bool:
        """Whether equal values may look different, as -0 and 0, or 2.5 and 2.500."""
        return not self.array and (self.name in {TypeName.REAL, TypeName.DOUBLE} or self.unbounded)

    @property
    def why_not_a_key(self) -> str | None:
        """Why the type may not be part of a primary key, or None if it may."""
        return "arrays cannot be keys" if self.array else _NOT_A_KEY.get(self.name)


@lru_cache(maxsize=256)
def _name(text: str) -> TypeName | None:
    try:
        return TypeName(text)
    except ValueError:
        return ALIASES.get(text)


def _validate(value: object) -> ColumnType:
    return value if isinstance(value, ColumnType) else ColumnType.parse(str(value))


ColumnTypeField = Annotated[
    ColumnType,
    PlainValidator(_validate),
    PlainSerializer(str, return_type=str),
    WithJsonSchema({"type": "string", "examples": ["bigint", "numeric(12,2)", "integer[]"]}),
]


class Column(BaseModel):
    """One column of a relation. A hidden column is stored but not visible: a view's upstream key, a
    table's `_row_id`.

    `length` is the n of `varchar(n)`, in characters. `default` is a constant in Postgres's SQL.
    """

    model_config = ConfigDict(frozen=True)

    name: str
    type: ColumnTypeField
    nullable: bool = True
    hidden: bool = False
    length: int | None = None
    default: str | None = None

    @property
    def required(self) -> bool:
        """Whether a new row has to give a value."""
        return not self.nullable and self.default is None


class KeyColumn(BaseModel):
    """One primary-key column with its order. NULL is the largest value, as in Postgres: last ascending, first
    descending.
    """

    model_config = ConfigDict(frozen=True)

    name: str
    descending: bool = False

    @property
    def nulls_first(self) -> bool:
        """Whether NULL comes first in this column's order."""
        return self.descending
