"""What a statement says, as values: one class per kind. Made by `service.sql.parse`, bound by `views` and `dml`.

Names are as Postgres would store them (unquoted ones folded) and without their schema, which can only be `public`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from service.domain.adaptive import Asked
from service.domain.errors import Invalid
from service.domain.parallelism import Parallelism
from service.protocol.columns import Column, KeyColumn
from service.protocol.ids import FragmentId, JobId
from service.protocol.relation import RelationKind
from service.sql.constants import Constants
from service.sql.tree import Tree


@dataclass(frozen=True, slots=True)
class CreateTable:
    """`key` is empty for a table without a primary key: `tables.table_relation` adds the hidden one."""

    name: str
    columns: tuple[Column, ...]
    key: tuple[KeyColumn, ...] = ()
    if_not_exists: bool = False
    vnode_count: int | None = None
    """None where none was given."""


@dataclass(frozen=True, slots=True)
class CreateTableFrom:
    """CREATE TABLE .. FROM: a table that follows one of a source. `columns` are None for `(*)`, and `key` empty where
    the external one is meant; `timestamp` is the column that takes the time of a row's commit. `external_schema` is
    None where the source's own is meant. Positions are those of the source's name and of the external table's.
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
    """ALTER SECRET: another value from now on."""

    name: str
    value: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class DropSecret:
    """DROP SECRET."""

    name: str
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class CreateSource:
    """CREATE SOURCE. `options` are those given but the password, which is the secret called `secret`, or `password`;
    `text` is the statement without that. `positions` are the places of the options' values.
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
    """A relation in a backfill order: `typed` as the user spelt it, at a 1-based `position`."""

    name: str
    typed: str
    position: int
    qualified: bool = False


@dataclass(frozen=True, slots=True)
class BackfillOrder:
    """`FIXED(a -> b)`: the edges as (before, after). Empty for DEFAULT, NONE and AUTO."""

    edges: tuple[tuple[OrderedName, OrderedName], ...] = ()


@dataclass(frozen=True, slots=True)
class CreateMaterializedView:
    """`options` are the WITH options as typed, by name; `backfill_rate_limit` and `order` are their meaning.

    `limited` tells a limit that was given (None: unlimited) from one that was not, which the session then decides; it
    decides as well where `serverless` is None.
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
    """The query as given."""


@dataclass(frozen=True, slots=True)
class CreateView:
    """CREATE VIEW of a logical view. `sql` is the query as given, `reads` the relations that it names, each with the
    1-based position of its first place, and `text` the whole statement.
    """

    name: str
    if_not_exists: bool
    query: Tree = field(repr=False)
    sql: str
    reads: Mapping[str, int]
    text: str


@dataclass(frozen=True, slots=True)
class Drop:
    """`kind` is what the user says it is; the caller refuses another kind with `wrong_kind`."""

    kind: RelationKind
    name: str
    if_exists: bool = False
    cascade: bool = False


@dataclass(frozen=True, slots=True)
class Select:
    """A query, as given: Postgres itself parses it under the reader's login. `relations` are those of `public` that it
    names, as far as they can be told: empty where only Postgres understands the text. `catalog`: it names `rw_catalog`.
    """

    sql: str
    relations: tuple[str, ...] = ()
    catalog: bool = False


@dataclass(frozen=True, slots=True)
class Insert:
    """INSERT into `target` at `position`; bound by `dml.bind_insert`. `columns` are (name, position), empty where not
    listed.

    VALUES are `constants`, or else in `tree`. Else `query` is the query as given, and `tree` what sqlglot makes of it,
    if anything.
    """

    target: str
    position: int
    columns: tuple[tuple[str, int], ...]
    tree: Tree | None = field(repr=False)
    query: Select | None = None
    constants: Constants | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Update:
    """UPDATE of `target` at `position`; bound by `dml.bind_update`."""

    target: str
    position: int
    tree: Tree = field(repr=False)


@dataclass(frozen=True, slots=True)
class Delete:
    """DELETE from `target` at `position`; bound by `dml.bind_delete`."""

    target: str
    position: int
    tree: Tree = field(repr=False)


@dataclass(frozen=True, slots=True)
class SetVariable:
    """SET of a session variable; the value is its text, `default` for DEFAULT."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class ShowVariable:
    """SHOW of a session variable, or of all (None)."""

    name: str | None


@dataclass(frozen=True, slots=True)
class AlterSystem:
    """ALTER SYSTEM SET; the value is its text."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class ShowParameters:
    """SHOW PARAMETERS: the system parameters."""


@dataclass(frozen=True, slots=True)
class AlterRateLimit:
    """ALTER .. SET BACKFILL_RATE_LIMIT; a limit of None is unlimited, 0 is paused, `auto` is adapted to the load."""

    kind: RelationKind
    name: str
    limit: Asked


@dataclass(frozen=True, slots=True)
class AlterParallelism:
    """ALTER .. SET PARALLELISM, or (`backfill`) SET BACKFILL_PARALLELISM; None is DEFAULT. With `deferred` nobody waits
    until the new actors run.
    """

    kind: RelationKind
    name: str
    parallelism: Parallelism | None
    backfill: bool = False
    deferred: bool = False


@dataclass(frozen=True, slots=True)
class AlterFragmentRateLimit:
    """ALTER FRAGMENT .. SET RATE_LIMIT; a limit as in `AlterRateLimit`."""

    fragment: FragmentId
    limit: Asked


@dataclass(frozen=True, slots=True)
class ShowJobs:
    """SHOW JOBS."""


@dataclass(frozen=True, slots=True)
class CancelJobs:
    """CANCEL JOBS; ids in the order given, each once."""

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
    """SHOW TABLES, SHOW MATERIALIZED VIEWS, SHOW VIEWS, SHOW SOURCES."""

    kind: RelationKind


@dataclass(frozen=True, slots=True)
class ShowInternalTables:
    """SHOW INTERNAL TABLES: where the scans of jobs keep their positions."""


@dataclass(frozen=True, slots=True)
class ShowSecrets:
    """SHOW SECRETS: their names."""


@dataclass(frozen=True, slots=True)
class Describe:
    """DESCRIBE, SHOW COLUMNS FROM."""

    name: str


@dataclass(frozen=True, slots=True)
class ShowCreate:
    """SHOW CREATE TABLE, MATERIALIZED VIEW, VIEW or SOURCE."""

    kind: RelationKind
    name: str


@dataclass(frozen=True, slots=True)
class Explain:
    """EXPLAIN: the plan that the view would have."""

    view: CreateMaterializedView


@dataclass(frozen=True, slots=True)
class ExplainBackfill:
    """EXPLAIN (backfill, format dot): the backfill order that the view would have."""

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
    """Return Postgres's words for a statement about another kind of relation."""
    assert is_a is not asked
    return Invalid(f'"{name}" is not a {asked}; it is a {is_a}')
