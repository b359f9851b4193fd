"""Define the parsed statements as values, one class per kind. `service.sql.parse` makes them; `views` and `dml` bind
them.

Names are as Postgres would store them: unquoted ones are folded. They have no schema, because it can only be `public`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from service.domain.adaptive import Asked
from service.domain.errors import Invalid
from service.domain.parallelism import Parallelism
from service.protocol.columns import Column, KeyColumn
from service.protocol.ids import FragmentId, JobId
from service.protocol.relation import RelationKind
from service.sql.text.constants import Constants
from service.sql.text.tree import Tree


@dataclass(frozen=True, slots=True)
class CreateTable:
    """CREATE TABLE. `key` is empty for a table without a primary key; `tables.table_relation` then adds
    the hidden one.
    """

    name: str
    columns: tuple[Column, ...]
    key: tuple[KeyColumn, ...] = ()
    if_not_exists: bool = False
    vnode_count: int | None = None
    """None if the statement gives no vnode count."""


@dataclass(frozen=True, slots=True)
class CreateTableFrom:
    """CREATE TABLE .. FROM: a table that follows an external table of a source.

    `columns` is None for `(*)`. `key` is empty if the table takes over the external primary key. `timestamp` is the
    column for the commit time of a row. `external_schema` is None for the source's own schema. `source_position` and
    `table_position` are the positions of the source's and the external table's name.
    """

    name: str
    columns: tuple[Column, ...] | None
    key: tuple[KeyColumn, ...]
    source: str
    source_position: int
    external_schema: str | None
    external_table: str
    table_position: int
    if_not_exists: bool = False
    vnode_count: int | None = None
    timestamp: str | None = None
    snapshot: bool = True
    batch_rows: int = 1000
    parallelism: int = 0
    rows_per_split: int = 100_000
    even_splits: bool = True
    split_key_index: int = 0
    limited: bool = False
    backfill_rate_limit: Asked = None


@dataclass(frozen=True, slots=True)
class CreateSecret:
    """CREATE SECRET."""

    name: str
    value: str = field(repr=False)
    if_not_exists: bool = False


@dataclass(frozen=True, slots=True)
class AlterSecret:
    """ALTER SECRET, which replaces the secret's value."""

    name: str
    value: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class DropSecret:
    """DROP SECRET."""

    name: str
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class CreateSource:
    """CREATE SOURCE.

    `options` are the given options except the password. The password is either the value of the secret named `secret`,
    or `password`. `text` is the statement without a plain password. `positions` are the positions of the options'
    values.
    """

    name: str
    options: Mapping[str, str]
    text: str
    secret: str | None = None
    password: str | None = field(default=None, repr=False)
    if_not_exists: bool = False
    positions: Mapping[str, int] = field(default_factory=dict[str, int])


@dataclass(frozen=True, slots=True)
class OrderedName:
    """A relation in a backfill order: `typed` as the user spelled it, at a 1-based `position`."""

    name: str
    typed: str
    position: int
    qualified: bool = False


@dataclass(frozen=True, slots=True)
class BackfillOrder:
    """The edges of `FIXED(a -> b)` as (before, after). Empty for DEFAULT, NONE and AUTO."""

    edges: tuple[tuple[OrderedName, OrderedName], ...] = ()


@dataclass(frozen=True, slots=True)
class CreateMaterializedView:
    """CREATE MATERIALIZED VIEW.

    `options` are the WITH options as written, by name; `backfill_rate_limit` and `order` are their parsed values.
    `limited` is True if the statement gives a limit (None: unlimited). Otherwise the session's limit applies. If
    `serverless` is None, the session decides about the worker too.
    """

    name: str
    if_not_exists: bool
    options: dict[str, str]
    query: Tree = field(repr=False)
    text: str
    limited: bool = False
    backfill_rate_limit: Asked = None
    order: BackfillOrder = BackfillOrder()
    serverless: bool | None = None
    sql: str = field(default="", compare=False)
    """The query as written."""


@dataclass(frozen=True, slots=True)
class CreateView:
    """CREATE VIEW of a logical view.

    `sql` is the query as written. `reads` are the relations that it names, each with the 1-based position of its first
    occurrence. `text` is the whole statement.
    """

    name: str
    if_not_exists: bool
    query: Tree = field(repr=False)
    sql: str
    reads: Mapping[str, int]
    text: str


@dataclass(frozen=True, slots=True)
class Drop:
    """DROP. `kind` is the kind that the user names; the caller refuses another kind with `wrong_kind`."""

    kind: RelationKind
    name: str
    if_exists: bool = False
    cascade: bool = False


@dataclass(frozen=True, slots=True)
class Select:
    """A query as written. Postgres itself parses it, under the reader's login.

    `relations` are the relations of `public` that it names; empty if only Postgres can parse the text. `catalog` is
    True if it names `rw_catalog`.
    """

    sql: str
    relations: tuple[str, ...] = ()
    catalog: bool = False


