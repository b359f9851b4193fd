"""External databases as operations use them. Each call opens a connection of its own, and is over within a bounded
time; nothing it raises holds a password.

All methods raise Unavailable where the server does not answer, and Invalid where it refuses what was asked in words
that are for whoever made the source.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from service.domain.external import ExternalTable, Publication
from service.domain.reach import ANY, HostRules
from service.protocol.cdc import Lsn, Published


@dataclass(frozen=True, slots=True)
class Address:
    """How to reach a source. `name` and `place` are for people."""

    name: str
    place: str
    conninfo: str = field(repr=False)
    hosts: HostRules = ANY
    """Which addresses may be connected to."""

    @property
    def label(self) -> str:
        """The source, as errors name it; before it is made it has no name."""
        return f'source "{self.name}"' if self.name else "the server"


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What a server is and what its login may do. `spilled` are the bytes that decoding has written to disk, and the
    transactions they were of, in the slot where that was most; None where nothing was decoded.
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
    """The login may see what the sessions of others do."""
    spilled: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class SlotFacts:
    """A slot. `why_lost` says why it can be used no more, None while it can. `lag_bytes` is the log that it has yet to
    confirm, `retained_bytes` what the server keeps for it.
    """

    name: str
    confirmed: Lsn | None
    active: bool
    lag_bytes: int | None
    retained_bytes: int | None
    why_lost: str | None = None


@dataclass(frozen=True, slots=True)
class SourceLoad:
    """What a server has to do. `lag_bytes` is the log that its slowest replica has yet to replay, None without one that
    may be seen; `active` the queries that run there and are not ours, None where the login may not see them.
    """

    lag_bytes: int | None
    active: int | None


class ExternalTables(Protocol):
    """Looks at a server and its tables; changes nothing."""

    async def conninfo(self, at: Address) -> str:
        """Return how to connect to the addresses, as they are now, that may be connected to."""
        ...

    async def server(self, at: Address) -> ServerFacts: ...

    async def load(self, at: Address) -> SourceLoad: ...

    async def table(self, at: Address, schema: str, name: str) -> ExternalTable | None: ...

    async def publication(self, at: Address, name: str) -> Publication | None: ...

    async def slot(self, at: Address, name: str) -> SlotFacts | None: ...

    async def extent(self, at: Address, table: ExternalTable, column: str) -> tuple[int, int] | None:
        """Return the least and the greatest value of a column of whole numbers, None where there is none."""
        ...

    async def sample(self, at: Address, table: ExternalTable, column: str) -> Sequence[str]:
        """Return values of a column in the server's order, as texts: those of its statistics, or else of some rows."""
        ...


class Replication(Protocol):
    """Makes and removes what following a database needs there."""

    async def create_publication(self, at: Address, name: str) -> None:
        """Make a publication of no table yet. Raises Conflict where there is one of this name."""
        ...

    async def create_slot(self, at: Address, name: str) -> Lsn:
        """Make a slot and return the place from which on it decodes. Raises Conflict where there is one of this name;
        Unavailable also where transactions that run there do not end.
        """
        ...

    async def publish(self, at: Address, publication: str, schema: str, table: str) -> tuple[int, Published]:
        """Have a table published, and return a transaction's id, of those before which the log may lack changes, and
        the table's place in the publication. Raises Invalid where the login may not do so.
        """
        ...

    async def unpublish(self, at: Address, publication: str, schema: str, table: str) -> None:
        """Have a table published no more. Repeatable."""
        ...

    async def drop_publication(self, at: Address, name: str) -> None:
        """Repeatable."""
        ...

    async def drop_slot(self, at: Address, name: str) -> None:
        """Drop it, and end the session that decodes from it. Repeatable. Raises Unavailable where another begins to."""
        ...

    async def skip(self, at: Address, slot: str) -> tuple[Lsn, int]:
        """Have the slot forget everything up to now, or a limited part of that, to be called again; return where that
        is, with a transaction's id: of those before it changes may have been forgotten.
        """
        ...
