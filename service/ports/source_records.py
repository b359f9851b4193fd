"""Store sources and secrets in the meta store. Part of `service.ports.meta_store`.

A source shares the namespace of relations and has no job. Before an object is created for it in the external database,
a clean-up of that object is stored, which is due if the creating service dies (I9).
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Protocol

from service.domain.source import Retention
from service.protocol.cdc import CdcScan, Lsn, SourceReport
from service.protocol.ids import FragmentId, JobId, RelationId, SourceId


@dataclass(frozen=True, slots=True)
class Password:
    """The password of a source: the value of the secret called `name`, or `value` from the source's options."""

    name: str | None = None
    value: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        """Check that exactly one of the two is set."""
        assert (self.name is None) != (self.value is None), self


@dataclass(frozen=True, slots=True)
class NewSource:
    """A new source. If `publication` or `slot` is None, the store chooses its name. With `owns_publication` tidefill
    creates the publication.
    """

    name: str
    definition: str
    options: Mapping[str, str]
    password: Password
    publication: str | None
    slot: str | None
    owns_publication: bool


@dataclass(frozen=True, slots=True)
class Standing:
    """The status of a source: the newest committed report and the last measurement of its server."""

    offset: Lsn | None = None
    undecided: int = 0
    waiting: str | None = None
    lag_bytes: int | None = None
    retained_bytes: int | None = None
    commit_lag_ms: float | None = None
    changes: int = 0
    reported_at: datetime | None = None
    retention: Retention | None = None


@dataclass(frozen=True, slots=True)
class Measured:
    """The leader's measurement of a slot. Values are None if it failed, and `waiting` is the reason. `waiting` is
    ignored for a source that a worker reports on.
    """

    lag_bytes: int | None = None
    retained_bytes: int | None = None
    waiting: str | None = None
    followed: bool = False


@dataclass(frozen=True, slots=True)
class Source:
    """A source. `shown` is true once it is created. `dropped` is true if only its clean-up is left. `secret` is the
    name of the password's secret, None for a password in the source's options.
    """

    id: SourceId
    name: str
    definition: str
    options: Mapping[str, str]
    publication: str
    slot: str
    owns_publication: bool
    shown: bool
    dropped: bool
    secret: str | None
    standing: Standing = Standing()


@dataclass(frozen=True, slots=True)
class FollowedTable:
    """A followed table. `added` is true if the external table was published for it. `finished` is true once its history
    is read. `broken_since` may be unknown (None) even if the table is broken.
    """

    source: SourceId
    relation: RelationId
    job: JobId
    fragment: FragmentId
    name: str
    external_schema: str
    external_table: str
    added: bool
    splits: int
    splits_completed: int
    finished: bool
    broken: str | None = None
    broken_since: datetime | None = None
    waiting: str | None = None
    nulled: int = 0
    """How many values were stored as NULL, because they cannot be kept."""
    note: str | None = None
    """Why it has not all new columns of the external table."""

    @property
    def external(self) -> tuple[str, str]:
        """The schema and name of its external table."""
        return self.external_schema, self.external_table


@dataclass(frozen=True, slots=True)
class Told:
    """A state change in a report: a followed table that broke, or a source that waits (`text`) or continues (None)."""

    source: str
    table: str | None
    text: str | None


class Leftover(StrEnum):
    """The kinds of objects to clean up in an external database."""

    SLOT = "slot"
    PUBLICATION = "publication"
    TABLE = "table"
    """A published table without a followed table. It is removed from the publication."""


@dataclass(frozen=True, slots=True)
class SourceCleanup:
    """A pending clean-up in an external database, due at `due`. `error` is the reason why the last attempt failed."""

    id: int
    source: SourceId
    what: Leftover
    external_schema: str | None
    external_table: str | None
    asked_at: datetime
    due: datetime
    attempts: int = 0
    error: str | None = None

    @property
    def table(self) -> str | None:
        """The external table with its schema, None for another kind of object."""
        return None if self.external_table is None else f"{self.external_schema}.{self.external_table}"


