"""Read rows and digests of a followed table and of its external table.

Every method raises Unavailable if a server does not answer.
"""

from collections.abc import Collection
from typing import Protocol

from service.domain.comparing import Digest, Key, Part, Rows
from service.ports.sources import Address
from service.protocol.cdc import CdcScan, Lsn
from service.protocol.ids import Epoch
from service.protocol.relation import Relation


class ExternalRows(Protocol):
    """The external table. Reads also return the end of the log after the read, which is after all changes that were
    read.
    """

    async def ordered_alike(self, at: Address, scan: CdcScan, relation: Relation) -> bool:
        """Whether the server orders the keys as tidefill does."""
        ...

    async def end(self, at: Address, scan: CdcScan, relation: Relation, after: Key | None, rows: int) -> Key | None:
        """Return the last of the next `rows` keys after `after`, or None if fewer are left."""
        ...

    async def digest(self, at: Address, scan: CdcScan, relation: Relation, part: Part) -> tuple[Digest, Lsn]: ...

    async def rows(self, at: Address, scan: CdcScan, relation: Relation, part: Part, most: int) -> tuple[Rows, Lsn]:
        """Return rows of a part, at most so many."""
        ...

    async def rows_of(
        self, at: Address, scan: CdcScan, relation: Relation, keys: Collection[Key]
    ) -> tuple[Rows, Lsn]: ...


class FollowedRows(Protocol):
    """The followed table at a pinned epoch."""

    async def digest(self, scan: CdcScan, relation: Relation, part: Part, *, at: Epoch) -> Digest: ...

    async def rows(self, scan: CdcScan, relation: Relation, part: Part, most: int, *, at: Epoch) -> Rows:
        """Return rows of a part, at most so many."""
        ...

    async def rows_of(self, scan: CdcScan, relation: Relation, keys: Collection[Key], *, at: Epoch) -> Rows: ...

    async def vnodes(self, scan: CdcScan, relation: Relation, keys: Collection[Key]) -> dict[Key, int]:
        """Return the vnode of each key."""
        ...
