"""Make the spans of ended epochs and jobs from what is stored of them. Called only while traces are made."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from service.domain.graph import Abandon, Commit, Effect, GraphView
from service.domain.trace import Span
from service.operations.barriers.committing import Recorded
from service.ports.meta_store import Transaction
from service.protocol.barrier import Barrier, BarrierKind
from service.protocol.ids import DATABASE_GRAPH, GraphId, JobId
from service.protocol.mutation import Add
from service.telemetry.epoch_spans import EndedEpoch
from service.telemetry.traces import Traces


async def after(
    tx: Transaction,
    traces: Traces,
    view: GraphView,
    effect: Effect,
    recorded: Recorded,
    *,
    interval: timedelta,
    now: datetime,
) -> Sequence[Span]:
    """Return the spans of the epochs that an effect ends without a publication: in partial graphs, and abandoned."""
    match effect:
        case Commit() if not view.policy.shared and recorded.answers:
            relation = view.policy.relation
            job = None if relation is None else JobId(relation)
            return await ended(tx, traces, view.graph, recorded, interval=interval, now=now, job=job)
        case Abandon() if view.in_flight is not None:
            return await ended(tx, traces, view.graph, recorded, interval=interval, now=now)
        case _:
            return ()


async def published(
    tx: Transaction, traces: Traces, graph: GraphId, recorded: Recorded, *, interval: timedelta, now: datetime
) -> Sequence[Span]:
    """Return the spans of the epochs that were published, and of the jobs whose creation has ended since."""
    spans = list(await ended(tx, traces, graph, recorded, interval=interval, now=now))
    for job, traceparent in await tx.jobs.take_traced():
        spans += traces.job_ended(job, traceparent)
    return spans


async def ended(
    tx: Transaction,
    traces: Traces,
    graph: GraphId,
    recorded: Recorded,
    *,
    interval: timedelta,
    now: datetime,
    job: JobId | None = None,
) -> Sequence[Span]:
    """Return the spans of the newest epochs of a graph: those that were just recorded, or the last one.

    After a change of the leader nothing is known of the worker's answers, so the spans of scans are missing.
    """
    answers = {answer.epoch: answer for answer in recorded.answers}
    added = {barrier.curr: _added(barrier) for barrier in recorded.barriers}
    spans: list[Span] = []
    for record in await tx.barriers.history(graph, limit=max(1, len(answers))):
        answer = answers.get(record.barrier.curr)
        jobs = {*added.get(record.barrier.curr, ()), *(() if job is None else (job,))}
        epoch = EndedEpoch(
            record,
            record.published_at if record.published_at is not None and graph == DATABASE_GRAPH else now,
            () if answer is None else answer.work,
            None if answer is None else answer.worker,
            [traces.of_job(one) for one in sorted(jobs)],
        )
        spans += traces.epoch_ended(epoch, interval)
    return spans


def _added(barrier: Barrier) -> Sequence[JobId]:
    """Return the jobs that a barrier adds. An initial barrier adds those that its graph has anyway."""
    if not isinstance(barrier.mutation, Add) or barrier.kind is BarrierKind.INITIAL:
        return ()
    return [plan.id for plan in barrier.mutation.jobs]
