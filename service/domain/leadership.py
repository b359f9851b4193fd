"""Decide who leads, and until when a leader may believe it (River's leadership term)."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from service.protocol.ids import Term

LEASE: Final = timedelta(seconds=6)
RENEW_EVERY: Final = timedelta(seconds=1.6)
"""Three attempts fit a lease, so one slow or lost attempt does not depose a healthy leader."""
_STAGGER: Final = 0.1
"""The largest part of `RENEW_EVERY` by which the attempts of services differ."""
_KINDS: Final = 97
MARGIN: Final = timedelta(seconds=1)
"""A leader stops acting this long before another service may take over.

This is only a convenience: the term check in every write is the fence (I7).
"""


def attempt_every(holder: str) -> float:
    """Return the seconds between two attempts of a service. Services differ, so they do not compete at one moment."""
    return RENEW_EVERY.total_seconds() * (1 - _STAGGER * (sum(holder.encode()) % _KINDS) / _KINDS)


@dataclass(frozen=True, slots=True)
class Leadership:
    """A term that was won or renewed. `trusted_until` is on the process's monotonic clock."""

    term: Term
    trusted_until: float

    @classmethod
    def gained(cls, term: Term, *, attempt_started: float) -> "Leadership":
        """Return the leadership. Trust begins at the *start* of the attempt, so that a slow success
        cannot extend it.
        """
        return cls(term, attempt_started + (LEASE - MARGIN).total_seconds())

    def trusted(self, monotonic: float) -> bool:
        """Whether the leader may still act."""
        return monotonic < self.trusted_until
