"""Apply a committed epoch to the meta store: apply commands, finish jobs, store progress."""

from collections.abc import Collection, Sequence
from dataclasses import fields
from datetime import datetime
from typing import Any

from service.domain.errors import NotFound
from service.domain.graph import GraphView
from service.domain.job import HOLDS_PERMIT, IllegalTransition, JobEvent, JobState
from service.domain.progress import JobProgress
from service.operations.commands.fan_out import shares_of
from service.operations.jobs import snapshots
from service.operations.jobs.failing import tell_created
from service.operations.jobs.standing import progress_of
from service.ports.meta_store import Transaction
from service.ports.records import Command
from service.protocol.barrier import Barrier, BarrierKind
from service.protocol.cdc import SourceReport
from service.protocol.ids import DATABASE_GRAPH, CommandId, Epoch, FragmentId, GraphId, JobId
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
from service.protocol.report import ActorReport, Collected

Answered = Sequence[tuple[Barrier, Collected]]


async def apply_commands(
    tx: Transaction, graph: GraphId, commands: Sequence[Command], *, epoch: Epoch, now: datetime
) -> None:
    """Apply each command that the epoch carried, and finish it with the epoch (I4)."""
    done: list[CommandId] = []
    paused: tuple[bool, str] | None = None
    for command, share in zip(commands, await shares_of(tx, commands), strict=True):
        acted = epoch if command.epoch is None else command.epoch
        await _take_effect(tx, share, epoch=epoch, now=now, by=command.asked_by)
        if isinstance(command.mutation, Pause | Resume):
            paused = isinstance(command.mutation, Pause), command.asked_by
        done.append(command.id)
        if command.mutation is not None:
            await tx.events.append(
                "mutation.applied",
                {
                    "type": command.mutation.type,
                    "epoch": str(acted),
                    "asked_by": command.asked_by,
                    "command": command.id,
                },
                now=now,
            )
    if paused is not None:
        await tx.graphs.set_paused(graph, paused=paused[0], now=now, by=paused[1])
    if done:
        await tx.commands.finish(done, epoch=epoch)


async def hold_jobs(tx: Transaction, view: GraphView, collected: Answered, commands: Sequence[Command]) -> None:
    """Lock the jobs that the commit may finish, merge or stop, or whose scans it changes, before anything else.

    After an initial barrier all jobs of the database graph are due for a comparison of their parallelism.
    """
    jobs = await _concerned(tx, commands)
    if not view.policy.shared:
        consumed = snapshots.consumed_by([answer for _, answer in collected])
        if consumed is not None:
            # A job that stays in its graph is created there.
            running = {JobState.CREATING, JobState.CREATED}
            jobs.update(job.id for job in await tx.jobs.where(running, graph=view.graph))
            await tx.jobs.hold_all(jobs)
            await tx.snapshots.replayed(view.graph, consumed)
            return
    else:
        if any(barrier.kind is BarrierKind.INITIAL for barrier, _ in collected):
            await tx.rescaling.all_due(view.graph)
        if finishing := await _finishing(tx, collected):
            jobs.update(job.id for job in await tx.jobs.where({JobState.CREATING}, ids=finishing))
    if jobs:
        await tx.jobs.hold_all(jobs)


async def _concerned(tx: Transaction, commands: Sequence[Command]) -> set[JobId]:
    """Return the jobs that commands stop, and those whose scans they change."""
    named: set[FragmentId] = set()
    jobs: set[JobId] = set()
    for command in commands:
        match command.mutation:
            case Throttle(fragments=scans) | StartFragmentBackfill(fragments=scans):
                named.update(scans)
            case Stop(jobs=stopping):
                jobs.update(stopping)
            case _:
                pass
    if named:
        jobs.update(job for job, _ in (await tx.fragments.job_of(named)).values())
    return jobs


async def _take_effect(tx: Transaction, mutation: Mutation | None, *, epoch: Epoch, now: datetime, by: str) -> None:
    match mutation:
        case Throttle(fragments=limits, auto=auto):
            await tx.limits.put(limits, auto=auto, epoch=epoch, by=by)
        case StartFragmentBackfill(fragments=fragments):
            await tx.fragments.release(fragments)
        case Stop(jobs=jobs):
            await stop_jobs(tx, jobs, epoch=epoch, now=now)
        case Add() | Update() | Reload() | Pause() | Resume() | None:
            pass


