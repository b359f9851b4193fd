"""Decide which statements share an epoch, and which get an epoch of their own (I13).

`tries` counts the epochs that carried a statement without a result, for a reason that may be the statement's. Either
the statement overran its share of the epoch's time, or the epoch was abandoned. From `SINGLY` tries on, a barrier
carries the statement alone. An epoch that was abandoned because of a lost worker, a job or an operator does not count.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from service.protocol.dml import InsertStaged, Statement
from service.protocol.ids import RelationId, StatementId

STATEMENTS_MAX: Final = 5_000
"""How many statements one barrier carries. It bounds the epoch's transaction (I8)."""
BYTES_MAX: Final = 16 << 20
"""How many bytes of statements one barrier carries.

Postgres refuses a document above 256 MB, and both the worker and the service handle all statements at once.
"""
SLICE_ROWS: Final = 100_000
"""How many staged rows one epoch moves. It is about half a second of work, so that barriers keep their interval."""
SINGLY: Final = 2
"""After two abandoned epochs of the same statements, a third one would probably be abandoned as well."""
TRIES_MAX: Final = 10
"""A statement that was carried without a result this often fails, whatever the reason."""
_REST: Final = 4
"""After an epoch with a lone statement, no other such epoch begins for this many times its length.

Other statements therefore wait for such epochs for at most a fifth of the time.
"""
_REST_MAX: Final = 60.0
"""Maximum of that rest in seconds. It is longer than the default timeout of a statement."""
_BRIEF: Final = 1.0
"""A lone statement that takes fewer seconds needs no rest after it. A single small INSERT is alone in its epoch as
well.
"""


_CROWDED: Final = 4
"""While there are slow statements, the time of a shared epoch is divided by this number.

Slow statements are then found sooner, and the statements behind them are answered sooner.
"""


def epoch_budget_ms(budget_ms: int, *, crowded: bool) -> int:
    """Return the time for all statements of an epoch. `crowded`: a statement was carried alone a short time ago."""
    return max(budget_ms // _CROWDED, 1) if crowded else budget_ms


@dataclass(slots=True)
class SinglesTurn:
    """When the leader may next carry a statement alone. Times are of the monotonic clock."""

    due: float = 0.0

    def may_begin(self, now: float) -> bool:
        """Whether the next barrier may carry a statement alone."""
        return now >= self.due

    def ended(self, seconds: float, *, now: float) -> None:
        """Record how long a statement took that had an epoch of its own."""
        if seconds > _BRIEF:
            self.due = now + min(seconds * _REST, _REST_MAX)


def slices(waiting: Sequence[tuple[Statement, int]]) -> tuple[Statement, ...]:
    """Return the statements that one barrier carries, in order, with at most `SLICE_ROWS` staged rows.

    `waiting` has each statement with the number of its staged rows that were applied before. If a statement is cut,
    later statements of the same table wait.
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
    """Return a notice if several epochs published so many staged rows."""
    if rows <= SLICE_ROWS:
        return ()
    epochs = -(-rows // SLICE_ROWS)
    return (f"the rows were published by {epochs} epochs, {SLICE_ROWS} rows by each",)


def failed(carried: Sequence[tuple[StatementId, int]], *, culprit: StatementId | None, hung: bool) -> list[StatementId]:
    """Return the statements that fail with their epoch.

    `carried` has each statement with its tries, this one included. `culprit` is the statement in which the connection
    was lost. `hung` means that the worker did not answer by the epoch's deadline.
    """
    alone = len(carried) == 1
    return [
        one for one, tries in carried if tries >= TRIES_MAX or (alone and tries > SINGLY and (hung or one == culprit))
    ]
