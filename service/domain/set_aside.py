"""Set aside items of a chore that failed: each waits for its own back-off while the others continue (I13)."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, Generic, TypeVar

K = TypeVar("K")
FIRST: Final = timedelta(milliseconds=200)
LONGEST: Final = timedelta(seconds=10)


@dataclass(slots=True)
class SetAside(Generic[K]):
    """The consecutive failures of each item, and when it is due again. A new leader tries all items at once."""

    items: dict[K, tuple[int, datetime]] = field(default_factory=dict[K, tuple[int, datetime]])

    def due(self, items: Iterable[K], *, now: datetime) -> list[K]:
        """Return the items that may be tried now, in their order."""
        return [item for item in items if item not in self.items or self.items[item][1] <= now]

    def failed(self, item: K, *, now: datetime) -> int:
        """Set an item aside for 0.2 s, doubling to 10 s. Return its consecutive failures."""
        failures = self.items.get(item, (0, now))[0] + 1
        self.items[item] = failures, now + min(FIRST * 2 ** min(failures - 1, 10), LONGEST)
        return failures

    def keep(self, items: Collection[K]) -> None:
        """Forget all items but `items`: they are done or gone."""
        self.items = {item: state for item, state in self.items.items() if item in items}

    def wait(self, *, now: datetime, longest: timedelta) -> timedelta:
        """Return the time until the next item is due, at most `longest`."""
        return max(min([due - now for _, due in self.items.values()], default=longest), timedelta(0))