async def stop_jobs(tx: Transaction, jobs: Collection[JobId], *, epoch: Epoch, now: datetime) -> None:
    """End jobs whose actors have stopped: free their names and queue the clean-up of their tables (I9)."""
    for job in jobs:
        try:
            stopped = await tx.jobs.move(job, JobEvent.STOPPED, now=now)
        except (IllegalTransition, NotFound):
            continue  # another Stop has already ended the job
        await tx.catalog.remove(stopped.relation)
        facts = {"job": job, "name": stopped.name, "epoch": str(epoch)}
        await tx.events.append(f"job.{stopped.state.lower()}", facts, now=now)


async def release_scans(tx: Transaction, graph: GraphId, *, now: datetime) -> None:
    """Enqueue the start of every scan whose predecessors in the backfill order are finished.

    Every commit recomputes the due scans from the stored state. A start that was lost, or that an abandoned generation
    carried, is therefore enqueued again.
    """
    held = await tx.fragments.held(graph)
    if not held:
        return
    scans = await tx.fragments.scans(held)
    due = [scan.fragment for job in held for scan in scans[job] if scan.waiting and not scan.awaits]
    if not due:
        return
    asked = {
        fragment
        for command in await tx.commands.waiting(graph)
        if isinstance(command.mutation, StartFragmentBackfill)
        for fragment in command.mutation.fragments
    }
    if starting := tuple(fragment for fragment in due if fragment not in asked):
        await tx.commands.add(graph, StartFragmentBackfill(fragments=starting), asked_by="the backfill order", now=now)


async def finish_jobs(tx: Transaction, collected: Answered, *, now: datetime) -> None:
    """Move a creating job to Created once every scan actor has reported its finish in a committed checkpoint (I6)."""
    touched = await _finishing(tx, collected)
    if not touched:
        return
    creating = [job for job in await tx.jobs.where({JobState.CREATING}, graph=DATABASE_GRAPH) if job.id in touched]
    scans = await tx.fragments.scans([job.id for job in creating])
    for job in creating:
        # A followed table is readable before its history is complete.
        if all(scan.finished or scan.external for scan in scans.get(job.id, ())):
            await tx.jobs.move(job.id, JobEvent.FINISHED, now=now)
            await tell_created(tx, job, now=now, epoch=str(collected[-1][0].curr))


async def hasten_finish(tx: Transaction, view: GraphView, collected: Answered, *, now: datetime) -> None:
    """Enqueue a flush if a scan has read its whole history, because the next barrier finishes it.

    A Snapshot job also gets a flush after it has read its snapshot. It then catches up without waiting for the
    interval.
    """
    actors = [actor for _, answer in collected for actor in answer.of(ActorReport)]
    if any(actor.completed or (actor.finished and not view.policy.shared) for actor in actors):
        await tx.commands.add(view.graph, None, asked_by="the end of a backfill", now=now)


async def _finishing(tx: Transaction, collected: Answered) -> set[JobId]:
    """Return the jobs that may have finished: those with a finished actor, and added jobs without a table scan."""
    finished: set[FragmentId] = set()
    jobs: set[JobId] = set()
    for barrier, answer in collected:
        finished.update(actor.fragment for actor in answer.of(ActorReport) if actor.finished)
        if isinstance(barrier.mutation, Add):
            jobs.update(plan.id for plan in barrier.mutation.jobs if not plan.table_scans)
    if finished:
        jobs.update(job for job, _ in (await tx.fragments.job_of(finished)).values())
    return jobs


async def store_sources(tx: Transaction, reports: Sequence[SourceReport], *, now: datetime) -> None:
    """Store the offsets of sources in the transaction of their positions, and record events for changed sources."""
    for told in await tx.following.record(reports, now=now):
        if told.table is not None:
            facts = {"source": told.source, "table": told.table, "reason": told.text}
            await tx.events.append("source.table_broken", facts, now=now)
        else:
            kind = "source.resumed" if told.text is None else "source.waiting"
            await tx.events.append(kind, {"source": told.source, "reason": told.text}, now=now)


async def store_progress(tx: Transaction, graph: GraphId) -> None:
    """Store the values of `rw_ddl_progress` for every running job.

    An epoch does not change the values of a job that has not started.
    """
    jobs = [*await tx.jobs.where(HOLDS_PERMIT, graph=graph)]
    if graph == DATABASE_GRAPH:
        jobs += await tx.jobs.backfilling()
    shown = await progress_of(tx, jobs)
    if shown:
        await tx.fragments.store_texts({job: _json(progress) for job, progress in shown.items()})


def _json(progress: JobProgress) -> dict[str, Any]:
    values = {field.name: getattr(progress, field.name) for field in fields(progress)}
    values["eta_seconds"] = None if progress.eta is None else progress.eta.total_seconds()
    del values["eta"]
    return values
