"""The state store as the service uses it: authority, visibility and clean-up; rows are the workers' business.

Versioned tables (DESIGN: "tables with versions"): `state.t_<id>(_vnode, columns.., _from, _to)`, read at E as `_from
<= E and _to > E`. Every write asserts the leader's term inside its own transaction (I7). All methods are repeatable:
a leader that died half-way leaves a state from which the next call continues. They raise Unavailable or Deposed;
`fence` Stale for a generation that is over; `create`, `publish` and `drop` Conflict where something of a user's is in
the way: a relation of that name in schema public, a view of theirs over ours.
"""

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from service.protocol.columns import Column
from service.protocol.ids import Epoch, Generation, GraphId, RelationId, StatementId, Term
from service.protocol.relation import Relation


class VersionedTables(Protocol):
    """Create, publish, fence, roll back, vacuum, drop."""

    async def claim(self, term: Term) -> None:
        """A new leader takes the store over: older terms are refused from now on."""
        ...

    async def create(self, relation: Relation, *, term: Term, loading: bool = False) -> None:
        """Create the versioned table with its indexes, and the `live` view that DML reads. While it is `loading`, it
        lacks the index of its storage order: rows can be inserted, and rolled back, and nothing else.
        """
        ...

    async def index(self, relation: Relation, *, term: Term) -> None:
        """Build the index of storage order where it is missing. Raises Exhausted where the store lacks space, memory or
        time for it, Invalid where it refuses.
        """
        ...

    async def publish(
        self, graph: GraphId, epoch: Epoch, *, term: Term, created: Sequence[Relation]
    ) -> Mapping[RelationId, str]:
        """Show `epoch` (never an older one than shown) and the public views of relations that have become readable,
        in one transaction (I2). Return the relations whose view could not be made, each with the reason: they hold up
        no epoch (I13).
        """
        ...

    async def fence(self, graph: GraphId, generation: Generation, *, term: Term) -> None:
        """Refuse every older generation, and end its sessions (named `tidefill:<graph>:<generation>`)."""
        ...

    async def retire(self, graph: GraphId, generation: Generation, *, term: Term) -> None:
        """Refuse every generation before this one, end their sessions, and forget the graph: nothing is written in its
        name any more.
        """
        ...

    async def roll_back(self, relations: Collection[RelationId], epoch: Epoch, *, term: Term) -> None:
        """Delete what was written after `epoch` and reopen what was closed after it (I3)."""
        ...

    async def vacuum(self, relations: Collection[RelationId], graph: GraphId, epoch: Epoch, *, term: Term) -> int:
        """Delete versions that ended at or before min(epoch, published, every pin); return how many."""
        ...

    async def foreign_readers(self, names: Collection[str]) -> Sequence[str]:
        """Return the objects, as schema.name, that somebody else built upon the public views of these names."""
        ...

    async def drop(self, relation: RelationId, name: str, *, term: Term) -> None:
        """Remove public view, live view and table, where they are this relation's (I9)."""
        ...


class Pins(Protocol):
    """Readers that need an epoch to stay readable for longer than one transaction."""

    def pin(self, graph: GraphId, epoch: Epoch, *, holder: str) -> AbstractAsyncContextManager[None]:
        """Hold the versions readable at `epoch`; no two readers share a `holder`. Raises Conflict when they may have
        been vacuumed, and Unavailable, ending the block, when the pin could not be kept.
        """
        ...


@dataclass(frozen=True, slots=True)
class QueryResult:
    """Columns as (name, Postgres type name), rows as JSON values; `truncated` says that the row cap cut it."""

    columns: tuple[tuple[str, str], ...]
    rows: tuple[tuple[Any, ...], ...]
    truncated: bool


class Reader(Protocol):
    """A user's SELECT, under a login that can read the public views and `rw_catalog` and nothing else."""

    async def query(self, sql: str, *, row_limit: int, timeout_ms: int, catalog: bool = False) -> QueryResult:
        """Run one query, read-only; `catalog` says that it reads `rw_catalog`, which may be another database's. Raises
        Invalid with Postgres's message and position, or Unavailable.
        """
        ...

    async def describe(self, sql: str, *, timeout_ms: int) -> tuple[tuple[str, str], ...]:
        """Return the columns that a query would give, as (name, Postgres type name), without running it. Raises as
        `query` does.
        """
        ...


class PublicViews(Protocol):
    """Logical views in the state store's schema `public`."""

    async def create(self, view: RelationId, name: str, sql: str, *, reads: Collection[str]) -> None:
        """Make the view, which gives whoever reads it what he may read himself and no more. Repeatable. Raises Invalid
        with Postgres's message, also where the query reads something else than the relations `reads` of `public`;
        Conflict where somebody else's relation has the name.
        """
        ...


class Staging(Protocol):
    """Rows that wait outside any epoch: `stage.s_<id>(_row bigint primary key, columns..)`; `_row` counts from 0.

    Within the block of `from_query` and `from_csv` the table is held: there the statement has to be accepted.
    """

    def from_query(
        self, statement: StatementId, columns: Sequence[Column], sql: str, *, timeout_ms: int, key: Sequence[str] = ()
    ) -> AbstractAsyncContextManager[int]:
        """Stage what a query gives, in its order, run under the reader's login; return the number of rows. Values are
        assigned as INSERT does and checked as the target's are, the size of its `key` included. Raises Invalid.
        """
        ...

    def from_csv(
        self,
        statement: StatementId,
        columns: Sequence[Column],
        chunks: AsyncIterator[bytes],
        *,
        key: Sequence[str] = (),
    ) -> AbstractAsyncContextManager[int]:
        """Stage Postgres CSV text (the bulk load's normal form). Raises Invalid naming the first bad row by number
        (1-based).
        """
        ...

    async def unheld(self) -> Sequence[StatementId]:
        """Return the statements that have a table which nobody fills any more: those of them that were not accepted by
        now never will be.
        """
        ...

    async def drop(self, statement: StatementId) -> None: ...
