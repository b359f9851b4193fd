"""Define a relation as both planes see it, and the names of its stored tables."""

from enum import StrEnum
from typing import Final, Self

from pydantic import BaseModel, ConfigDict, model_validator

from service.protocol.columns import Column, ColumnType, KeyColumn, TypeName
from service.protocol.connector import Connector
from service.protocol.file_source import NAME as FILES
from service.protocol.ids import RelationId

ALIVE: Final = 9223372036854775807
"""`_to` of a row version that no epoch has ended: the largest bigint."""

ROW_ID: Final = "_row_id"
"""The hidden key column of a table that was declared without a key."""

COLUMNS_MAX: Final = 1_600
"""The most columns of a relation, which is the most that Postgres stores."""
VNODE_COUNT_DEFAULT: Final = 256

SYSTEM_COLUMNS: Final = frozenset({"cmax", "cmin", "ctid", "tableoid", "xmax", "xmin"})
"""Columns that every Postgres table has. Postgres refuses to create a column with such a name."""

RESERVED_COLUMNS: Final = SYSTEM_COLUMNS | {"_vnode", "_from", "_to", ROW_ID}
"""Column names that Postgres and the state store use in every table."""

KEY_PREFIX: Final = "_key_"
"""Prefix of the hidden key columns of views."""

TRAVEL_PREFIX: Final = "_tidefill_"
"""Prefix of columns that accompany a relation's own while rows travel: an operation, a position, a report."""


CATALOG_PREFIX: Final = "rw_"
"""Prefix of the names of `rw_catalog`'s relations. A query may name them without the schema."""


def why_reserved(name: str) -> str | None:
    """Return why a user may not give a column this name, or None.

    The comparison respects case, as Postgres does after it has folded unquoted names.
    """
    if name in SYSTEM_COLUMNS:
        return f'column name "{name}" is reserved: every Postgres table has a system column called so'
    if name in RESERVED_COLUMNS or name.startswith((KEY_PREFIX, TRAVEL_PREFIX)):
        return f'column name "{name}" is reserved'
    return None


class RelationKind(StrEnum):
    """The kind of an object in the catalog, as users name it.

    A logical view (a query with a name), a source (an external database) and a sink (rows for an external system) store
    no rows. No job creates a logical view, a source or an index. An internal table is a hidden output of another
    object's job.
    """

    TABLE = "table"
    MATERIALIZED_VIEW = "materialized view"
    INTERNAL = "internal table"
    VIEW = "view"
    SOURCE = "source"
    SINK = "sink"
    INDEX = "index"

    @property
    def stored(self) -> bool:
        """Whether the state store has a versioned table for it."""
        return self in _STORED


_STORED: Final = frozenset({RelationKind.TABLE, RelationKind.MATERIALIZED_VIEW, RelationKind.INTERNAL})


class Relation(BaseModel):
    """A stored relation: columns in order (visible first, then hidden) and its storage key.

    With `lake` its rows lie in a lake, and are read there in place. The state store has no row of it, but what is read
    at each epoch: the version of a table (`versions_of`), or the files of a folder (`files_in`).

    Invariants: column names are unique; the key is not empty and names columns of the relation.
    """

    model_config = ConfigDict(frozen=True)

    id: RelationId
    name: str
    kind: RelationKind
    columns: tuple[Column, ...]
    key: tuple[KeyColumn, ...]
    vnode_count: int = VNODE_COUNT_DEFAULT
    lake: Connector | None = None

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
    def without_defaults(self) -> Self:
        """The relation as plans have it: only statements that insert rows need the defaults, which may be long."""
        if not any(one.default for one in self.columns):
            return self
        return self.model_copy(
            update={"columns": tuple(one.model_copy(update={"default": None}) for one in self.columns)}
        )

    @property
    def visible(self) -> tuple[Column, ...]:
        """The columns that users see."""
        return tuple(column for column in self.columns if not column.hidden)

    @property
    def delivered(self) -> tuple[Column, ...]:
        """The columns that a target outside has: those that users see, and the key of a view, by which it is read."""
        return self.identified if self.kind is RelationKind.MATERIALIZED_VIEW else self.visible

    @property
    def identified(self) -> tuple[Column, ...]:
        """The columns that users see, and those of the key."""
        key = {part.name for part in self.key}
        return tuple(column for column in self.columns if not column.hidden or column.name in key)

    @property
    def key_types(self) -> tuple[ColumnType, ...]:
        """The types of the key's columns, in key order."""
        return tuple(self.column(part.name).type for part in self.key)


PLACE: Final = "place"
VERSION: Final = "version"
PATH: Final = "path"
SIZE: Final = "size"
MODIFIED: Final = "modified"
FILE_ROWS: Final = "rows"


LOGGED_PAGE: Final = 0
LOGGED_ROW: Final = 1
LOGGED_END: Final = 2
LOGGED_TRUNCATION: Final = 3
"""What a row of a log says (`log_table`): a row of history at a new key, the row that a key has, that a key has none,
or that no key has one.
"""


def versions_of(relation: Relation) -> Relation:
    """Return the relation that the state store has for one of a lake: a single row, the version at an epoch.

    An epoch is thereby bound to a version as it is to rows: fenced, rolled back, pinned and vacuumed with them.
    """
    return versions(relation.id, relation.name)


def kept_of(relation: Relation) -> Relation:
    """Return what the state store keeps of a relation: its rows, or the version or the files that it has in a lake."""
    if relation.lake is None:
        return relation
    return files_in(relation.id, relation.name) if relation.lake.name == FILES else versions_of(relation)


def versions(relation: RelationId, name: str) -> Relation:
    """Return the relation of `versions_of`."""
    number = ColumnType(TypeName.BIGINT)
    columns = (Column(name=PLACE, type=number, nullable=False), Column(name=VERSION, type=number, nullable=False))
    key = (KeyColumn(name=PLACE),)
    return Relation(id=relation, name=name, kind=RelationKind.TABLE, columns=columns, key=key, vnode_count=1)


def files_in(relation: RelationId, name: str) -> Relation:
    """Return the relation that the state store has for a folder of files: a row for each file that was read.

    A file that came in an epoch is thereby fenced, rolled back, pinned and vacuumed as a row is.
    """
    number = ColumnType(TypeName.BIGINT)
    columns = (
        Column(name=PATH, type=ColumnType(TypeName.TEXT), nullable=False),
        *(Column(name=one, type=number, nullable=False) for one in (SIZE, MODIFIED, FILE_ROWS)),
    )
    key = (KeyColumn(name=PATH),)
    return Relation(id=relation, name=name, kind=RelationKind.TABLE, columns=columns, key=key, vnode_count=1)


def from_index(relation: RelationId) -> str:
    """Return the qualified name of the index on `_from` of a relation's versioned table."""
    return f"state.t_{relation}_from"


def log_table(relation: RelationId) -> str:
    """Return the qualified name of a relation's log, `state.l_<id>`: what its table in a lake does not have yet.

    Each row is a row of history, a change, or a truncation (`LOGGED_..`). Only a followed table in a lake has one.
    """
    return f"state.l_{relation}"


def partials_table(relation: RelationId) -> str:
    """Return the qualified name of the log of a relation's partial groups, `state.p_<id>`.

    Each row has the sums of one group over some pages of history. It exists while the history is read.
    """
    return f"state.p_{relation}"


def state_table(relation: RelationId) -> str:
    """Return the qualified name of a relation's versioned table, `state.t_<id>`."""
    return f"state.t_{relation}"
