"""The commit of an epoch: what it recorded takes effect in one transaction, the commit point.

The commit of an idle epoch is recorded and nothing else: the view, which was read in the same transaction, and the
worker's answers say that nothing follows from it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from service.domain.barrier import GraphView
from service.domain.parameters import SystemParameters
from service.operations.barriers.effects import (
    apply_commands,
    finish_jobs,
    hasten_finish,
    release_scans,
    store_progress,
    store_sources,
)
from service.operations.jobs import snapshots
from service.operations.jobs.rescaling import settle
from service.ports.meta_store import Transaction
from service.protocol.barrier import Barrier, BarrierKind
from service.protocol.ids import DATABASE_GRAPH, Epoch
from service.protocol.mutation import Update
from service.protocol.relation import Relation
from service.protocol.report import Collected
from service.telemetry.log import logger

Answered = Sequence[tuple[Barrier, Collected]]

log = logger("barriers")


@dataclass(frozen=True, slots=True)
class Recorded:
    """What the transaction of an effect has settled."""

    answers: Sequence[Collected] = ()
    merging: bool = False
    """The graph's job goes on in the database graph, which was asked to add it."""
    created: Sequence[Relation] = ()
    """Relations that the next publication shows; stored ones get their public views with it."""
    idle: bool = False
    """Nothing follows from the committed epoch."""


async def commit(
    tx: Transaction, view: GraphView, epoch: Epoch, parameters: SystemParameters, *, lease: timedelta, now: datetime
) -> Recorded:
    """Record that the epoch is committed, and everything that follows from its answers."""
    graph = view.graph
    collected = await tx.barriers.collected(graph, epoch)
    answers = [answer for _, answer in collected]
    if _is_idle(view) and not any(_did_something(barrier, answer) for barrier, answer in collected):
        await tx.barriers.commit(graph, epoch, now=now)
        log.debug("barrier.committed", epoch=epoch, barriers=len(collected))
        return Recorded(answers, idle=True)
    await _store(tx, collected, now=now)
    await apply_commands(tx, graph, await tx.commands.carried(graph, epoch), epoch=epoch, now=now)
    await release_scans(tx, graph, now=now)
    await hasten_finish(tx, graph, collected, now=now)
    await tx.barriers.commit(graph, epoch, now=now)
    if view.decoupled is not None:
        # Nobody reads it before it is created: what is committed is all there is to show.
        await tx.graphs.set_published(graph, epoch, now=now, created=False)
        merging = await snapshots.follow(tx, graph, answers, lag_max=snapshots.lag_max(parameters), now=now)
        recorded = Recorded(answers, merging)
    else:
        await _settle(tx, collected, epoch, lease=lease, now=now)
        recorded = Recorded(answers, created=await tx.catalog.unshown())
    await store_progress(tx, graph)
    log.debug("barrier.committed", epoch=epoch, barriers=len(collected))
    return recorded


def _is_idle(view: GraphView) -> bool:
    """Whether a commit changes nothing in the graph besides what its answers report."""
    return view.decoupled is None and not (view.commands_open or view.unsettled or view.line.held)


def _did_something(barrier: Barrier, answer: Collected) -> bool:
    """Whether an epoch was asked for something, or reports something."""
    asked = barrier.kind is BarrierKind.INITIAL or barrier.mutation is not None or barrier.statements
    return bool(asked or answer.actors or answer.relations or answer.statements or answer.sources)


async def _store(tx: Transaction, collected: Answered, *, now: datetime) -> None:
    """Store what the answers report."""
    answers = [answer for _, answer in collected]
    for barrier, _ in collected:
        # First, for what they report is of the actors that an Update brought.
        if isinstance(barrier.mutation, Update):
            await tx.actors.replace(barrier.mutation.fragments)
    await tx.fragments.record(answers, now=now)
    await store_sources(tx, answers, now=now)
    for barrier, answer in collected:
        if barrier.statements:
            await tx.statements.finish(answer.statements, epoch=barrier.curr, now=now, unfinished=answer.unfinished)


async def _settle(tx: Transaction, collected: Answered, epoch: Epoch, *, lease: timedelta, now: datetime) -> None:
    """Finish jobs of the database graph, and give its scans as many actors as they shall have."""
    await finish_jobs(tx, collected, now=now)
    if any(barrier.kind is BarrierKind.INITIAL for barrier, _ in collected):
        await tx.actors.all_due(DATABASE_GRAPH)
        generation = collected[0][0].generation
        facts = {"graph": DATABASE_GRAPH, "generation": generation, "epoch": str(epoch)}
        await tx.events.append("graph.recovered", facts, now=now)
    await settle(tx, DATABASE_GRAPH, now=now, lease=lease)