class Sources(Protocol):
    """The sources of the catalog."""

    async def add(self, new: NewSource, *, now: datetime, abandoned_at: datetime) -> Source:
        """Store a source that is not created yet, and clean-ups of its objects that are due at `abandoned_at`.

        Raises Conflict if the name is taken.
        """
        ...

    async def made(self, source: SourceId, offset: Lsn) -> None:
        """Record that slot and publication exist, and delete their clean-ups."""
        ...

    async def named(self, name: str) -> Source | None: ...

    async def get(self, source: SourceId) -> Source | None:
        """Return a source, even a dropped one with a pending clean-up."""
        ...

    async def all(self) -> Sequence[Source]:
        """Return the sources that are not dropped, oldest first."""
        ...

    async def password(self, source: SourceId) -> str: ...

    async def remove(self, source: SourceId, *, now: datetime, keeping: Collection[Leftover] = ()) -> None:
        """Free the name and queue the clean-up of the external objects, except for `keeping` and foreign ones."""
        ...


class Following(Protocol):
    """The followed tables of sources."""

    async def tables(self, source: SourceId | None = None) -> Sequence[FollowedTable]:
        """Return the followed tables of one source, or of all sources, oldest first."""
        ...

    async def followed(self) -> Collection[SourceId]:
        """Return the sources with followed tables that still follow them."""
        ...

    async def lacking(self) -> Sequence[FollowedTable]:
        """Return the tables that are to have all columns, and whose external tables have more, or that have a note."""
        ...

    async def note(self, fragment: FragmentId, note: str | None) -> None:
        """Store why a table has not all new columns."""
        ...

    async def begin_reload(self, fragment: FragmentId) -> None:
        """Forget the number of rows that were read, because the next report may have fewer."""
        ...

    async def reload(self, scans: Mapping[FragmentId, CdcScan]) -> None:
        """Replace the scans of followed tables. Broken ones are followed again."""
        ...

    async def restart(self, fragments: Collection[FragmentId]) -> None:
        """Begin the histories of followed tables anew."""
        ...

    async def record(self, reports: Iterable[SourceReport], *, now: datetime) -> Sequence[Told]:
        """Store these reports, oldest first, and return the state changes."""
        ...

    async def broke(self, source: SourceId, reason: str, *, now: datetime) -> Sequence[str]:
        """Mark all followed tables of a source as broken. Return the names of those that were not broken before."""
        ...


class Slots(Protocol):
    """The replication slots of sources, as last measured."""

    async def measured(self, source: SourceId, measured: Measured, *, now: datetime) -> None:
        """Store a measurement of a source's slot."""
        ...

    async def retained(self, source: SourceId, retention: Retention | None) -> None:
        """Store the retention state of the slot, as last reported in an event."""
        ...

    async def idle(self, source: SourceId) -> bool:
        """Lock the source until the transaction ends. Return whether no table follows it, or can until then."""
        ...

    async def skipped(self, source: SourceId, offset: Lsn, readable_after: int) -> None:
        """Record that the slot of an idle source was advanced to `offset`.

        Pages of later followed tables must be read from a snapshot that shows all transactions before `readable_after`.
        """
        ...


class SourceCleanups(Protocol):
    """The pending clean-ups in external databases."""

    async def expect(self, source: SourceId, schema: str, table: str, *, now: datetime, due: datetime) -> None:
        """Store the clean-up of a table that is about to be published, due at `due` unless it is followed then.

        Waits for a running clean-up of the same table.
        """
        ...

    async def due(self, now: datetime) -> Sequence[SourceCleanup]:
        """Return the due clean-ups, oldest first. Slot and publication come after the source's last followed table."""
        ...

    async def hold(self, cleanup: int, now: datetime) -> SourceCleanup | None:
        """Lock a clean-up until the transaction ends and return it, or None if it is no longer due.

        The lock prevents that a followed table for the external table is created meanwhile.
        """
        ...

    async def all(self) -> Sequence[SourceCleanup]: ...

    async def failed(self, cleanup: int, error: str, *, due: datetime) -> None: ...

    async def done(self, cleanup: int) -> None:
        """Delete a finished or unneeded clean-up. The last one of a dropped source also deletes the source."""
        ...


class Secrets(Protocol):
    """Users' secrets by name. Only `value` returns a value."""

    async def add(self, name: str, value: str) -> None:
        """Raises Conflict if the name is taken."""
        ...

    async def change(self, name: str, value: str) -> None:
        """Raises NotFound."""
        ...

    async def value(self, name: str) -> str | None: ...

    async def names(self) -> Sequence[str]: ...

    async def remove(self, name: str) -> bool:
        """Return whether the secret existed. Raises Conflict while a source uses it as its password."""
        ...
