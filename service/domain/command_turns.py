"""Choose the mutations that a barrier carries next among those that wait (I4, I13). Pure.

A barrier carries one mutation, or one made of several of a kind. So the callers take turns, and who queues many delays
others by one. The commands of a caller keep their order, and so do two that do not commute
(`service.domain.commuting`).
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

from service.domain.commuting import Footprint, footprint
from service.domain.errors import Unavailable
from service.protocol.ids import JobId
from service.protocol.mutation import Add, Mutation, Pause, Resume, StartFragmentBackfill, Throttle

ADDED_TOGETHER: Final = 8
"""The maximum number of waiting Adds in one barrier. Each new scan adds a Spark job of about 100 ms to the epoch. A
larger number would create many views hardly sooner and would delay the barrier for all jobs.
"""
ASKED_TOGETHER: Final = 20
"""The maximum number of other commands of a kind in one barrier. Each takes a few statements of its commit."""
_TOGETHER: Final[dict[type, int]] = {
    Add: ADDED_TOGETHER,
    Pause: ASKED_TOGETHER,
    Resume: ASKED_TOGETHER,
    StartFragmentBackfill: ASKED_TOGETHER,
    Throttle: ASKED_TOGETHER,
}
WAITING_MAX: Final = 1_000
"""How many commands of one caller may wait in all graphs together."""
_KINDS_MAX: Final = {
    frozenset({"pause", "resume", "start_fragment_backfill"}): 20,
    frozenset({"reload", "update"}): 20,
    frozenset({"throttle"}): 100,
}
"""How many commands of these kinds may wait, each counted once in however many graphs it waits. What does not commute
with them waits for all of them, whoever asked for it: a Pause for Resumes, and a limit for other limits of its scan.
"""
_REMEMBERED: Final = 1_000


@dataclass(frozen=True, slots=True)
class Asked:
    """A mutation that waits, and who asked for it. `jobs` own the scans that an Update or a Reload names."""

    caller: str
    mutation: Mutation
    jobs: Collection[JobId] = ()


@dataclass(slots=True)
class CommandTurns:
    """Whose mutations were carried lately. A new leader begins without this memory."""

    _carried: int = 0
    _last: dict[str, int] = field(default_factory=dict[str, int])
    """For each caller the number of its last carried mutation, in the order of these numbers."""

    def next(self, waiting: Sequence[Asked]) -> Sequence[int]:
        """Return the places of the mutations that the next barrier carries: one, or several of one kind, in order.

        `waiting` is in the order of asking.
        """
        footprints = [footprint(one.mutation, one.jobs) for one in waiting]
        taken: set[int] = set()
        kind, most = None, 1
        while len(taken) < most:
            able = _able(waiting, footprints, taken)
            if kind is not None:
                able = [place for place in able if isinstance(waiting[place].mutation, kind)]
            if not able:
                break
            chosen = min(able, key=lambda place: (self._last.get(waiting[place].caller, 0), place))
            self._carries(waiting[chosen].caller)
            taken.add(chosen)
            kind = type(waiting[chosen].mutation)
            most = _TOGETHER.get(kind, 1)
        return sorted(taken)

    def _carries(self, caller: str) -> None:
        self._carried += 1
        self._last.pop(caller, None)
        self._last[caller] = self._carried
        if len(self._last) > _REMEMBERED:
            del self._last[next(iter(self._last))]


def check_waiting(caller: str, waiting: int, *, most: int = WAITING_MAX, what: str = "commands") -> None:
    """Raise Unavailable if so many commands of a caller wait that it may add none."""
    if waiting >= most:
        raise Unavailable(f"{waiting} {what} of {caller} wait for barriers, and at most {most} may: try again later")


def counted_with(kind: str | None) -> tuple[frozenset[str], int] | None:
    """Return the kinds that are counted together with this one, and how many commands of them may wait, if few may."""
    return next(((kinds, most) for kinds, most in _KINDS_MAX.items() if kind in kinds), None)


def _able(waiting: Sequence[Asked], footprints: Sequence[Footprint], taken: Collection[int]) -> list[int]:
    """Return the places of the mutations that none of the earlier ones, except those taken, has to precede."""
    able: list[int] = []
    passed, callers = Footprint(), set[str]()
    for place, one in enumerate(waiting):
        if place in taken:
            continue
        if one.caller not in callers and passed.commutes(footprints[place]):
            able.append(place)
        passed.add(footprints[place])
        callers.add(one.caller)
    return able
