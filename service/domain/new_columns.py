"""Decide which new columns of an external table are taken up by a table that was created with all columns. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from service.domain.external import ExternalTable, kept_as
from service.protocol.cdc import CdcScan
from service.protocol.columns import Column, ColumnType, TypeName
from service.protocol.relation import Relation, why_reserved


@dataclass(frozen=True, slots=True)
class NewColumns:
    """The names of new columns to take up, in the external order, and why others are left out, by name."""

    wanted: tuple[str, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict[str, str])

    def note(self, why_none: str | None = None) -> str | None:
        """Return why not all new columns are there, None where they are. `why_none` keeps back the wanted ones."""
        kept_back = {} if why_none is None else dict.fromkeys(self.wanted, why_none)
        reasons = {**self.left_out, **kept_back}
        return "; ".join(f'new column "{name}" is left out: {why}' for name, why in reasons.items()) or None


def new_columns(scan: CdcScan, relation: Relation) -> NewColumns:
    """Compare the external table, as last seen, with the columns of the table that follows it.

    A column of the relation that the scan does not carry yet is about to be reloaded, so it is not new.
    """
    shape = None if scan.published is None else scan.published.shape
    if not scan.all_columns or shape is None:
        return NewColumns()
    carried = {column.external for column in scan.columns}
    known = {column.name for column in relation.columns} - {scan.timestamp}
    new = [column for column in shape.columns if column.sent and column.name not in carried | known]
    reasons = {column.name: _why_left_out(column.name, column.type, scan) for column in new}
    return NewColumns(
        tuple(name for name, why in reasons.items() if why is None),
        {name: why for name, why in reasons.items() if why is not None},
    )


def columns_of(table: ExternalTable, names: Sequence[str]) -> tuple[Column, ...]:
    """Return the columns to add for these external ones, without those that are gone.

    A domain over a type that cannot be kept becomes text, because `new_columns` does not know what is in it.
    """
    text = ColumnType(TypeName.TEXT)
    return tuple(Column(name=one.name, type=kept_as(one.base) or text) for one in table.columns if one.name in names)


def _why_left_out(name: str, external: str, scan: CdcScan) -> str | None:
    if name == scan.timestamp:
        return "INCLUDE timestamp has a column of its name"
    if kept_as(external) is None:
        return f"{external} has to be declared, as numeric(precision, scale) or as text"
    return why_reserved(name)
