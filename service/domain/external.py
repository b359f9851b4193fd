"""Decide whether an external table can be followed, and with which columns, key and types.

A type that tidefill has stays as it is, or becomes a wider one or text if the user declares it. Text keeps every value,
as the external server prints it. Any other type becomes text. A type whose values could not be kept exactly is refused
with the names of the column and the types.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from service.domain.errors import Invalid
from service.protocol.cdc import CdcColumn
from service.protocol.columns import Column, ColumnType, KeyColumn, TypeName
from service.protocol.quoting import quoted
from service.protocol.relation import why_reserved


class Identity(StrEnum):
    """What a change in the log contains of the old row: `pg_class.relreplident`."""

    DEFAULT = "d"
    NOTHING = "n"
    FULL = "f"
    INDEX = "i"


class Generated(StrEnum):
    """Whether a column is computed: `pg_attribute.attgenerated`."""

    NO = ""
    STORED = "s"
    VIRTUAL = "v"


@dataclass(frozen=True, slots=True)
class ExternalColumn:
    """A column of an external table.

    `type` is its full type as `format_type` prints it, and `base` is the same for a domain's base type. `ordered` is
    False for a collation in which different texts can be equal.
    """

    name: str
    type: str
    base: str
    nullable: bool = True
    generated: Generated = Generated.NO
    ordered: bool = True


@dataclass(frozen=True, slots=True)
class ExternalIndex:
    """A unique index whose columns are never NULL, in ascending order."""

    columns: tuple[str, ...]
    primary: bool = False
    identity: bool = False


@dataclass(frozen=True, slots=True)
class ExternalTable:
    """A table of an external database. `why_not` is why it can never be followed, or None. `rows` is an estimate."""

    schema: str
    name: str
    columns: tuple[ExternalColumn, ...]
    indexes: tuple[ExternalIndex, ...] = ()
    identity: Identity = Identity.DEFAULT
    partitioned: bool = False
    selectable: bool = True
    owned: bool = True
    rows: int | None = None
    why_not: str | None = None

    @property
    def shown(self) -> str:
        """The table's name with its schema."""
        return f"{self.schema}.{self.name}"

    def column(self, name: str) -> ExternalColumn | None:
        """Return the column called `name`, or None."""
        return next((one for one in self.columns if one.name == name), None)


@dataclass(frozen=True, slots=True)
class Publication:
    """A publication of an external database.

    `tables` are the (schema, name) pairs of the tables that it publishes completely. `partial` are those of which it
    omits rows or columns. `lacks` names the operations that it must publish and does not.
    """

    name: str
    tables: frozenset[tuple[str, str]] = frozenset()
    partial: frozenset[tuple[str, str]] = frozenset()
    via_root: bool = True
    generated: bool = False
    lacks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Follower:
    """The columns and the key of a followed table, and the external column of each of its columns."""

    columns: tuple[Column, ...]
    key: tuple[KeyColumn, ...]
    carried: tuple[CdcColumn, ...]


_LENGTH: Final = re.compile(r"\s*\(\d+(,\d+)?\)")
_INTERVAL: Final = re.compile(r"interval\b.*?(\(\d+\))?(?=(\[\])*$)")
_TEXT_ALONE: Final = ColumnType(TypeName.TEXT)
_WIDER: Final[Mapping[TypeName, Collection[TypeName]]] = {
    TypeName.SMALLINT: (TypeName.INTEGER, TypeName.BIGINT),
    TypeName.INTEGER: (TypeName.BIGINT,),
    TypeName.REAL: (TypeName.DOUBLE,),
}
_BYTEWISE: Final = re.compile(r"(character varying|text|numeric)\b.*")
_UNBOUNDED: Final = re.compile(r"numeric(\[\])*")


