"""Describe the sources of the meta store.

A source shares the namespace of relations and has no job. Before an object is created for it in the external database,
a clean-up of that object is stored, which is due if the creating service dies (I9).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from service.domain.source import Retention
from service.protocol.cdc import Lsn
from service.protocol.connector import Connector
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
class NewLakeSource:
    """A new source that is a place of many tables in a lake."""

    name: str
    definition: str
    connector: Connector


@dataclass(frozen=True, slots=True)
class LakeSource:
    """A source that is a place of many tables in a lake. A table of it lies below its location."""

    id: RelationId
    name: str
    definition: str
    connector: Connector


@dataclass(frozen=True, slots=True)
class AwayTable:
    """A table that is read in place, and cannot be read at present. It goes on by itself."""

    relation: RelationId
    job: JobId
    reason: str
    since: datetime | None


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
