"""Decide which mutations may change places, and make one of several that a barrier carries together (I4). Pure.

Two mutations commute if neither changes what the other one changes or reads. Both orders then lead to the same state,
and each is acknowledged with the epoch at which it took effect.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from service.protocol.ids import FragmentId, JobId
from service.protocol.mutation import (
    Add,
    Mutation,
    Pause,
    Reload,
    Resume,
    StartFragmentBackfill,
    Stop,
    Throttle,
    Update,
)
from service.protocol.plan import JobPlan, OperatorPlan, ScanType, TableScanPlan

_Subject = tuple[Literal["job", "pause", "relation", "scan", "tied"], int]
_PAUSE: Final[_Subject] = ("pause", 0)
_TIED: Final[_Subject] = ("tied", 0)
"""The actors beside which a NoShuffle scan is planned: whichever those are, no Update changes places with its Add."""


@dataclass(slots=True)
class Footprint:
    """What mutations change, and what else they depend on."""

    changes: set[_Subject] = field(default_factory=set[_Subject])
    reads: set[_Subject] = field(default_factory=set[_Subject])

    def commutes(self, other: "Footprint") -> bool:
        """Return whether both orders lead to the same state."""
        apart = self.changes.isdisjoint(other.changes)
        return apart and self.changes.isdisjoint(other.reads) and self.reads.isdisjoint(other.changes)

    def add(self, other: "Footprint") -> None:
        """Let this be the footprint of both."""
        self.changes |= other.changes
        self.reads |= other.reads


def footprint(mutation: Mutation, jobs: Collection[JobId] = ()) -> Footprint:
    """Return the footprint of a mutation. `jobs` own the scans that an Update or a Reload names.

    A Stop does not concern the limits of its scans, because it leaves nothing that a limit concerns.
    """
    match mutation:
        case Pause() | Resume():
            return Footprint({_PAUSE})
        case Throttle(fragments=scans) | StartFragmentBackfill(fragments=scans):
            return Footprint(_scans(scans))
        case Add(jobs=plans):
            return _of_plans(plans)
        case Stop(jobs=stopped):
            return Footprint(_jobs(stopped))
        case Update(fragments=scans):
            return Footprint(_scans(scans) | _jobs(jobs), {_TIED})
        case Reload(fragments=scans, relations=relations):
            tables: set[_Subject] = {("relation", one.id) for one in relations.values()}
            return Footprint(_scans(scans) | _jobs(jobs) | tables)


def merged(mutations: Sequence[Mutation]) -> Mutation:
    """Return the mutation that does what these do one after the other. They are of one kind, which is not Add."""
    whole = mutations[0]
    for one in mutations[1:]:
        match whole, one:
            case Throttle(), Throttle():
                kept = tuple(scan for scan in whole.auto if scan not in one.fragments)
                whole = Throttle(fragments={**whole.fragments, **one.fragments}, auto=(*kept, *one.auto))
            case StartFragmentBackfill(), StartFragmentBackfill():
                whole = StartFragmentBackfill(fragments=(*whole.fragments, *one.fragments))
            case _:
                assert whole == one, (whole, one)
    return whole


def _of_plans(plans: Sequence[JobPlan]) -> Footprint:
    whole = Footprint()
    for plan in plans:
        whole.changes |= {("job", plan.id), ("relation", plan.relation.id)}
        whole.changes |= {("relation", one.id) for one in plan.hidden}
        whole.changes |= _scans([one.id for one in plan.fragments])
        reading = [one for one in plan.fragments if isinstance(one, TableScanPlan | OperatorPlan)]
        whole.reads |= {("relation", read.id) for one in reading for read in one.reads}
        if any(one.scan_type is ScanType.BACKFILL for one in plan.table_scans):
            whole.changes.add(_TIED)
    return whole


def _jobs(jobs: Collection[JobId]) -> set[_Subject]:
    return {("job", one) for one in jobs}


def _scans(scans: Collection[FragmentId]) -> set[_Subject]:
    return {("scan", one) for one in scans}
