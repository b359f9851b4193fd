"""Define the service's access to the state store: authority, visibility and clean-up. Workers write the rows.

Versioned tables (DESIGN: "tables with versions"): `state.t_<id>(_vnode, columns.., _from, _to)`, read at E as `_from
<= E and _to > E`. Every write asserts the leader's term inside its own transaction (I7). All methods are repeatable: if
a leader dies half-way, the next call continues from the stored state.

All methods raise Unavailable or Deposed. `fence` also raises Stale for an old generation. `create` raises Invalid if
Postgres refuses the table. `create` and `drop` raise Conflict if a user's object is in the way: a relation with the
name in schema public, or a view over one of tidefill's views.
"""

from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Final, Protocol

from service.domain.fan_out import Statistics
from service.domain.quotas import Bound
from service.domain.sessions import Ended
from service.protocol.columns import Column
from service.protocol.ids import Epoch, Generation, GraphId, RelationId, StatementId, Term
from service.protocol.relation import Relation
from service.protocol.stage import LookupIndex


class Fences(Protocol):
    """The authority to write: the leader's term, and the generation of each graph (I7)."""

    async def claim(self, term: Term) -> None:
        """Claim the store for a new leader. Older terms are refused from now on."""
        ...

    async def fence(self, graph: GraphId, generation: Generation, *, term: Term) -> Collection[Generation]:
        """Refuse every older generation, and end its sessions (named `tidefill:<graph>:<generation>`).

        Return the generations of the sessions that did not end in time.
        """
        ...

    async def retire(self, graph: GraphId, generation: Generation, *, term: Term) -> None:
        """Refuse every older generation, end their sessions and delete the graph. No writer of it can commit then."""
        ...


class VersionedTables(Protocol):
    """Create, publish, roll back, vacuum, drop."""

    async def create(
        self,
        relation: Relation,
        *,
        term: Term,
        loading: bool = False,
        lookups: Collection[LookupIndex] = (),
        sums: Sequence[str] = (),
        logged: bool = False,
    ) -> None:
        """Create the versioned table with its indexes, and the `live` view that DML reads.

        A view of a dropped relation with the same name is removed, and reading sessions that still use it are ended.
        Raises InUse if another session does.

        With `loading` the table lacks the storage-order index, so rows can only be inserted and rolled back. `lookups`
        are the lookup indexes that it gets at once. With `sums`, the columns of a group's key and sums, it gets a log
        of partial groups, which `end_load` drops. A `logged` one gets the log of a followed table in a lake.
        """
        ...

    async def end_load(self, relation: Relation, *, term: Term) -> None:
        """Build the storage-order index if it is missing, and drop the log of partial groups.

        Raises Exhausted if the store lacks space, memory or time for it, and Invalid if the store refuses it.
        """
        ...

    async def publish(
        self, graph: GraphId, epoch: Epoch, *, term: Term, created: Sequence[Relation]
    ) -> Mapping[RelationId, str]:
        """Publish `epoch` and create the public views of created relations, in one transaction (I2).

        The published epoch never goes back. Return the relations whose view could not be created, each with the reason.
        They do not delay the epoch (I13).
        """
        ...

    async def roll_back(self, relations: Collection[RelationId], graph: GraphId, epoch: Epoch, *, term: Term) -> None:
        """Delete the versions that began after `epoch`, and revive those that ended after it (I3).

        Raises Conflict if the graph's horizon is beyond: a vacuum may have deleted some of the latter.
        """
        ...

    async def vacuum(self, relations: Collection[RelationId], graph: GraphId, epoch: Epoch, *, term: Term) -> int:
        """Delete the versions that ended at or before min(epoch, published, every pin), and return their number."""
        ...

    async def add_column(self, relation: Relation) -> None:
        """Add the last column of a relation to its table and its views, if it is missing.

        Older versions show its default.
        Raises InUse if another session uses the relation, and Conflict if the table has such a column of another type.
        """
        ...

    async def foreign_readers(self, names: Collection[str]) -> Sequence[str]:
        """Return the users' objects, as schema.name, that depend on the public views with these names."""
        ...

    async def lake_versions(self, relations: Collection[RelationId]) -> Mapping[RelationId, tuple[int, Epoch]]:
        """Return the newest version of each of these tables of a lake, and the epoch since which it is that.

        Left out is what has no version: a table before its first one, and a folder of files.
        """
        ...

    async def drop(self, relation: RelationId, name: str, *, term: Term) -> None:
        """Remove public view, live view and table, if they belong to this relation (I9).

        Raises InUse at once if a session that has used one of them for long still does.
        """
        ...

    async def hide(self, relation: RelationId, name: str, *, term: Term) -> None:
        """Take the public view of a dropped relation from its readers, as long as it cannot be removed."""
        ...


@dataclass(frozen=True, slots=True)
class IndexSize:
    """The size of an index in bytes. One that is not `complete` serves no query."""

    complete: bool
    bytes: int


