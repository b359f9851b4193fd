"""Wait longer after each failure in a row."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, Generic, TypeVar

K = TypeVar("K")


@dataclass(frozen=True, slots=True)
class Backoff:
    """The wait after a failure: `first`, doubled by each further failure in a row, up to `longest`."""

    first: timedelta
    longest: timedelta

    def after(self, failures: int) -> timedelta:
        """Return the wait after so many failures in a row, none after none."""
        # The cap keeps the power small.
        return min(self.first * 2 ** min(failures - 1, 16), self.longest) if failures > 0 else timedelta(0)


GRAPHS: Final = Backoff(timedelta(milliseconds=20), timedelta(seconds=5))
"""Before a graph starts again."""
CHORES: Final = Backoff(timedelta(milliseconds=200), timedelta(seconds=10))
WORKERS: Final = Backoff(timedelta(milliseconds=500), timedelta(seconds=30))
HEALTHY_AFTER: Final = timedelta(seconds=60)
"""Much longer than the start of a Spark session: a worker that lived this long did not fail at its start."""


@dataclass(slots=True)
class SetAside(Generic[K]):
    """Items of a chore that failed: each waits for its own back-off while the others continue (I13).

    It has the consecutive failures of each item, and when it is due again. A new leader tries all items at once.
    """

    items: dict[K, tuple[int, datetime]] = field(default_factory=dict[K, tuple[int, datetime]])

    def due(self, items: Iterable[K], *, now: datetime) -> list[K]:
        """Return the items that may be tried now, in their order."""
        return [item for item in items if item not in self.items or self.items[item][1] <= now]

    def failed(self, item: K, *, now: datetime) -> int:
        """Set an item aside for 0.2 s, doubling to 10 s. Return its consecutive failures."""
        failures = self.items.get(item, (0, now))[0] + 1
        self.items[item] = failures, now + CHORES.after(failures)
        return failures

    def keep(self, items: Collection[K]) -> None:
        """Forget all items but `items`: they are done or gone."""
        self.items = {item: state for item, state in self.items.items() if item in items}

    def wait(self, *, now: datetime, longest: timedelta) -> timedelta:
        """Return the time until the next item is due, at most `longest`."""
        return max(min([due - now for _, due in self.items.values()], default=longest), timedelta(0))


@dataclass(frozen=True, slots=True)
class Restarts:
    """When the next worker may start: at once after a healthy run, with a growing delay while workers die early.

    `died_young` counts workers in a row that ended before `HEALTHY_AFTER`. `not_before` is an instant in seconds
    on the clock of the caller.
    """

    died_young: int = 0
    not_before: float = 0.0

    def after(self, lived: timedelta, *, now: float) -> "Restarts":
        """Return the restarts after a worker has ended."""
        if lived >= HEALTHY_AFTER:
            return Restarts(not_before=now)
        died_young = self.died_young + 1
        return Restarts(died_young, now + WORKERS.after(died_young).total_seconds())

    def allow(self, now: float) -> bool:
        """Whether a worker may start."""
        return now >= self.not_before
