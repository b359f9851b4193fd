"""Ending a generation and starting the next one: abandon, fence, roll back (I3, I7).

The order matters: the meta store's generation grows first, in `abandon`, so that no answer of the old one counts;
then the state store is fenced, so that no transaction of the old one can commit; only then are the tables rolled
back. Every step is repeatable: a leader that dies between two of them leaves a status from which the next leader
continues.
"""

from collections.abc import Sequence
from datetime import datetime

from service.domain.barrier import STOPPED, Abandon, GraphStatus, GraphView
from service.domain.dml import failed
from service.domain.errors import Deposed
from service.domain.job import IN_GRAPH, JobState
from service.domain.set_aside import SetAside
from service.domain.setbacks import is_the_workers
from service.operations.barriers.effects import apply_commands
from service.operations.jobs.failing import fail
from service.operations.world import World
from service.ports.meta_store import Transaction
from service.ports.records import Cleanup
from service.protocol.dml import StatementResult
from service.protocol.epoch import NEVER
from service.protocol.ids import RelationId, Term
from service.protocol.mutation import Stop
from service.protocol.report import JobFailure
from service.telemetry.log import logger

log = logger("recovery")


async def abandon(world: World, tx: Transaction, view: GraphView, effect: Abandon, *, now: datetime) -> None:
    """End the generation, and give up the jobs that keep failing, or the worker that is gone."""
    blamed = None if effect.failure is None else effect.failure.job
    await tx.jobs.blame(blamed, graph=view.graph)
    await _blame_statements(tx, view, effect, now=now)
    generation = await tx.graphs.set_status(view.graph, GraphStatus.RECOVERING, now=now, reason=effect.reason)
    if view.worker is not None and (view.worker not in view.alive or (_hung(view, effect) and _alone(view))):
        await tx.workers.give_up(view.worker)
    if view.worker is not None and is_the_workers(effect.failure, hung=_hung(view, effect)):
        world.setbacks.failed(view.graph, view.worker, now=now)
    if blamed is not None and effect.failure is not None:
        again = effect.failure.exhausted and world.suspects.suspect(view.graph, blamed, now=now)
        if effect.failure.deterministic or again:
            # It would fail in the same way every time, and everybody else would recover with it.
            await fail(tx, blamed, effect.reason, now=now)
    await _fail_others(tx, view, () if effect.failure is None else effect.failure.others, now=now)
    await tx.graphs.ask_recovery(view.graph, None)
    facts = {"graph": view.graph, "generation": generation, "reason": effect.reason, "job": blamed}
    await tx.events.append("graph.recovering", facts, now=now)
    # The end of a job that a user cancels is no fault.
    (log.info if effect.reason == STOPPED else log.warning)("graph.recovering", **facts)


async def _fail_others(tx: Transaction, view: GraphView, others: Sequence[JobFailure], *, now: datetime) -> None:
    """Fail further jobs of the graph. Each would cost a recovery of its own otherwise, one after the other.

    A worker's list may be long and name any job: only those that run in the graph are looked up, each once (I13).
    """
    if not others:
        return
    running = {job.id for job in await tx.jobs.where({JobState.CREATING, JobState.CREATED}, graph=view.graph)}
    errors = {other.job: other.error for other in others if other.job in running}
    for job, error in errors.items():
        await fail(tx, job, error, now=now)


async def _blame_statements(tx: Transaction, view: GraphView, effect: Abandon, *, now: datetime) -> None:
    """Count the epoch against the statements that it carried, unless its end had another cause, and fail those that
    would break the next one.
    """
    broke = effect.failure is not None and effect.failure.job is None
    hung = _hung(view, effect) and view.worker in view.alive
    if view.in_flight is None or not (broke or hung):
        return
    culprit = None if effect.failure is None else effect.failure.statement
    carried = await tx.statements.blame(view.in_flight.epoch, culprit)
    error = f"the epoch that ran the statement was abandoned: {effect.reason}"
    results = [StatementResult(id=one, affected=0, error=error) for one in failed(carried, culprit=culprit, hung=hung)]
    await tx.statements.finish(results, epoch=view.committed, now=now)


