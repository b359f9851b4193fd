"""Bound what calls keep: how slowly a body may arrive, which one gives way, and how many bytes there are (I13)."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, Self

from service.domain.errors import Invalid, Unavailable

PARTIAL: Final = ". Every row gives every column, or those that the call names: ?columns=a,b; the others become NULL"
"""What a refusal of rows with some of the columns says further."""


@dataclass(slots=True)
class Patience:
    """How long the service still waits for the next bytes of a body.

    Waiting reduces it, and received bytes restore it up to its initial value. A body that began fast therefore may not
    slow to a trickle. The time in which the service does not read from the sender does not count.
    """

    seconds_max: float
    rate_min: float
    """Bytes that restore one second."""
    seconds: float = field(init=False)

    def __post_init__(self) -> None:
        self.seconds = self.seconds_max

    def came(self, size: int, *, after: float) -> None:
        """Record that `size` bytes arrived after `after` seconds of waiting."""
        self.seconds = min(self.seconds_max, self.seconds - after + size / self.rate_min)


GRACE_SECONDS: Final = 1.0
"""A body that was waited for no longer gives way to nobody: many calls may come at once."""


@dataclass(slots=True, eq=False)
class Arrival:
    """How much of a body has come, and for how many seconds it was waited for. The time in which the service does not
    read does not count.
    """

    caller: str = ""
    size: int = 0
    seconds: float = 0.0
    waiting_since: float | None = None

    def waited(self, now: float) -> float:
        """Return the seconds, with those of the present wait."""
        return self.seconds + (0.0 if self.waiting_since is None else now - self.waiting_since)


def slowest(arrivals: Iterable[Arrival], *, now: float) -> Arrival | None:
    """Return the body that comes most slowly, of those of the caller who sends most of them. None where each of them
    has only begun.

    Among those of all callers, steady loads gave way to 500 of one caller that had begun with a burst.
    """
    every = list(arrivals)
    ((most, _),) = Counter(one.caller for one in every).most_common(1) or [("", 0)]
    own = (one for one in every if one.caller == most)
    known = [(one.size / waited, one) for one in own if (waited := one.waited(now)) > GRACE_SECONDS]
    return min(known, key=lambda pair: pair[0])[1] if known else None


@dataclass(slots=True)
class Spool:
    """Bytes that calls of this process keep, such as those of loads: bodies in files, and results of queries whose rows
    are not in their table yet. Of all calls together and of each caller.

    A caller may hold no more than what stays free. So one caller fills at most half of the space, a second one half of
    what is left, and so on, as of the places in `service.domain.shares`.
    """

    bytes_max: int = 16 << 30
    name: str = "TIDEFILL_LOAD_FILES_BYTES_MAX"
    """The setting that determines the limit."""
    what: str = "loads"
    taken: int = 0
    held: Counter[str] = field(default_factory=Counter[str])

    def check(self, size: int, *, before: int, caller: str) -> None:
        """Check that a call that has `before` bytes may keep so many more.

        Raises Invalid if it alone is too large, and Unavailable if it is too large together with other calls.
        """
        limit = f"the {self.bytes_max} bytes ({self.name}) that {self.what} may keep"
        if before + size > self.bytes_max // 2:
            raise Invalid(f"the rows have more than half of {limit}: divide them")
        if self.taken + size > self.bytes_max - size - self.held[caller]:
            raise Unavailable(
                f"{self.what} of this caller hold {self.held[caller]} bytes, and those of others"
                f" {self.taken - self.held[caller]}, of {limit}: try again later"
            )


@dataclass(slots=True)
class Kept:
    """The bytes that one call keeps in a spool, until its block ends."""

    spool: Spool
    caller: str
    size: int = 0

    def take(self, size: int) -> None:
        """Count the next bytes. Raises what `Spool.check` raises."""
        self.spool.check(size, before=self.size, caller=self.caller)
        self.size += size
        self.spool.taken += size
        self.spool.held[self.caller] += size

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.spool.taken -= self.size
        self.spool.held[self.caller] -= self.size
        if not self.spool.held[self.caller]:
            del self.spool.held[self.caller]
