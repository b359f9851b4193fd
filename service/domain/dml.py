"""Which statements share an epoch, and which have one to themselves (I13).

`tries` counts the epochs that carried a statement and gave no result for a reason that may be the statement's: it
overran its share of the epoch's time, or the epoch was abandoned. From `SINGLY` on, a barrier carries the statement
alone. An abandoned epoch of which a lost worker, a job or an operator was the cause is not counted.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from service.protocol.dml import InsertStaged, Statement
from service.protocol.ids import RelationId, StatementId

STATEMENTS_MAX: Final = 5_000
"""How many statements one barrier carries: bounds the epoch's transaction (I8)."""
BYTES_MAX: Final = 16 << 20
"""How many bytes of statements one barrier carries: Postgres refuses a document above 256 MB, and the worker reads and
the service prints all of it at once.
"""
SLICE_ROWS: Final = 100_000
"""How many staged rows one epoch moves: about half a second of work, so that barriers keep their pace."""
SINGLY: Final = 2
"""The second abandonment of a set may be the same again, and a third would be."""
TRIES_MAX: Final = 10
"""A statement that was carried alone and not answered this often fails, whatever the reason."""
_REST: Final = 4
"""An epoch with a statement of its own is followed by this many times its length without one: others wait for such
epochs for a fifth of the time at most.
"""
_REST_MAX: Final = 60.0
"""Seconds: more than the default timeout of a statement asks for."""
_BRIEF: Final = 1.0
"""Seconds of an epoch that disturb nobody: a single small INSERT has its epoch to itself as well."""


_CROWDED: Final = 4
"""While slow statements are about, an epoch that others share is this many times shorter: statements that are slow are
found sooner, and those behind them are answered sooner.
"""


def epoch_budget_ms(budget_ms: int, *, crowded: bool) -> int:
    """Return what the statements of an epoch may take together. `crowded`: one was carried alone lately."""
    return max(budget_ms // _CROWDED, 1) if crowded else budget_ms


@dataclass(slots=True)
class SinglesTurn:
    """When this process, while it leads, may carry a statement alone. Times are of the monotonic clock."""

    due: float = 0.0

    def may_begin(self, now: float) -> bool:
        """Whether the next barrier may carry one."""
        return now >= self.due

    def ended(self, seconds: float, *, now: float) -> None:
        """Take in how long a statement took that had an epoch to itself."""
        if seconds > _BRIEF:
            self.due = now + min(seconds * _REST, _REST_MAX)


def slices(waiting: Sequence[tuple[Statement, int]]) -> tuple[Statement, ...]:
    """Return what of these statements, in this order, one barrier carries: at most `SLICE_ROWS` staged rows. With each
    comes how many of its staged rows were applied before. Behind a statement that is cut those of the same table wait.
    """
    taken: list[Statement] = []
    cut: set[RelationId] = set()
    room = SLICE_ROWS
    for statement, applied in waiting:
        if statement.relation.id in cut:
            continue
        if not isinstance(statement, InsertStaged):
            taken.append(statement)
            continue
        last = min(applied + room, statement.last)
        if last < statement.last:
            cut.add(statement.relation.id)
        if last > applied:
            taken.append(statement.model_copy(update={"first": applied, "last": last}))
            room -= last - applied
    return tuple(taken)


def sliced(rows: int) -> tuple[str, ...]:
    """Say that so many staged rows were not published by one epoch, if they were not."""
    if rows <= SLICE_ROWS:
        return ()
    epochs = -(-rows // SLICE_ROWS)
    return (f"the rows were published by {epochs} epochs, {SLICE_ROWS} rows by each",)


def failed(carried: Sequence[tuple[StatementId, int]], *, culprit: StatementId | None, hung: bool) -> list[StatementId]:
    """Return the statements that fail with their epoch. `carried` has each with its tries, this one included; `culprit`
    is the statement in which the connection was lost, and `hung` says that the epoch had no answer at its deadline.
    """
    alone = len(carried) == 1
    return [
        one for one, tries in carried if tries >= TRIES_MAX or (alone and tries > SINGLY and (hung or one == culprit))
    ]