def _hung(view: GraphView, effect: Abandon) -> bool:
    """Whether the worker holds a barrier without an answer although nobody asked for the end of the generation."""
    unanswered = view.in_flight is not None and not view.in_flight.collected and effect.failure is None
    return unanswered and view.recover_asked is None and effect.reason != STOPPED


def _alone(view: GraphView) -> bool:
    """Whether nobody is disturbed when the graph's worker is replaced who is not held up by it anyhow.

    One that hangs in the epoch of a snapshot job that shares it runs those of the database graph well (I10): it stays,
    and lets go of the epoch itself when the next generation's barrier comes (`workers.agent`).
    """
    return view.decoupled is None or view.decoupled.own_worker is not None


async def roll_back(world: World, view: GraphView, *, term: Term) -> None:
    """Fence the state store against older generations and roll it back to the committed epoch."""
    await world.tables.fence(view.graph, view.generation, term=term)
    async with world.stores.begin(term) as tx:
        # A view that failed after it was created is still read: what its last epoch wrote must go as well.
        jobs = await tx.jobs.where(IN_GRAPH | {JobState.FAILED}, graph=view.graph)
        outputs = await tx.jobs.outputs([job.id for job in jobs])
        settled = await tx.snapshots.settled()
    # What a job's own graph committed before it merged is not the database graph's to take back.
    reached = {
        output: max(view.committed, settled.get(job, NEVER)) for job, written in outputs.items() for output in written
    }
    for epoch in sorted(set(reached.values())):
        await world.tables.roll_back([one for one, upto in reached.items() if upto == epoch], epoch, term=term)
    async with world.stores.begin(term) as tx:
        await tx.graphs.set_status(view.graph, GraphStatus.WAITING, now=world.clock.now())
    # The graph of a snapshot job starts here as well, with nothing to roll back.
    (log.debug if view.committed == NEVER else log.info)(
        "graph.rolled_back", graph=view.graph, generation=view.generation, epoch=view.committed
    )


async def apply_stops(tx: Transaction, view: GraphView, *, now: datetime) -> None:
    """Carry out drops and cancels while no actor runs: the next initial barrier leaves the jobs out."""
    stops = [command for command in await tx.commands.waiting(view.graph) if isinstance(command.mutation, Stop)]
    await apply_commands(tx, view.graph, stops, epoch=view.committed, now=now)


async def clean_up(world: World, *, term: Term, aside: SetAside[RelationId] | None = None) -> bool:
    """Remove from the state store what was dropped, cancelled or failed (I9); return whether nothing is left.

    A relation that cannot be removed, because somebody still reads it or for any other reason, is set aside for another
    try; it holds up nothing else (I13).
    """
    aside = SetAside() if aside is None else aside
    async with world.stores.begin(term) as tx:
        left = {cleanup.relation: cleanup for cleanup in await tx.catalog.cleanups()}
    aside.keep(left)
    free = [relation for relation in left if relation not in world.starting]
    for relation in aside.due(free, now=world.clock.now()):
        cleanup = left[relation]
        try:
            await world.tables.drop(relation, cleanup.name, term=term)
        except Deposed:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, it is of this item alone
            await _not_removed(world, cleanup, str(error), aside, term=term)
            continue
        async with world.stores.begin(term) as tx:
            await tx.catalog.cleaned(relation)
        del left[relation]
    return not left


async def _not_removed(world: World, cleanup: Cleanup, error: str, aside: SetAside[RelationId], *, term: Term) -> None:
    now = world.clock.now()
    if aside.failed(cleanup.relation, now=now) > 1:
        return
    facts = {"relation": cleanup.relation, "name": cleanup.name, "error": error}
    log.warning("relation.not_removed", **facts)
    async with world.stores.begin(term) as tx:
        await tx.events.append("relation.not_removed", facts, now=now)
