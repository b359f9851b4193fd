"""Store the queue of DML in the meta store."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Protocol

from service.domain.backlog import QueuedStatements
from service.domain.unstoppable import Unstoppable
from service.ports.records import StoredStatement
from service.protocol.dml import NOTHING_UNFINISHED, Statement, StatementResult, Unfinished
from service.protocol.ids import Epoch, StatementId

APPLIED_PARTLY: Final = ". It failed after other slices of its rows were applied; rows in the table: "
"""The text between the error of a staged statement and the number of its rows that stay applied."""


@dataclass(frozen=True, slots=True)
class StagedStatement:
    """A statement whose rows several epochs publish: `rows` of `total` by now."""

    id: StatementId
    relation: str
    rows: int
    total: int


class Statements(Protocol):
    """Accepted DML statements."""

    async def reserve(self) -> StatementId: ...

    async def add(
        self, statement: Statement, *, now: datetime, staged_rows: int | None = None, caller: str | None = None
    ) -> int:
        """Store a statement and return the size of its text in bytes."""
        ...

    async def outcomes(
        self, wanted: Collection[StatementId]
    ) -> Mapping[StatementId, tuple[Epoch, StatementResult] | None]:
        """Return the last epoch and the result of each known statement of `wanted`, or None if it is not finished.

        The texts of the statements are not read.
        """
        ...

    async def waiting(
        self, *, limit: int, bytes_max: int | None = None, singly: bool = False
    ) -> Sequence[StoredStatement]:
        """Return statements that no barrier carries yet: those that share an epoch, or those that are carried `singly`.

        Callers take turns (I13), and the tables of each caller, each with its oldest statement. A staged statement is
        returned again until its last slice has committed. If any statement waits, at least one is returned. No more are
        added once their texts have `bytes_max` bytes. Their relations have the present columns.
        """
        ...

    async def backlog(self) -> Mapping[str, QueuedStatements]:
        """Return the statements that no barrier carries yet, by caller; those without one are the caller ""."""
        ...

    async def finish(
        self,
        results: Sequence[StatementResult],
        *,
        epoch: Epoch,
        now: datetime,
        unfinished: Unfinished = NOTHING_UNFINISHED,
    ) -> None:
        """Store results and return the unfinished statements to the queue.

        The result of a slice is added to `applied_rows`, and the statement returns to the queue unless the slice failed
        or was the last. A statement that was set aside is carried singly from now on.
        """
        ...

    async def blame(self, epoch: Epoch, culprit: StatementId | None) -> Sequence[tuple[StatementId, int]]:
        """Count an abandoned epoch as an attempt of each statement that it carried, and return their attempts.

        The culprit is carried singly from now on.
        """
        ...

    async def unstoppable(self, *, since: datetime) -> Mapping[str, Unstoppable]:
        """Return for each caller the last statement that could not be stopped, if that was after `since`."""
        ...

    async def given_up(self, statement: StatementId, *, now: datetime) -> Sequence[StatementId]:
        """Store that a statement could not be stopped, and return the unfinished ones of its caller that may be alike:
        all but those with staged rows, which compute nothing.
        """
        ...


class StagingTables(Protocol):
    """The staging tables of accepted statements."""

    async def unused(self) -> Sequence[StatementId]:
        """Return the finished statements whose staging tables are not dropped yet."""
        ...

    async def dropped(self, statement: StatementId) -> None: ...

    async def publishing(self) -> Sequence[StagedStatement]:
        """Return the statements with staged rows that are not finished, oldest first."""
        ...