def follower(
    table: ExternalTable,
    publication: Publication | None,
    declared: Sequence[Column] | None,
    key: Sequence[KeyColumn],
    *,
    timestamp: str | None = None,
) -> Follower:
    """Return the followed table for an external table, with all its columns if `declared` is None. Raises Invalid."""
    if table.why_not is not None:
        raise Invalid(f'"{table.shown}" cannot be followed: {table.why_not}')
    if not table.selectable:
        raise Invalid(f'"{table.shown}" cannot be followed: the login of the source may not SELECT from it')
    generated = publication is not None and publication.generated
    columns = tuple(_taken_over(table)) if declared is None else tuple(declared)
    names = _key_names(table, key)
    carried = [_carried(table, column, generated=generated) for column in columns]
    _check_identity(table, names)
    kept = tuple(column.model_copy(update={"nullable": column.name not in names}) for column in columns)
    for name in names:
        _check_key(table, kept, name)
    if timestamp is not None:
        if any(column.name == timestamp for column in columns):
            raise Invalid(f'column "{timestamp}" specified more than once')
        kept = (*kept, Column(name=timestamp, type=ColumnType(TypeName.TIMESTAMPTZ)))
    return Follower(kept, tuple(KeyColumn(name=name) for name in names), tuple(carried))


def why_not_published(table: ExternalTable, publication: Publication, *, may_add: bool) -> str | None:
    """Return why changes of a table would be missing or incomplete in the publication, or None."""
    if publication.lacks:
        return f'publication "{publication.name}" does not publish {", ".join(publication.lacks)}'
    if table.partitioned and not publication.via_root:
        return (
            f'"{table.shown}" is partitioned, and publication "{publication.name}" publishes partitions: '
            "ALTER PUBLICATION ... SET (publish_via_partition_root = true)"
        )
    named = (table.schema, table.name)
    if named in publication.partial:
        return f'publication "{publication.name}" leaves out rows or columns of "{table.shown}"'
    if named in publication.tables:
        return None
    add = f"ALTER PUBLICATION {quoted(publication.name)} ADD TABLE {quoted(table.schema)}.{quoted(table.name)}"
    if not may_add:
        return f'publication "{publication.name}" does not publish "{table.shown}": {add}'
    if not table.owned:
        return f'only the owner of "{table.shown}" can add it to a publication: ask the owner to run {add}'
    return None


def check_published(table: ExternalTable, publication: Publication, *, may_add: bool) -> None:
    """Raise Invalid if changes of a table would be missing or incomplete in the publication."""
    if why := why_not_published(table, publication, may_add=may_add):
        raise Invalid(why)


def kept_as(base: str) -> ColumnType | None:
    """Return the type that keeps an external type's values exactly, or None if the user has to choose one."""
    if _UNBOUNDED.fullmatch(base):
        return None
    try:
        return ColumnType.declared(_normal(base))
    except ValueError:
        # A type that tidefill does not have travels as its text.
        return None if base.startswith("numeric") else ColumnType(TypeName.TEXT, array=base.endswith("[]"))


def why_not_kept(base: str, declared: ColumnType) -> str | None:
    """Return why a declared type does not keep every value of an external type, or None."""
    if declared == _TEXT_ALONE:
        return None
    kept = kept_as(base)
    if kept is None:
        if declared.name is TypeName.NUMERIC:
            return None
        return "declare it as numeric(precision, scale), wide enough for every value, or as text"
    if kept == declared:
        return None
    if kept.array == declared.array and declared.name in _WIDER.get(kept.name, ()):
        return None
    if _wider_numeric(kept, declared):
        return None
    return f"declare it as {kept}"


def _wider_numeric(kept: ColumnType, declared: ColumnType) -> bool:
    if kept.name is not TypeName.NUMERIC or declared.name is not TypeName.NUMERIC or kept.array != declared.array:
        return False
    assert kept.precision is not None
    assert kept.scale is not None
    assert declared.precision is not None
    assert declared.scale is not None
    return declared.scale >= kept.scale and declared.precision - declared.scale >= kept.precision - kept.scale


def _normal(base: str) -> str:
    """Return a type without a length or precision that the wider tidefill type does not need."""
    if base.startswith("numeric"):
        return base
    if base.startswith("interval"):
        return _INTERVAL.sub("interval", base)
    return _LENGTH.sub("", base)


