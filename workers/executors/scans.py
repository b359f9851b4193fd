"""The scans of a graph: what one consists of while it runs, what an epoch asks of it, and what it tells afterwards."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from service.protocol.barrier import Barrier
from service.protocol.ids import Epoch, JobId, RelationId
from service.protocol.plan import FragmentPlan, JobPlan, Pushdown
from service.protocol.relation import Relation
from service.protocol.report import ActorReport
from workers.backfill.pace import COPYING, PAGE_ROWS_FIRST, Pace
from workers.backfill.reading import Reading, interleaved
from workers.backfill.scan import ActorState, ScanState, report
from workers.executors.arrangement import ActorOutcome, ActorTask, EpochTask, ScanJob
from workers.queries.stateless import StatelessPlan, plan


@dataclass
class Scan:
    """One scan fragment as it runs: its state, its query, its pace."""

    job: JobId
    upstream: Relation
    target: Relation
    state: ScanState
    query: StatelessPlan
    consumed: Epoch | None = None
    """Up to where a snapshot job has come that goes on in the database graph: its first epoch there reads the rest."""
    pushdown: Pushdown | None = None
    page_rows: int = PAGE_ROWS_FIRST
    paces: dict[bool, Pace] = field(default_factory=lambda: {False: Pace(), True: COPYING})
    """Of epochs in which the store copies all by itself (True), and of others, which take longer to begin and end."""
    planned: ScanJob | None = None
    told_finished: bool = False
    inserted: int = 0
    """Versions brought by the last epoch."""
    timings_ms: dict[str, float] = field(default_factory=dict[str, float])
    """The last epoch's job: how long it ran, its slice, and how long its slowest reader read."""


def reading_of(scan: Scan, barrier: Barrier, changed: Collection[RelationId]) -> Reading:
    """Return what a scan of the database graph has to read: changes where its upstream has any."""
    since = barrier.prev if scan.upstream.id in changed else barrier.curr
    return interleaved(since=since if scan.consumed is None else scan.consumed, curr=barrier.curr)


def task_of(scan: Scan, curr: Epoch, reading: Reading, permits: Iterable[int | None]) -> EpochTask:
    """Return a scan's epoch, but for its slice."""
    return EpochTask(
        curr=curr,
        reading=reading,
        actors=tuple(
            ActorTask(runs=actor.positions.runs, positions=tuple(actor.positions.by_vnode.values()), permits=allowed)
            for actor, allowed in zip(scan.state.actors, permits, strict=True)
        ),
        page_rows=scan.page_rows,
    )


def scan_of(job: JobPlan, fragment: FragmentPlan, now: float) -> Scan:
    """Build a scan from its plan."""
    assert fragment.upstream is not None
    assert fragment.query is not None
    upstream = fragment.query.reading(fragment.upstream)
    return Scan(
        job=job.id,
        upstream=upstream,
        target=job.relation,
        state=ScanState.of(fragment, now=now),
        query=plan(fragment.query, upstream, job.relation),
        consumed=None if job.snapshot is None else job.snapshot.consumed,
        pushdown=fragment.query.pushdown,
    )


def advance(actor: ActorState, outcome: ActorOutcome) -> None:
    """Take over how far an actor came."""
    for position in outcome.positions:
        actor.positions.by_vnode[position.vnode] = position
    actor.budget = actor.budget.spent(outcome.snapshot_rows)


def reports_of(scan: Scan, outcomes: list[ActorOutcome] | None, *, finishing: bool) -> list[ActorReport]:
    """A scan that has told its finish once in this generation and forwards nothing has nothing more to tell."""
    if outcomes is None and scan.told_finished:
        return []
    by_actor = {} if outcomes is None else {outcome.actor: outcome for outcome in outcomes}
    reports: list[ActorReport] = []
    for index, actor in enumerate(scan.state.actors):
        outcome = by_actor.get(index)
        reports.append(
            report(
                scan.state,
                actor,
                changed=() if outcome is None else outcome.positions,
                finished=finishing,
                snapshot_rows=0 if outcome is None else outcome.snapshot_rows,
                upstream_rows=0 if outcome is None else outcome.upstream_rows,
            )
        )
    scan.told_finished = finishing
    return reports
