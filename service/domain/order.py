"""The backfill order of a job: which scans wait, and for which relations, as a function of what is recorded.

An edge (a, b) says that the history of b is read after that of a. A relation that is scanned several times is one
node: its scans wait together, and all of them have to finish. A relation is *through* once its scans have finished and
everything before it is through: a scan that was started by hand and has finished early lets nothing overtake what
comes before it, and counts from the moment that this is through.

Nothing is remembered from one look to the next, so a recovery or another leader goes on from the same facts.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from service.protocol.ids import FragmentId, RelationId

Order = tuple[tuple[RelationId, RelationId], ...]
"""The edges, each as (before, after). Invariant: they form no cycle; whoever waits in one would wait for ever."""


@dataclass(frozen=True, slots=True)
class OrderedScan:
    """One scan of a job: what it reads, and whether its finish has committed."""

    fragment: FragmentId
    relation: RelationId
    finished: bool = False


def dependents(order: Order) -> frozenset[RelationId]:
    """Return the relations whose scans wait when the job starts."""
    return frozenset(after for _, after in order)


def awaited(order: Order, scans: Collection[OrderedScan]) -> Mapping[FragmentId, tuple[RelationId, ...]]:
    """Return the fragments that have to wait, each with what comes right before it and is not through, in the order's
    own order. A fragment that may read is absent.
    """
    through = _through(order, scans)
    waits = {
        scan.fragment: tuple(
            dict.fromkeys(before for before, after in order if after == scan.relation and before not in through)
        )
        for scan in scans
    }
    return {fragment: relations for fragment, relations in waits.items() if relations}


def _through(order: Order, scans: Collection[OrderedScan]) -> set[RelationId]:
    reading = {scan.relation for scan in scans if not scan.finished}
    done = {relation for edge in order for relation in edge} - reading
    through: set[RelationId] = set()
    # Each round frees at least one more relation, so there are no more rounds than relations.
    while more := {one for one in done - through if all(before in through for before, after in order if after == one)}:
        through |= more
    return through