def _taken_over(table: ExternalTable) -> list[Column]:
    columns: list[Column] = []
    for one in table.columns:
        if one.generated is not Generated.NO:
            continue
        if reason := why_reserved(one.name):
            raise Invalid(f'"{table.shown}" cannot be followed whole: {reason}: list the columns, without this one')
        kept = kept_as(one.base)
        if kept is None:
            raise Invalid(
                f'column "{one.name}" of "{table.shown}" is {one.type}: declare the columns, this one as '
                "numeric(precision, scale), wide enough for every value, or as text"
            )
        columns.append(Column(name=one.name, type=kept, nullable=one.nullable))
    return columns


def _carried(table: ExternalTable, column: Column, *, generated: bool) -> CdcColumn:
    external = table.column(column.name)
    if external is None:
        raise Invalid(f'"{table.shown}" has no column "{column.name}"')
    if external.generated is Generated.VIRTUAL or (external.generated is Generated.STORED and not generated):
        raise Invalid(
            f'column "{column.name}" of "{table.shown}" is generated, and its publication does not publish such: '
            "leave it out"
        )
    if reason := why_not_kept(external.base, column.type):
        raise Invalid(
            f'column "{column.name}" is {external.type} in "{table.shown}", whose values {column.type} does not keep: '
            f"{reason}"
        )
    if not column.nullable and external.nullable:
        raise Invalid(f'column "{column.name}" may be NULL in "{table.shown}": declare it without NOT NULL')
    return CdcColumn(name=column.name, external=external.name, type=external.type)


def _key_names(table: ExternalTable, key: Sequence[KeyColumn]) -> tuple[str, ...]:
    """Return the key's columns in order: the declared ones, which must match a unique index, or the primary key's."""
    primary = next((index for index in table.indexes if index.primary), None)
    if not key:
        if primary is None:
            raise Invalid(
                f'"{table.shown}" has no primary key: declare the columns, and as PRIMARY KEY those of a unique index '
                "that are NOT NULL"
            )
        return primary.columns
    if any(part.descending for part in key):
        raise Invalid("the key of a table that follows another one is ascending")
    names = tuple(part.name for part in key)
    if not any(index.columns == names for index in table.indexes):
        known = " or ".join(f"({', '.join(index.columns)})" for index in table.indexes) or "none"
        raise Invalid(
            f'"{table.shown}" has no unique index of ({", ".join(names)}) whose columns are NOT NULL; it has {known}'
        )
    return names


def _check_identity(table: ExternalTable, key: Sequence[str]) -> None:
    told = _identity_columns(table)
    if told is not None and not set(key) <= told:
        raise Invalid(
            f'the replica identity of "{table.shown}" does not hold its key ({", ".join(key)}): ALTER TABLE '
            f'"{table.schema}"."{table.name}" REPLICA IDENTITY FULL, or USING INDEX'
        )


def _identity_columns(table: ExternalTable) -> frozenset[str] | None:
    """Return the columns of the old row that a change contains, or None for all of them."""
    match table.identity:
        case Identity.FULL:
            return None
        case Identity.NOTHING:
            return frozenset()
        case Identity.DEFAULT:
            return frozenset(name for index in table.indexes if index.primary for name in index.columns)
        case Identity.INDEX:
            return frozenset(name for index in table.indexes if index.identity for name in index.columns)


def _check_key(table: ExternalTable, columns: Sequence[Column], name: str) -> None:
    external = table.column(name)
    assert external is not None, name
    column = next((one for one in columns if one.name == name), None)
    if column is None:
        raise Invalid(f'column "{name}" of the key is not among the columns: what follows "{table.shown}" has its key')
    reason = column.type.why_not_a_key
    if reason is None and not external.ordered:
        reason = "its collation takes different texts for equal"
    if reason is None and column.type.name is TypeName.TEXT and not _BYTEWISE.fullmatch(external.base):
        reason = f"{external.type} has an order of its own"
    if reason is None and column.type.name is TypeName.TEXT and external.base.startswith("numeric"):
        reason = "as text its numbers have another order: declare it as numeric(precision, scale)"
    if reason is not None:
        raise Invalid(f'column "{name}" of "{table.shown}" cannot be part of a key: {reason}')
