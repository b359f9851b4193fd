"""Count the time that one transaction takes, by table. Pure.

A transaction is written whole in one epoch, and all barriers wait for it. The time of other transactions does not
count. Neither does the time in which the worker waits for the external database.
"""

from dataclasses import dataclass, field

from service.protocol.ids import FragmentId


@dataclass
class Budget:
    """Seconds by table since the last commit, and the time up to which they are counted."""

    mark: float
    spent: dict[FragmentId, float] = field(default_factory=dict[FragmentId, float])

    def charge(self, fragment: FragmentId | None, now: float) -> None:
        """Count the time since the last call for a table; None: for no table."""
        if fragment is not None:
            self.spent[fragment] = self.spent.get(fragment, 0.0) + now - self.mark
        self.mark = now

    def ended(self) -> None:
        """Reset the times, because the transaction has ended."""
        self.spent.clear()

    def exceeded(self, seconds: float) -> FragmentId | None:
        """Return the table that took the most time, if all tables together took more than `seconds`."""
        if sum(self.spent.values()) <= seconds:
            return None
        return max(self.spent, key=self.spent.__getitem__)
