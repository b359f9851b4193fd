"""Sources and secrets in the meta store; part of `service.ports.meta_store`.

A source has a name among the relations, and no job. What was made for it in the external database is written down
before it is made, as something to be cleaned up if nobody comes back for it (I9).
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Protocol

from service.domain.source import Retention
from service.protocol.cdc import Lsn
from service.protocol.ids import FragmentId, JobId, RelationId, SourceId
from service.protocol.report import Collected


@dataclass(frozen=True, slots=True)
class Password:
    """The secret called `name`, or a password given with the source itself."""

    name: str | None = None
    value: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        """One of the two."""
        assert (self.name is None) != (self.value is None), self


@dataclass(frozen=True, slots=True)
class NewSource:
    """A source to be stored; `publication` and `slot` None have one made up. `owns_publication`: it is to be made."""

    name: str
    definition: str
    options: Mapping[str, str]
    password: Password
    publication: str | None
    slot: str | None
    owns_publication: bool


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a source stands as of the newest report that was committed, and what was last asked of its server."""

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
    """What the leader found out about a slot: None where it could not, and `waiting` says why. That is not looked at
    where a worker says it.
    """

    lag_bytes: int | None = None
    retained_bytes: int | None = None
    waiting: str | None = None
    followed: bool = False


@dataclass(frozen=True, slots=True)
class Source:
    """A source. `shown` says that it was made; `dropped` that only what is left of it is to be cleaned up. `secret` is
    the name of the user's secret that is its password, None for one given with it.
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
    """A table that follows a source's. `added` says that it was published for it. `finished`: its history is read.
    `broken_since` is None also where it is not known.
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

    @property
    def external(self) -> tuple[str, str]:
        """Schema and name of what it follows."""
        return self.external_schema, self.external_table


@dataclass(frozen=True, slots=True)
class Told:
    """What a report says for the first time: a table that broke, or a source that waits or goes on (None)."""

    source: str
    table: str | None
    text: str | None


class Leftover(StrEnum):
    """What there is to clean up in an external database."""

    SLOT = "slot"
    PUBLICATION = "publication"
    TABLE = "table"
    """A table that is published for nobody any more."""


@dataclass(frozen=True, slots=True)
class SourceCleanup:
    """Something to be removed outside, from `due` on. `error` says why the last of the `attempts` failed."""

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
        """The external table with its schema, None where it is no table."""
        return None if self.external_table is None else f"{self.external_schema}.{self.external_table}"


class Sources(Protocol):
    """The sources of the catalog."""

    async def add(self, new: NewSource, *, now: datetime, abandoned_at: datetime) -> Source:
        """Take the name, and store a source that is not made yet: what will be made for it is to be cleaned up at
        `abandoned_at`. Raises Conflict when the name is taken.
        """
        ...

    async def made(self, source: SourceId, offset: Lsn) -> None:
        """Slot and publication are there: nothing is left to be cleaned up."""
        ...

    async def named(self, name: str) -> Source | None: ...

    async def get(self, source: SourceId) -> Source | None:
        """Return a source, also a dropped one that is not cleaned up yet."""
        ...

    async def all(self) -> Sequence[Source]:
        """Return those whose names are taken, oldest first."""
        ...

    async def password(self, source: SourceId) -> str: ...

    async def remove(self, source: SourceId, *, now: datetime, keeping: Collection[Leftover] = ()) -> None:
        """Free the name, and have what was made outside cleaned up, but for what is not its own to remove."""
        ...


class Following(Protocol):
    """The tables that follow sources."""

    async def tables(self, source: SourceId | None = None) -> Sequence[FollowedTable]:
        """Return those of one source, or of all, oldest first."""
        ...

    async def followed(self) -> Collection[SourceId]:
        """Return the sources that something follows."""
        ...

    async def record(self, answers: Iterable[Collected], *, now: datetime) -> Sequence[Told]:
        """Store what these answers, oldest first, say of sources; return what is new about it."""
        ...

    async def measured(self, source: SourceId, measured: Measured, *, now: datetime) -> None:
        """Store what the server said of a source that no worker reports on."""
        ...

    async def retained(self, source: SourceId, retention: Retention | None) -> None:
        """Store what was last told of the log that the slot holds."""
        ...

    async def idle(self, source: SourceId) -> bool:
        """Hold the source until the transaction ends; return whether nothing follows it, nor can until then."""
        ...

    async def skipped(self, source: SourceId, offset: Lsn, readable_after: int) -> None:
        """The slot of an idle source has forgotten everything up to `offset`: pages of what follows it from now on show
        all transactions before `readable_after`.
        """
        ...

    async def broke(self, source: SourceId, reason: str, *, now: datetime) -> Sequence[str]:
        """None of a source's tables follow it any more; return the names of those that did."""
        ...


class SourceCleanups(Protocol):
    """What is to be removed outside."""

    async def expect(self, source: SourceId, schema: str, table: str, *, now: datetime, due: datetime) -> None:
        """A table is about to be published for somebody: from `due` on, unless it is followed by then, it is taken
        back. Waits for whoever is taking it back just now.
        """
        ...

    async def due(self, now: datetime) -> Sequence[SourceCleanup]:
        """Return what is due, oldest first: slot and publication after the last table that follows the source."""
        ...

    async def hold(self, cleanup: int, now: datetime) -> SourceCleanup | None:
        """Return it if it is still due, and hold it until the transaction ends: nobody begins to follow the table, or
        has begun, meanwhile.
        """
        ...

    async def all(self) -> Sequence[SourceCleanup]: ...

    async def failed(self, cleanup: int, error: str, *, due: datetime) -> None: ...

    async def done(self, cleanup: int) -> None:
        """It is gone, or nobody's to remove. A dropped source is forgotten with the last of its own."""
        ...


class Secrets(Protocol):
    """Users' secrets by name. Nothing shows a value but `value`."""

    async def add(self, name: str, value: str) -> None:
        """Raises Conflict where there is one of this name."""
        ...

    async def change(self, name: str, value: str) -> None:
        """Raises NotFound."""
        ...

    async def value(self, name: str) -> str | None: ...

    async def names(self) -> Sequence[str]: ...

    async def remove(self, name: str) -> bool:
        """Return whether there was one. Raises Conflict while a source has it for a password."""
        ...
