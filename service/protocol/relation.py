"""A relation as both planes see it, and the names of what is stored for it."""

from enum import StrEnum
from typing import Final, Self

from pydantic import BaseModel, ConfigDict, model_validator

from service.protocol.columns import Column, ColumnType, KeyColumn
from service.protocol.ids import RelationId

ALIVE: Final = 9223372036854775807
"""`_to` of a row version that no epoch has ended: bigint's largest."""

ROW_ID: Final = "_row_id"
"""The hidden key of a table that was declared without one."""

VNODE_COUNT_DEFAULT: Final = 256

RESERVED_COLUMNS: Final = frozenset({"_vnode", "_from", "_to", ROW_ID})
"""Names the state store uses in every table. More generally a user's column may not begin with an underscore
followed by one of tidefill's own words; binding refuses exactly these."""


class RelationKind(StrEnum):
    """What a relation is to its user. Of a logical view, which is a query with a name, and of a source, which is an
    external database, nothing is stored, and no worker sees them as relations.
    """

    TABLE = "table"
    MATERIALIZED_VIEW = "materialized view"
    VIEW = "view"
    SOURCE = "source"


class Relation(BaseModel):
    """A stored relation: columns in order (visible first, then hidden) and its storage key.

    Invariants: column names are unique; the key is not empty and names columns of the relation.
    """

    model_config = ConfigDict(frozen=True)

    id: RelationId
    name: str
    kind: RelationKind
    columns: tuple[Column, ...]
    key: tuple[KeyColumn, ...]
    vnode_count: int = VNODE_COUNT_DEFAULT

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        names = [column.name for column in self.columns]
        assert len(set(names)) == len(names), names
        assert self.key
        assert {part.name for part in self.key} <= set(names), (self.key, names)
        return self

    def column(self, name: str) -> Column:
        """Return the column called `name`. Raises KeyError."""
        for column in self.columns:
            if column.name == name:
                return column
        raise KeyError(name)

    @property
    def visible(self) -> tuple[Column, ...]:
        """The columns a user sees."""
        return tuple(column for column in self.columns if not column.hidden)

    @property
    def key_types(self) -> tuple[ColumnType, ...]:
        """The types of the key's columns, in key order."""
        return tuple(self.column(part.name).type for part in self.key)


def from_index(relation: RelationId) -> str:
    """Return the qualified name of the index on `_from` of a relation's versioned table."""
    return f"state.t_{relation}_from"


def state_table(relation: RelationId) -> str:
    """Return the qualified name of a relation's versioned table, `state.t_<id>`."""
    return f"state.t_{relation}"
