"""Compute a job's backfill order from the recorded state: which scans wait, and for which relations.

An edge (a, b) means that the history of b is read after that of a. A relation that is scanned several times is one
node: its scans wait together, and all of them have to finish. A relation is *through* once its scans have finished and
every relation before it is through. A scan that was started by hand may finish early. It then lets no later relation
start before the relations that precede it are through.

No state is kept between calls, so after a recovery or a change of leader the result follows from the same facts.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from service.protocol.ids import FragmentId, RelationId

Order = tuple[tuple[RelationId, RelationId], ...]
"""The edges, each as (before, after). Invariant: they form no cycle, because scans in a cycle would wait for ever."""


@dataclass(frozen=True, slots=True)
class OrderedScan:
    """One scan of a job: the relation it reads, and whether its finish has committed."""

    fragment: FragmentId
    relation: RelationId
    finished: bool = False


def dependents(order: Order) -> frozenset[RelationId]:
    """Return the relations whose scans wait when the job starts."""
    return frozenset(after for _, after in order)


def awaited(order: Order, scans: Collection[OrderedScan]) -> Mapping[FragmentId, tuple[RelationId, ...]]:
    """Return the fragments that have to wait, each with its direct predecessors that are not through.

    The predecessors are in the order of the edges. A fragment that may read is absent.
    """
    befores: dict[RelationId, dict[RelationId, None]] = {}
    for before, after in order:
        befores.setdefault(after, {})[before] = None
    through = _through(befores, {scan.relation for scan in scans if not scan.finished})
    waits = {
        relation: tuple(before for before in befores.get(relation, ()) if before not in through)
        for relation in {scan.relation for scan in scans}
    }
    return {scan.fragment: waits[scan.relation] for scan in scans if waits[scan.relation]}


def _through(befores: Mapping[RelationId, Collection[RelationId]], reading: Collection[RelationId]) -> set[RelationId]:
    afters: dict[RelationId, list[RelationId]] = {}
    for after, its in befores.items():
        for before in its:
            afters.setdefault(before, []).append(after)
    left = {one: len(its) for one, its in befores.items()}
    through: set[RelationId] = set()
    ready = [one for one in afters if one not in befores]
    while ready:
        one = ready.pop()
        if one in reading:
            continue
        through.add(one)
        for after in afters.get(one, ()):
            left[after] -= 1
            if not left[after]:
                ready.append(after)
    return through