class LookupIndexes(Protocol):
    """Indexes of versioned tables by which stages and users look up rows."""

    async def missing(self, wanted: Collection[LookupIndex]) -> frozenset[LookupIndex]:
        """Return those of `wanted` that are not built yet. Those of relations without a table are left out."""
        ...

    async def build(self, index: LookupIndex, *, term: Term) -> None:
        """Build an index if it is missing, without a lock that stops writers. The wait is as long as the build.

        Cancelled, it leaves an incomplete index. Raises InUse if a session has locked its table, Exhausted if the store
        lacks space, memory or time for it, and Invalid if the store refuses it.
        """
        ...

    async def held(self) -> Mapping[LookupIndex, str]:
        """Return the running builds that wait for the transaction of another session, each with that session."""
        ...

    async def stored(self) -> Mapping[str, IndexSize]:
        """Return all indexes that there are, by name: also those that an interrupted build or drop left."""
        ...

    def name(self, index: LookupIndex) -> str:
        """Return the name of an index in the store, the same for equal ones."""
        ...

    async def statistics(self, relations: Collection[RelationId]) -> Statistics:
        """Return what the store knows of the rows of relations. Those of which it knows nothing are left out."""
        ...

    async def drop(self, names: Collection[str], *, term: Term) -> frozenset[str]:
        """Drop indexes, and return those that are gone. One that is in use is soon left for the next call."""
        ...


class Pins(Protocol):
    """Keeps an epoch readable for longer than one transaction."""

    def pin(self, graph: GraphId, epoch: Epoch, *, holder: str) -> AbstractAsyncContextManager[None]:
        """Keep the versions of `epoch` while the block runs. Each reader has a unique `holder`.

        Raises Conflict if the versions may have been vacuumed. If the pin cannot be kept, the block is cancelled and
        Unavailable is raised.
        """
        ...


@dataclass(frozen=True, slots=True)
class QueryResult:
    """The result of a query: columns as (name, Postgres type name), rows as JSON values. `truncated` is true if the row
    limit cut it.
    """

    columns: tuple[tuple[str, str], ...]
    rows: tuple[tuple[Any, ...], ...]
    truncated: bool


DESCRIBE_MS: Final = 10_000
"""The timeout of a description (`Reader.describe`). Postgres only plans the query."""


class Reader(Protocol):
    """Runs users' SELECTs under a login that can read only the public views and `rw_catalog`."""

    def of(self, caller: str) -> "Reader":
        """Return the reader for the calls of one caller, who takes its share of the queries only.

        Otherwise they take the share of the service itself.
        """
        ...

    async def query(
        self,
        sql: str,
        *,
        row_limit: int,
        timeout_ms: int,
        catalog: bool = False,
        quota: Bound | None = None,
    ) -> QueryResult:
        """Run one read-only query. With `catalog` it reads `rw_catalog`, which may be in another database.

        `quota` bounds the bytes of the result, if it is lower than the bound of all results.

        Raises Invalid with Postgres's message and position, TooLarge, or Unavailable.
        """
        ...

    async def describe(self, sql: str, *, timeout_ms: int) -> tuple[tuple[str, str], ...]:
        """Return the columns of a query as (name, Postgres type name), without running it. Raises as `query` does."""
        ...

    async def explain(self, sql: str, *, timeout_ms: int, catalog: bool = False) -> tuple[str, ...]:
        """Return the lines of Postgres's plan of a query, without running it. Raises as `query` does."""
        ...


class ReadSessions(Protocol):
    """The sessions that users' own tools open under the login for them."""

    async def end_overdue(self) -> Sequence[Ended]:
        """End those that exceed their limits, whatever they have set, and return them."""
        ...


class PublicViews(Protocol):
    """Logical views in the state store's schema `public`."""

    async def create(
        self, view: RelationId, name: str, sql: str, *, reads: Collection[str], columns: Sequence[str] = ()
    ) -> None:
        """Create the view, which runs with the rights of the reading user. Repeatable.

        `columns` are the names of its first columns.

        Raises Invalid with Postgres's message, and also if the query reads other relations than `reads` of `public`.
        Raises Conflict if a user's relation has the name.
        """
        ...


@dataclass(frozen=True, slots=True)
class StagedRows:
    """How many rows were staged, and the mean size of a row."""

    rows: int
    row_bytes: int = 0


class Staging(Protocol):
    """Rows that are staged outside any epoch: `stage.s_<id>(_row bigint, columns..)`. `_row` counts from 0.

    Within the block of `from_query` and `from_csv` the table is locked against clean-up. The statement has to be
    accepted inside the block.
    """

    def from_query(
        self,
        statement: StatementId,
        columns: Sequence[Column],
        sql: str,
        *,
        timeout_ms: int,
        take: Callable[[int], None],
        key: Sequence[str] = (),
    ) -> AbstractAsyncContextManager[StagedRows]:
        """Stage the rows of a query, in its order, and yield them. The query runs under the reader's login.

        Values are assigned as in INSERT. They are checked like the target's values, including the size of its `key`.
        `take` is called with the bytes of each portion of rows. Raises Invalid, and what `take` raises.
        """
        ...

    def from_csv(
        self,
        statement: StatementId,
        columns: Sequence[Column],
        chunks: AsyncIterator[bytes],
        *,
        key: Sequence[str] = (),
    ) -> AbstractAsyncContextManager[StagedRows]:
        """Stage Postgres CSV text and yield the rows. Raises Invalid with the number (from 1) of a bad row."""
        ...

    async def unheld(self) -> Sequence[StatementId]:
        """Return the statements whose staging tables are not locked. If not accepted by now, they never will be."""
        ...

    async def drop(self, statement: StatementId) -> None: ...
