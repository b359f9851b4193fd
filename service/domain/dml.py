"""Decide which statements share an epoch, and which get an epoch of their own (I13). Next: `service.domain.loads`.

`tries` counts the epochs that carried a statement without a result, for a reason that may be the statement's. Either
the statement overran its share of the epoch's time, or the epoch was abandoned. From `SINGLY` tries on, a barrier
carries the statement alone. An epoch that was abandoned because of a lost worker, a job or an operator does not count.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from service.protocol.ids import StatementId

STATEMENTS_MAX: Final = 5_000
"""How many statements one barrier carries. It bounds the epoch's transaction (I8)."""
BYTES_MAX: Final = 16 << 20
"""How many bytes of statements one barrier carries.

Postgres refuses a document above 256 MB, and both the worker and the service handle all statements at once.
"""
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
    was_last: bool = False
    """Whether the newest barrier has such a statement. The next one prefers those that share an epoch: brief lone
    statements need no rest, but many of them would hold up all others.
    """

    def may_begin(self, now: float) -> bool:
        """Whether the next barrier may carry a statement alone."""
        return now >= self.due

    def ended(self, seconds: float, *, now: float) -> None:
        """Record how long a statement took that had an epoch of its own."""
        if seconds > _BRIEF:
            self.due = now + min(seconds * _REST, _REST_MAX)


@dataclass(slots=True)
class CallerTurns:
    """Whose statements share an epoch.

    An epoch ends for all when a view fails over the rows of one of them. A caller with many such views would hold up
    the others for as long as these last. So after such an epoch each of its callers has epochs of its own, in turn,
    until one of them is committed.
    """

    apart: set[str] = field(default_factory=set[str])
    carried: frozenset[str] = frozenset()
    """The callers whose statements the newest barrier has."""
    _last: dict[str | None, int] = field(default_factory=dict[str | None, int])
    _number: int = 0

    def next(self, waiting: Iterable[str]) -> frozenset[str]:
        """Return the callers whose statements the next barrier carries, of those for whom some wait, in order."""
        groups: dict[str | None, set[str]] = {}
        for caller in waiting:
            groups.setdefault(caller if caller in self.apart else None, set()).add(caller)
        chosen = min(groups, key=lambda one: self._last.get(one, 0), default=None)
        self.carried = frozenset(groups.get(chosen, ()))
        self._number += 1
        self._last = {one: at for one, at in self._last.items() if one is None or one in self.apart}
        self._last[chosen] = self._number
        return self.carried

    def failed(self) -> None:
        """Record that a view failed in the epoch of the newest barrier."""
        self.apart |= self.carried
        self.carried = frozenset()

    def committed(self) -> None:
        """Record that the epoch of the newest barrier is committed."""
        self.apart -= self.carried
        self.carried = frozenset()


def failed(carried: Sequence[tuple[StatementId, int]], *, culprit: StatementId | None, hung: bool) -> list[StatementId]:
    """Return the statements that fail with their epoch.

    `carried` has each statement with its tries, this one included. `culprit` is the statement in which the connection
    was lost. `hung` means that the worker did not answer by the epoch's deadline.
    """
    alone = len(carried) == 1
    return [
        one for one, tries in carried if tries >= TRIES_MAX or (alone and tries > SINGLY and (hung or one == culprit))
    ]
