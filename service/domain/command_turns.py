"""Choose the mutation that a barrier carries next among those that wait (I4, I13). Pure.

A barrier carries one mutation. So the callers take turns, and who queues many delays others by one. The commands of a
caller keep their order. Only changes of limits are overtaken, and only by mutations that name none of their scans:
both orders then lead to the same state.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Final

from service.domain.errors import Unavailable
from service.protocol.ids import FragmentId
from service.protocol.mutation import Add, Mutation, Throttle

ADDED_TOGETHER: Final = 8
"""The maximum number of waiting Adds in one barrier. Each new scan adds a Spark job of about 100 ms to the epoch. A
larger number would create many views hardly sooner and would delay the barrier for all jobs.
"""
WAITING_MAX: Final = 1_000
"""How many commands of one caller may wait in all graphs together."""
_REMEMBERED: Final = 1_000


@dataclass(frozen=True, slots=True)
class Asked:
    """A mutation that waits, and who asked for it."""

    caller: str
    mutation: Mutation


@dataclass(slots=True)
class CommandTurns:
    """Whose mutations were carried lately. A new leader begins without this memory."""

    _carried: int = 0
    _last: dict[str, int] = field(default_factory=dict[str, int])
    """For each caller the number of its last carried mutation, in the order of these numbers."""

    def next(self, waiting: Sequence[Asked]) -> range:
        """Return the places of the mutations that the next barrier carries: one, or several Adds one after the other.

        `waiting` is in the order of asking.
        """
        able = _able(waiting)
        if not able:
            return range(0)
        first = min(able, key=lambda place: (self._last.get(waiting[place].caller, 0), place))
        self._carries(waiting[first].caller)
        adds = waiting[first : first + ADDED_TOGETHER]
        limited = _limited(waiting[:first])
        together = sum(1 for _ in takewhile(lambda one: _adds_others(one, limited), adds))
        return range(first, first + max(together, 1))

    def _carries(self, caller: str) -> None:
        self._carried += 1
        self._last.pop(caller, None)
        self._last[caller] = self._carried
        if len(self._last) > _REMEMBERED:
            del self._last[next(iter(self._last))]


def check_waiting(caller: str, waiting: int) -> None:
    """Raise Unavailable if so many commands of a caller wait that it may add none."""
    if waiting >= WAITING_MAX:
        raise Unavailable(
            f"{waiting} commands of {caller} wait for barriers, and at most {WAITING_MAX} may: try again later"
        )


def _able(waiting: Sequence[Asked]) -> list[int]:
    """Return the places of the mutations that no earlier one has to precede."""
    able: list[int] = []
    limited: set[FragmentId] = set()
    callers: set[str] = set()
    for place, one in enumerate(waiting):
        if one.caller not in callers and limited.isdisjoint(_scans(one.mutation)):
            able.append(place)
        if not isinstance(one.mutation, Throttle):
            break
        limited.update(one.mutation.fragments)
        callers.add(one.caller)
    return able


def _adds_others(one: Asked, limited: Collection[FragmentId]) -> bool:
    return isinstance(one.mutation, Add) and _scans(one.mutation).isdisjoint(limited)


def _limited(waiting: Sequence[Asked]) -> frozenset[FragmentId]:
    return frozenset(scan for one in waiting for scan in _scans(one.mutation))


def _scans(mutation: Mutation) -> frozenset[FragmentId]:
    """Return the scans whose limits a mutation states. A Stop of a scan leaves nothing that its limit concerns."""
    match mutation:
        case Add(jobs=jobs):
            return frozenset(fragment.id for job in jobs for fragment in job.fragments)
        case _:
            return frozenset(getattr(mutation, "fragments", ()))
