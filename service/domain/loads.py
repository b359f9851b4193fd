"""Decide how many staged rows the next epoch moves: as many as probably fit into its time (I5, I8, I13). Pure.

Every table has a rate: how many of its rows an epoch moves in a second, together with what follows in the views over
them. The leader measures it with every epoch. It remembers the rates only in memory, because a new leader finds them
again within a few epochs.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from service.protocol.dml import InsertStaged, Statement
from service.protocol.ids import RelationId, StatementId

RATE_FIRST: Final = 75_000.0
"""The rate of a table of which nothing is known."""
ROWS_MIN: Final = 5_000
"""The least number of rows of a slice, unless fewer are left. A slower table makes epochs longer. The first slice of a
table of which nothing is known has no more: with two views of 64 branches each over it, 50,000 rows let no epoch end
for 37 s.
"""
ROWS_MAX: Final = 500_000
"""The maximum number of rows of an epoch. Views compute an epoch's changes at once, so it bounds their memory."""
BYTES_MAX: Final = 64 << 20
"""The maximum size of these rows, estimated from the mean size of a row of the load."""
SHARE: Final = 0.65
"""The share of the barrier interval in which an epoch moves staged rows, if nobody waits for it."""
SHARE_AWAITED: Final = 0.25
"""The same if a caller waits for this very epoch."""
INTERVALS: Final = (0.3, 1.0)
"""Barrier intervals in seconds, between which the time follows the interval. Longer ones would not move more rows, and
each shorter one would cost more than it moves.
"""
BUDGET_SHARE: Final = 0.5
"""The most of the budget of an epoch's statements. A slice that exceeds the budget is rolled back."""
GROWTH: Final = 4.0
"""By how much a rate rises at most after one epoch. Rows may cost more than the ones before."""
SETBACK: Final = 0.25
"""By how much a rate falls after a slice that was rolled back because it took too long."""
_REMEMBERED: Final = 1_000
"""The maximum number of tables with a remembered rate."""


@dataclass(frozen=True, slots=True)
class Cut:
    """The statements of a barrier. `seconds` is the time that its slices are expected to take, of `aim` at most."""

    statements: tuple[Statement, ...] = ()
    slices: Mapping[StatementId, RelationId] = field(default_factory=dict[StatementId, RelationId])
    seconds: float = 0.0
    aim: float = 0.0


def aim_seconds(interval_ms: int, *, budget_ms: int, awaited: bool) -> float:
    """Return how long an epoch may take for staged rows. `awaited`: a caller is answered after this very epoch."""
    low, high = INTERVALS
    interval = min(max(interval_ms / 1000, low), high)
    return min(interval * (SHARE_AWAITED if awaited else SHARE), budget_ms / 1000 * BUDGET_SHARE)


def rate_after(rate: float, *, expected: float, took: float, aim: float) -> float:
    """Return the rate after an epoch that took `took` seconds instead of `expected`.

    An epoch with few staged rows shows nothing but its fixed costs, unless it took longer than its aim.
    """
    if took <= aim and expected * 2 < aim:
        return rate
    return rate * min(expected / max(took, 1e-6), GROWTH)


