"""Commit an epoch: apply its commands and its answers in one transaction, the commit point.

For an idle epoch only the commit is recorded. The view, which is read in the same transaction, and the worker's answers
show that the epoch changes nothing else.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from service.domain.errors import Invalid
from service.domain.graph import GraphView
from service.domain.parameters import SystemParameters
from service.operations.barriers.effects import (
    Answered,
    apply_commands,
    finish_jobs,
    hasten_finish,
    hold_jobs,
    release_scans,
    store_progress,
    store_sources,
)
from service.operations.jobs import snapshots
from service.operations.jobs.rescaling import settle
from service.ports.meta_store import Transaction
from service.protocol.barrier import Barrier, BarrierKind
from service.protocol.cdc import SourceReport
from service.protocol.ids import DATABASE_GRAPH, Epoch, GraphId
from service.protocol.mutation import Mutation, Reload, Update
from service.protocol.relation import Relation
from service.protocol.report import ActorReport, Collected, DmlReport
from service.telemetry.log import logger

log = logger("barriers")


@dataclass(frozen=True, slots=True)
class Recorded:
    """The results of the transaction that recorded an effect."""

    answers: Sequence[Collected] = ()
    barriers: Sequence[Barrier] = ()
    """The barriers of these answers, unless the epoch is idle."""
    merging: bool = False
    """The graph's job merges: an Add for it is queued in the database graph."""
    created: Sequence[Relation] = ()
    """Relations that the next publication shows; stored ones get their public views with it."""
    idle: bool = False
    """The committed epoch changes nothing else."""

    @property
    def reporting(self) -> Sequence[Collected]:
        """The answers that may report something."""
        return () if self.idle else self.answers


async def commit(
    tx: Transaction, view: GraphView, epoch: Epoch, parameters: SystemParameters, *, lease: timedelta, now: datetime
) -> Recorded:
    """Record that the epoch is committed, and apply its commands and answers.

    Answers that another version of tidefill has stored cannot be committed, so the graph recovers instead.
    """
    graph = view.graph
    try:
        collected = await tx.barriers.collected(graph, epoch)
    except Invalid as error:
        await tx.graphs.ask_recovery(graph, str(error))
        return Recorded()
    answers = [answer for _, answer in collected]
    barriers = [barrier for barrier, _ in collected]
    if _is_idle(view) and not any(_did_something(barrier, answer) for barrier, answer in collected):
        return await _commit_idle(tx, graph, epoch, answers, now=now)
    commands = await tx.commands.carried(graph, epoch)
    await hold_jobs(tx, view, collected, commands)
    await _store(tx, collected, now=now)
    await apply_commands(tx, graph, commands, epoch=epoch, now=now)
    await release_scans(tx, graph, now=now)
    if not view.policy.created:
        await hasten_finish(tx, view, collected, now=now)
    if not view.policy.shared:
        upto, lag_max = barriers[-1].replay_upto, snapshots.lag_max(parameters)
        merging = await snapshots.follow(tx, graph, answers, upto=upto, lag_max=lag_max, now=now)
        await tx.barriers.commit(graph, epoch, now=now)
        if view.policy.created:
            await settle(tx, graph, now=now, lease=lease)
        if not await snapshots.is_read(tx, graph):
            # No user reads the relation before it is created, so the committed epoch counts as published.
            await tx.visibility.publish(graph, epoch, now=now, created=False)
        recorded = Recorded(answers, barriers, merging)
    else:
        await tx.barriers.commit(graph, epoch, now=now)
        await _settle(tx, collected, epoch, lease=lease, now=now)
        recorded = Recorded(answers, barriers, created=await tx.visibility.unshown(graph))
    await store_progress(tx, graph)
    log.debug("barrier.committed", epoch=epoch, barriers=len(collected))
    return recorded


async def _commit_idle(
    tx: Transaction, graph: GraphId, epoch: Epoch, answers: Sequence[Collected], *, now: datetime
) -> Recorded:
    """Record how far a graph of its own has read, and the commit."""
    if (consumed := snapshots.consumed_by(answers)) is not None:
        await tx.snapshots.replayed(graph, consumed)
    await tx.barriers.commit(graph, epoch, now=now)
    log.debug("barrier.committed", epoch=epoch, barriers=len(answers))
    return Recorded(answers, idle=True)


def _is_idle(view: GraphView) -> bool:
    """Whether nothing is pending in the graph, so that a commit only stores its answers."""
    return view.policy.publishes and not (view.commands_open or view.unsettled or view.line.held)


def _did_something(barrier: Barrier, answer: Collected) -> bool:
    """Whether a barrier carried a mutation or statements, or its answer reports anything."""
    asked = barrier.kind is BarrierKind.INITIAL or barrier.mutation is not None or barrier.statements
    return bool(asked or answer.reports or answer.relations)


async def _store(tx: Transaction, collected: Answered, *, now: datetime) -> None:
    """Store the reports in the answers. The order is the lock order: sources, actors, positions."""
    answers = [answer for _, answer in collected]
    sources = [report for answer in answers for report in answer.of(SourceReport)]
    mutations = [barrier.mutation for barrier, _ in collected]
    reloads = [mutation.fragments for mutation in mutations if isinstance(mutation, Reload)]
    for scans in reloads:
        await tx.following.reload(scans)
    if sources:
        await store_sources(tx, sources, now=now)
    for mutation in mutations:
        await _begin_anew(tx, mutation)
    await tx.fragments.record(answers, now=now)
    for barrier, report in ((barrier, report) for barrier, answer in collected for report in answer.reports):
        match report:
            case ActorReport() | SourceReport():
                pass  # Recorded above.
            case DmlReport(results=results, unfinished=unfinished):
                await tx.statements.finish(results, epoch=barrier.curr, now=now, unfinished=unfinished)


async def _begin_anew(tx: Transaction, mutation: Mutation | None) -> None:
    """Apply what precedes the reports: they come from the actors of an Update, or begin a history anew."""
    match mutation:
        case Update(fragments=actors):
            await tx.actors.replace(actors)
        case Reload(fragments=scans):
            await tx.following.restart(scans)
        case _:
            pass


async def _settle(tx: Transaction, collected: Answered, epoch: Epoch, *, lease: timedelta, now: datetime) -> None:
    """Finish jobs of the database graph, and enqueue the resizing of its scans."""
    await finish_jobs(tx, collected, now=now)
    if any(barrier.kind is BarrierKind.INITIAL for barrier, _ in collected):
        generation = collected[0][0].generation
        facts = {"graph": DATABASE_GRAPH, "generation": generation, "epoch": str(epoch)}
        await tx.events.append("graph.recovered", facts, now=now)
    await settle(tx, DATABASE_GRAPH, now=now, lease=lease)
