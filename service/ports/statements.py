"""The port of the meta store's queue of DML."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Final, Protocol

from service.ports.records import StoredStatement
from service.protocol.dml import NOTHING_UNFINISHED, Statement, StatementResult, Unfinished
from service.protocol.ids import Epoch, StatementId

APPLIED_PARTLY: Final = ". It failed after other slices of its rows were applied; rows in the table: "
"""Between the error of a staged statement and the number of its rows that stay applied."""


class Statements(Protocol):
    """DML that was accepted and not yet answered."""

    async def reserve(self) -> StatementId: ...

    async def add(self, statement: Statement, *, now: datetime, staged_rows: int | None = None) -> int:
        """Store a statement; return how many bytes its text has."""
        ...

    async def outcomes(
        self, wanted: Collection[StatementId]
    ) -> Mapping[StatementId, tuple[Epoch, StatementResult] | None]:
        """Return the last epoch and the result of those of `wanted` that are known, None where they are not finished.
        What the statements say is not read.
        """
        ...

    async def get(self, statement: StatementId) -> StoredStatement | None: ...

    async def waiting(
        self, *, limit: int, bytes_max: int | None = None, singly: bool = False
    ) -> Sequence[StoredStatement]:
        """Return what no barrier carries yet: those that share an epoch, or those that are carried `singly`. Tables
        take turns, each with its oldest statement; a staged one comes back until its last slice committed. At least one
        is returned, and no more once their texts have `bytes_max` bytes.
        """
        ...

    async def backlog(self) -> tuple[int, int]:
        """Return how many statements no barrier carries yet, and how many bytes their texts have."""
        ...

    async def finish(
        self,
        results: Sequence[StatementResult],
        *,
        epoch: Epoch,
        now: datetime,
        unfinished: Unfinished = NOTHING_UNFINISHED,
    ) -> None:
        """Store results; for a slice add to `applied_rows` and put the statement back unless it was the last or
        failed. Put back what is unfinished: what was set aside is carried singly from now on.
        """
        ...

    async def blame(self, epoch: Epoch, culprit: StatementId | None) -> Sequence[tuple[StatementId, int]]:
        """Count an abandoned epoch as a try of each statement that it carried, and return them with their tries. The
        culprit is carried singly from now on.
        """
        ...

    async def staged(self) -> Sequence[StatementId]:
        """Return finished statements whose staging tables have yet to be dropped."""
        ...

    async def unstaged(self, statement: StatementId) -> None: ...
