"""What is true of the actors of scans at every commit, said from the outside (I11)."""

from service.domain.job import IN_GRAPH
from service.protocol.ids import DATABASE_GRAPH, FragmentId, RelationId
from service.protocol.mutation import Update
from service.protocol.plan import PositionState, ScanType
from service.protocol.vnodes import vnodes_of
from tests.support.fake_meta_tables import FragmentRow, Tables


def check_owners(tables: Tables, fragment: FragmentId) -> None:
    """Every vnode of what a scan reads has one owner."""
    row = tables.fragments.get(fragment)
    if row is None or row.upstream is None:
        return
    owned = sorted(vnode for actor in tables.of_fragment(fragment) for vnode in vnodes_of(actor.runs))
    every = list(range(tables.relations[row.upstream].relation.vnode_count))
    assert owned == every, f"I11: the actors of fragment {fragment} own {owned}"


def check_tied(tables: Tables) -> None:
    """The actors of a NoShuffle scan stand at one place each, and are as many as those of what it reads."""
    for row in tables.fragments.values():
        job = tables.jobs[row.job].job
        if row.scan_type is ScanType.BACKFILL and job.state in IN_GRAPH and not job.failed:
            _check_one_position(tables, row)
            _check_beside(tables, row)


def _check_one_position(tables: Tables, scan: FragmentRow) -> None:
    """All before it is completed, and nothing after it has started."""
    positions = tables.positions.get(scan.id, {})
    for actor in tables.of_fragment(scan.id):
        held = [positions.get(vnode) for vnode in vnodes_of(actor.runs)]
        passed = [2 if one is None else int(one.state is PositionState.IN_PROGRESS) for one in held]
        assert passed == sorted(passed), f"I1: actor {actor.id} has a hole behind its position"
        assert passed.count(1) <= 1, f"I1: actor {actor.id} has more than one position"


def _check_beside(tables: Tables, scan: FragmentRow) -> None:
    assert scan.upstream is not None
    writers = _writers(tables, scan.upstream)
    if writers is not None:
        beside = min(max(writers, default=1), tables.relations[scan.upstream].relation.vnode_count)
        mine = len(tables.of_fragment(scan.id))
        assert mine == beside, f"I11: scan {scan.id} has {mine} actors beside {beside} of its upstream"


def _writers(tables: Tables, relation: RelationId) -> list[int] | None:
    """Return how many actors each scan has that writes a relation; None while that is about to change."""
    row = tables.relations[relation]
    scans = [one for one in tables.of_job(row.job) if one.upstream is not None]
    changing = {
        fragment
        for command in tables.commands.values()
        if command.graph == DATABASE_GRAPH and isinstance(command.mutation, Update)
        for fragment in command.mutation.fragments
    }
    if row.dropped or not changing.isdisjoint(one.id for one in scans):
        return None
    return [len(tables.of_fragment(one.id)) for one in scans]