@dataclass(frozen=True, slots=True)
class Insert:
    """INSERT into `target` at `position`; `dml.bind_insert` binds it.

    `columns` are (name, position), empty if the statement has no list. The rows of VALUES are `constants`, or else in
    `tree`. For any other query, `query` is the query as written, and `tree` is sqlglot's tree of it, if sqlglot can
    parse it.
    """

    target: str
    position: int
    columns: tuple[tuple[str, int], ...]
    tree: Tree | None = field(repr=False)
    query: Select | None = None
    constants: Constants | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Update:
    """UPDATE of `target` at `position`; `dml.bind_update` binds it."""

    target: str
    position: int
    tree: Tree = field(repr=False)


@dataclass(frozen=True, slots=True)
class Delete:
    """DELETE from `target` at `position`; `dml.bind_delete` binds it."""

    target: str
    position: int
    tree: Tree = field(repr=False)


@dataclass(frozen=True, slots=True)
class SetVariable:
    """SET of a session variable. The value is its text, `default` for DEFAULT."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class ShowVariable:
    """SHOW of a session variable, or of all of them (None)."""

    name: str | None


@dataclass(frozen=True, slots=True)
class AlterSystem:
    """ALTER SYSTEM SET. The value is its text."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class ShowParameters:
    """SHOW PARAMETERS, the system parameters."""


@dataclass(frozen=True, slots=True)
class AlterRateLimit:
    """ALTER .. SET BACKFILL_RATE_LIMIT. A limit of None is unlimited, 0 is paused, and `auto` is
    adapted to the load.
    """

    kind: RelationKind
    name: str
    limit: Asked


@dataclass(frozen=True, slots=True)
class AlterParallelism:
    """ALTER .. SET PARALLELISM, or SET BACKFILL_PARALLELISM if `backfill`. None is DEFAULT.

    With `deferred` the statement does not wait until the new actors run.
    """

    kind: RelationKind
    name: str
    parallelism: Parallelism | None
    backfill: bool = False
    deferred: bool = False


@dataclass(frozen=True, slots=True)
class AlterFragmentRateLimit:
    """ALTER FRAGMENT .. SET RATE_LIMIT. The limit is as in `AlterRateLimit`."""

    fragment: FragmentId
    limit: Asked


@dataclass(frozen=True, slots=True)
class ShowJobs:
    """SHOW JOBS."""


@dataclass(frozen=True, slots=True)
class CancelJobs:
    """CANCEL JOBS. The ids are in the given order, without duplicates."""

    ids: tuple[JobId, ...]


@dataclass(frozen=True, slots=True)
class Flush:
    """FLUSH."""


@dataclass(frozen=True, slots=True)
class Wait:
    """WAIT for one relation, or for all (both None)."""

    kind: RelationKind | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Recover:
    """RECOVER."""


@dataclass(frozen=True, slots=True)
class ShowRelations:
    """SHOW TABLES, SHOW MATERIALIZED VIEWS, SHOW VIEWS or SHOW SOURCES."""

    kind: RelationKind


@dataclass(frozen=True, slots=True)
class ShowInternalTables:
    """SHOW INTERNAL TABLES, in which the scans of jobs keep their positions."""


@dataclass(frozen=True, slots=True)
class ShowSecrets:
    """SHOW SECRETS, the names of the secrets."""


@dataclass(frozen=True, slots=True)
class Describe:
    """DESCRIBE, or SHOW COLUMNS FROM."""

    name: str


@dataclass(frozen=True, slots=True)
class ShowCreate:
    """SHOW CREATE TABLE, MATERIALIZED VIEW, VIEW or SOURCE."""

    kind: RelationKind
    name: str


@dataclass(frozen=True, slots=True)
class Explain:
    """EXPLAIN, the plan that the view would have."""

    view: CreateMaterializedView


@dataclass(frozen=True, slots=True)
class ExplainBackfill:
    """EXPLAIN (backfill, format dot), the backfill order that the view would have."""

    view: CreateMaterializedView


Statement = (
    CreateTable
    | CreateTableFrom
    | CreateSecret
    | AlterSecret
    | DropSecret
    | CreateSource
    | CreateMaterializedView
    | CreateView
    | Drop
    | Insert
    | Update
    | Delete
    | Select
    | SetVariable
    | ShowVariable
    | AlterSystem
    | ShowParameters
    | AlterRateLimit
    | AlterParallelism
    | AlterFragmentRateLimit
    | ShowJobs
    | CancelJobs
    | Flush
    | Wait
    | Recover
    | ShowRelations
    | ShowInternalTables
    | ShowSecrets
    | Describe
    | ShowCreate
    | Explain
    | ExplainBackfill
)


def wrong_kind(name: str, *, is_a: RelationKind, asked: RelationKind) -> Invalid:
    """Return Postgres's error for a statement that names another kind of relation."""
    assert is_a is not asked
    return Invalid(f'"{name}" is not a {asked}; it is a {is_a}')
