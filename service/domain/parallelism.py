"""Compute how many actors the scans of a job have, and their vnodes, from the parallelism and the worker's slots.

A job has its backfill parallelism, if one was set, until it is created, and its normal one from then on.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise
from typing import Final

from service.domain.errors import Invalid
from service.protocol.vnodes import Runs

ACTORS_MAX: Final = 1 << 15
"""No relation has more vnodes, and every actor needs one."""
POSITIONS_MAX: Final = 1 << 18
"""Positions of a job, one for each vnode of each scan: eight relations with as many vnodes as possible, or a thousand
with the default number. A barrier carries all positions of a job that is being created, in one document.
"""


ACTORS_OF_SLOT: Final = 400
"""Actors of a job for each slot of its worker. RisingWave refuses to go beyond as many, those of all jobs together."""
ACTORS_OF_JOB: Final = 1 << 13
"""Actors of a job on whatever worker. A barrier names all of them, and each is a task."""


@dataclass(frozen=True, slots=True)
class Fixed:
    """A fixed number of actors."""

    actors: int

    def __str__(self) -> str:
        return f"fixed({self.actors})"


@dataclass(frozen=True, slots=True)
class Adaptive:
    """One actor for each slot of the worker."""

    def __str__(self) -> str:
        return "adaptive"


@dataclass(frozen=True, slots=True)
class Bounded:
    """One actor for each slot of the worker, up to a maximum."""

    most: int

    def __str__(self) -> str:
        return f"bounded({self.most})"


@dataclass(frozen=True, slots=True)
class Ratio:
    """Actors for this share of the worker's slots."""

    share: Decimal

    def __str__(self) -> str:
        return f"ratio({self.share:f})"


Parallelism = Fixed | Adaptive | Bounded | Ratio

DEFAULT: Final = Adaptive()
"""The parallelism if the user sets none."""
_CALL: Final = re.compile(r"(fixed|bounded|ratio) ?\( ?([0-9]{1,5}(?:\.[0-9]{1,9})?) ?\)")


def parse_parallelism(text: str) -> Parallelism:
    """Return the parallelism that a text means: `4`, `fixed(4)`, `adaptive`, `bounded(4)` or `ratio(0.5)`.

    Raises Invalid.
    """
    lowered = " ".join(text.lower().split())
    if lowered == "adaptive":
        return Adaptive()
    if re.fullmatch("[0-9]{1,5}", lowered) and 1 <= int(lowered) <= ACTORS_MAX:
        return Fixed(int(lowered))
    called = _CALL.fullmatch(lowered)
    if called is not None:
        name, number = called[1], Decimal(called[2])
        if name == "ratio" and 0 < number <= 1:
            return Ratio(number)
        if name == "bounded" and "." not in called[2] and number >= 1:
            return Bounded(int(number))
        if name == "fixed" and "." not in called[2] and 1 <= number <= ACTORS_MAX:
            return Fixed(int(number))
    raise Invalid(
        f"a parallelism is a number from 1 to {ACTORS_MAX}, adaptive, bounded(n), ratio(r) with r from above 0 to 1, or"
        f" default; not {text[:40]}"
    )


def resolved(parallelism: Parallelism, *, slots: int, vnode_count: int, scans: int) -> int:
    """Return how many actors a scan has on a worker with `slots` slots. Every actor has at least one vnode.

    A job of `scans` scans has no more actors than its worker can bear, whatever is requested, because others wait for
    each of them (I13).
    """
    match parallelism:
        case Fixed(actors):
            wanted = actors
        case Adaptive():
            wanted = slots
        case Bounded(most):
            wanted = min(slots, most)
        case Ratio(share):
            wanted = int(slots * share)
    return max(1, min(wanted, vnode_count, _bearable(slots) // scans))


def check_actors(scans: Collection[int], *, slots: int) -> None:
    """Raise Invalid if scans with so many actors have more than a worker can bear, although each could have one."""
    if sum(scans) > max(_bearable(slots), len(scans)):
        raise Invalid(
            f"the view has {len(scans)} scans of {sum(scans)} actors together, and may have {_bearable(slots)} on a"
            f" worker with {slots} slots: read fewer relations in one view, or create them with a smaller parallelism"
        )


def _bearable(slots: int) -> int:
    return min(ACTORS_OF_SLOT * slots, ACTORS_OF_JOB)


def check_vnodes(parallelism: Parallelism | None, vnode_count: int, *, backfill: bool = False) -> None:
    """Raise Invalid, in RisingWave's words, if more actors are requested than there are vnodes."""
    if isinstance(parallelism, Fixed) and parallelism.actors > vnode_count:
        of = "backfill parallelism" if backfill else "parallelism"
        raise Invalid(f"specified {of} {parallelism.actors} should not exceed max parallelism {vnode_count}")


def check_positions(vnode_counts: Collection[int]) -> None:
    """Raise Invalid if the scans of a view, one for each of these counts, have too many positions together."""
    positions = sum(vnode_counts)
    if positions > POSITIONS_MAX:
        raise Invalid(
            f"the view has {len(vnode_counts)} scans of {positions} vnodes together, and may have {POSITIONS_MAX}: "
            "read fewer relations in one view, or create the tables with a smaller vnode_count"
        )


def normal(session: Mapping[str, str], kind: str) -> Parallelism:
    """Return the parallelism that a session sets for a kind of created relation. The kind's own variable wins."""
    for name in (f"streaming_parallelism_for_{kind.replace(' ', '_')}", "streaming_parallelism"):
        if (asked := session.get(name, "default")) != "default":
            return parse_parallelism(asked)
    return DEFAULT


def asked_vnodes(given: int | None, session: Mapping[str, str]) -> int | None:
    """Return the requested vnode count of a table, or None. The table's own option wins over the session's."""
    asked = session.get("streaming_max_parallelism", "default")
    return int(asked) if given is None and asked != "default" else given


def for_backfill(session: Mapping[str, str]) -> Parallelism | None:
    """Return the parallelism that a session sets for backfill, or None if it is the normal one."""
    asked = session.get("streaming_parallelism_for_backfill", "default")
    return None if asked == "default" else parse_parallelism(asked)


def blocks(vnode_count: int, parallelism: int) -> tuple[Runs, ...]:
    """Split `0..vnode_count-1` into `parallelism` contiguous blocks whose sizes differ by one at most.

    An actor's pages are few and long then. Raises Invalid if an actor would have no vnode.
    """
    if not 1 <= parallelism <= vnode_count:
        msg = f"specified parallelism {parallelism} should not exceed max parallelism {vnode_count}"
        raise Invalid(msg)
    edges = [vnode_count * index // parallelism for index in range(parallelism + 1)]
    return tuple(((first, last - 1),) for first, last in pairwise(edges))