def cut(
    waiting: Sequence[tuple[Statement, int]], rates: Mapping[RelationId, float], *, interval_ms: int, budget_ms: int
) -> Cut:
    """Return the statements of the next barrier: first the ones that are short, then slices of staged rows.

    `waiting` has each statement with the number of its staged rows that were applied before, in order. Loads share the
    epoch's time, rows and bytes equally, the oldest first. Each gets at least `ROWS_MIN` rows while there is time, and
    the first one in any case. A statement does not wait for a load of its table: the load is published in parts, and
    its caller has no answer yet.
    """
    short = [statement for statement, _ in waiting if not isinstance(statement, InsertStaged)]
    loads = [_Load(one, done, rates.get(one.relation.id)) for one, done in waiting if isinstance(one, InsertStaged)]
    aim = aim_seconds(interval_ms, budget_ms=budget_ms, awaited=bool(short))
    if not short and len(loads) > 1 and any(load.seconds * len(loads) <= aim for load in loads):
        aim = aim_seconds(interval_ms, budget_ms=budget_ms, awaited=True)
    slices: list[InsertStaged] = []
    left, rows, size = aim, ROWS_MAX, BYTES_MAX
    for place, load in enumerate(loads):
        if slices and (left <= 0 or rows <= 0 or size <= 0):
            break
        others = len(loads) - place
        one = load.slice(left / others, rows=max(rows // others, 1), size=size // others)
        slices.append(one)
        taken = one.last - one.first
        left, rows, size = left - taken / load.rate, rows - taken, size - taken * one.row_bytes
    return Cut((*short, *slices), {one.id: one.relation.id for one in slices}, aim - left, aim)


@dataclass(frozen=True, slots=True)
class _Load:
    """A load with the number of its rows that were applied, and its rows per second if they were measured."""

    statement: InsertStaged
    applied: int
    measured: float | None

    @property
    def rate(self) -> float:
        """The rows per second that are expected."""
        return RATE_FIRST if self.measured is None else self.measured

    @property
    def seconds(self) -> float:
        """How long the rest of it would take."""
        return (self.statement.last - self.applied) / self.rate

    def slice(self, seconds: float, *, rows: int, size: int) -> InsertStaged:
        """Return the next rows of it, within the given time, number and size."""
        fitting = ROWS_MIN if self.measured is None else max(int(seconds * self.rate), ROWS_MIN)
        bounded = max(min(fitting, rows, size // max(self.statement.row_bytes, 1)), 1)
        last = min(self.applied + bounded, self.statement.last)
        return self.statement.model_copy(update={"first": self.applied, "last": last})


@dataclass(slots=True)
class LoadPace:
    """The measured rates of tables, and the slices of the barrier in flight."""

    rates: dict[RelationId, float] = field(default_factory=dict[RelationId, float])
    carried: Cut = field(default_factory=Cut)

    def cut(self, waiting: Sequence[tuple[Statement, int]], *, interval_ms: int, budget_ms: int) -> Cut:
        """Return the statements of the next barrier."""
        self.carried = cut(waiting, self.rates, interval_ms=interval_ms, budget_ms=budget_ms)
        return self.carried

    def measured(self, seconds: float, moved: Collection[StatementId], unfinished: Collection[StatementId]) -> None:
        """Record what the epoch of the last cut took, which statements it ran, and which it had no time for."""
        carried, self.carried = self.carried, Cut()
        late = not carried.slices.keys().isdisjoint(unfinished)
        if not late and not carried.slices.keys() <= set(moved):
            return
        for table in set(carried.slices.values()):
            rate = self.rates.pop(table, RATE_FIRST)
            new = rate_after(rate, expected=carried.seconds, took=seconds, aim=carried.aim)
            self._keep(table, rate * SETBACK if late else new)

    def _keep(self, table: RelationId, rate: float) -> None:
        """Keep a rate as the newest one, and forget the oldest one of too many."""
        self.rates[table] = max(rate, 1.0)
        if len(self.rates) > _REMEMBERED:
            del self.rates[next(iter(self.rates))]


def epoch_cost(*, epoch: float, statements: float, interval: float, reads_history: bool) -> float:
    """Return which part of an epoch's seconds counts as the cost of its staged rows.

    It is the whole epoch, with the views over these rows. Scans that read history fill the rest of the interval however
    small a slice is, so then it is the time of the statements, and what the epoch took beyond the interval.
    """
    return statements + max(epoch - interval, 0.0) if reads_history else epoch


def published_in_parts(rows: int) -> tuple[str, ...]:
    """Return a notice if several epochs may have published so many staged rows."""
    return ("several epochs may have published the rows, a part of them each",) if rows > ROWS_MIN else ()
