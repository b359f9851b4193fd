"""Access external databases. Each call opens its own connection and ends within a bounded time.

All methods raise Unavailable if the server does not answer, and Invalid with a message for the source's owner if it
refuses. Errors contain no password.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from service.domain.external import ExternalTable, Publication
from service.domain.reach import ANY, HostRules
from service.protocol.cdc import Lsn, Published


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a source. `name` and `place` are for messages."""

    name: str
    place: str
    conninfo: str = field(repr=False)
    hosts: HostRules = ANY
    """The addresses to which a connection is allowed."""

    @property
    def label(self) -> str:
        """The source in error messages. Before it is created it has no name."""
        return f'source "{self.name}"' if self.name else "the server"


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """The properties of a server and the rights of its login. `spilled` are the bytes and transactions that decoding
    has spilled to disk in the slot with the most spilled bytes, None if nothing was decoded.
    """

    version: str
    version_number: int
    wal_level: str
    in_recovery: bool
    replication: bool
    creates: bool
    slots: int
    slots_max: int
    monitors: bool
    """The login sees the activity of other sessions."""
    spilled: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class SlotFacts:
    """A replication slot. `why_lost` is the reason why it is unusable, None while it is usable. `lag_bytes` is the log
    after its confirmed position, `retained_bytes` the log that the server retains for it.
    """

    name: str
    confirmed: Lsn | None
    active: bool
    lag_bytes: int | None
    retained_bytes: int | None
    why_lost: str | None = None


@dataclass(frozen=True, slots=True)
class SourceLoad:
    """The load of a server. `lag_bytes` is the log that its slowest replica has not replayed, None without a visible
    replica. `active` is the number of running queries except tidefill's, None if the login may not see them.
    """

    lag_bytes: int | None
    active: int | None


class ExternalServers(Protocol):
    """Reads the properties of servers. Changes nothing."""

    async def conninfo(self, at: Address) -> str:
        """Return a connection string with the presently resolved addresses to which a connection is allowed."""
        ...

    async def server(self, at: Address) -> ServerFacts: ...

    async def load(self, at: Address) -> SourceLoad: ...

    async def slot(self, at: Address, name: str) -> SlotFacts | None: ...


class ExternalTables(Protocol):
    """Reads the properties of tables. Changes nothing."""

    async def table(self, at: Address, schema: str, name: str) -> ExternalTable | None: ...

    async def publication(self, at: Address, name: str) -> Publication | None: ...

    async def extent(self, at: Address, table: ExternalTable, column: str) -> tuple[int, int] | None:
        """Return the minimum and maximum of an integer column, or None for an empty table."""
        ...

    async def sample(self, at: Address, table: ExternalTable, column: str) -> Sequence[str]:
        """Return values of a column as texts, in the server's order, from its statistics or else from sampled rows."""
        ...


class Replication(Protocol):
    """Creates and removes the publications and slots of sources in external databases."""

    async def create_publication(self, at: Address, name: str) -> None:
        """Create an empty publication. Raises Conflict if the name is taken."""
        ...

    async def create_slot(self, at: Address, name: str) -> Lsn:
        """Create a slot and return the LSN from which it decodes.

        Raises Conflict if the name is taken, and Unavailable also if running transactions do not end in time.
        """
        ...

    async def publish(self, at: Address, publication: str, schema: str, table: str) -> tuple[int, Published]:
        """Add a table to a publication. Return a transaction id and the table's entry in the publication.

        The log may lack changes only of transactions before that id. Raises Invalid if the login may not add the table.
        """
        ...

    async def unpublish(self, at: Address, publication: str, schema: str, table: str) -> None:
        """Remove a table from a publication. Repeatable."""
        ...

    async def drop_publication(self, at: Address, name: str) -> None:
        """Repeatable."""
        ...

    async def drop_slot(self, at: Address, name: str) -> None:
        """Drop a slot and end the session that decodes from it. Repeatable.

        Raises Unavailable if another session begins to decode from it.
        """
        ...

    async def skip(self, at: Address, slot: str) -> tuple[Lsn, int]:
        """Advance the slot to the end of the log, or by a limited part of it. Then it has to be called again.

        Return the new LSN and a transaction id. Changes of transactions before that id may have been skipped.
        """
        ...
