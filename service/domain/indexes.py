"""Decide which indexes of stored relations are needed and built next, and which serve the lookups of stages. Pure."""

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from service.domain.shares import Shares
from service.protocol.ids import RelationId
from service.protocol.stage import LookupIndex

BUILDERS_MAX: Final = 3
"""The number of concurrent builds that go on, of which one caller has two. Each reads and sorts a whole table."""
BUILDS_MAX: Final = 8
"""The number of concurrent builds, with those that wait for the transaction of somebody else. One caller has four."""


def needed(
    asked: Collection[LookupIndex],
    lookups: Mapping[RelationId, Collection[LookupIndex]],
    created: Collection[LookupIndex],
) -> Mapping[LookupIndex, frozenset[RelationId]]:
    """Return the indexes that have to exist, each with the views that need it.

    `asked` are those that users named, `lookups` those that the stages of each view ask for, and `created` those that
    exist. An index that exists is not given up for another one that still has to be built.
    """
    found: dict[LookupIndex, frozenset[RelationId]] = {one: frozenset() for one in asked}
    for view, wanted in lookups.items():
        for lookup in wanted:
            chosen = _serving(lookup, asked, created)
            found[chosen] = found.get(chosen, frozenset()) | {view}
    return found


def lacking(lookups: Collection[LookupIndex], created: Collection[LookupIndex]) -> frozenset[LookupIndex]:
    """Return the lookups that no existing index serves."""
    return frozenset(one for one in lookups if not any(index.serves(one) for index in created))


def begun(
    due: Sequence[LookupIndex],
    running: Collection[LookupIndex],
    held: Collection[LookupIndex],
    callers: Mapping[LookupIndex, str],
) -> Sequence[LookupIndex]:
    """Return which of the builds that are due begin now.

    A table has one build at a time: of two, each would wait for the other. A build of `running` that is `held` by the
    transaction of somebody else leaves its place to others, and keeps what it has done. `callers` have the views that
    need the indexes. Those that users named count as of one caller.
    """
    busy = {one.relation for one in running}
    going_on, every = Shares(BUILDERS_MAX), Shares(BUILDS_MAX)
    for one in running:
        every.take(callers.get(one, ""))
        if one not in held:
            going_on.take(callers.get(one, ""))
    chosen: list[LookupIndex] = []
    for one in due:
        caller = callers.get(one, "")
        if one.relation not in busy and going_on.room(caller) and every.room(caller):
            going_on.take(caller)
            every.take(caller)
            busy.add(one.relation)
            chosen.append(one)
    return chosen


def _serving(lookup: LookupIndex, asked: Collection[LookupIndex], created: Collection[LookupIndex]) -> LookupIndex:
    """Return the index that is to serve a lookup: an existing one if there is any, and rather one that a user named."""
    candidates = {one for one in (*asked, *created) if one.serves(lookup)} | {lookup}
    return min(candidates, key=lambda one: (one not in created, one not in asked, one != lookup, str(one)))
