"""End a generation and start the next one: abandon, fence, roll back (I3, I7).

The order matters. First `abandon` increments the generation in the meta store, so that answers of the old one are
refused. Then the state store is fenced, so that no transaction of the old generation can commit. Only then are the
tables rolled back. Every step is repeatable. If the leader dies between two steps, the next leader continues from the
stored status.
"""

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Final

from service.domain.backoff import SetAside
from service.domain.barrier import HANDED_OVER, STOPPED
from service.domain.dml import failed
from service.domain.errors import Deposed, Unavailable
from service.domain.graph import Abandon, GraphStatus, GraphView
from service.domain.job import IN_GRAPH, JobState
from service.domain.setbacks import is_the_workers
from service.operations.barriers.effects import apply_commands
from service.operations.jobs import moving_out
from service.operations.jobs.failing import fail
from service.operations.retrying import retried
from service.operations.world import World
from service.ports.meta_store import Transaction
from service.ports.records import Cleanup
from service.protocol.dml import StatementResult
from service.protocol.epoch import NEVER
from service.protocol.ids import JobId, RelationId, Term
from service.protocol.mutation import Stop
from service.telemetry.log import logger

REMOVAL_TRIES: Final = 3
"""A DROP waits for so many tries to remove the tables, about a second, as most readers' transactions are short."""
REMOVED_AT_ONCE: Final = 20
"""How many relations are removed before the list of them is read again."""

STUCK_GENERATIONS: Final = 2
"""From how many generations on whose sessions did not end, a job fails. One may be late to end."""
STUCK: Final = (
    "Postgres can neither compute the view nor end its sessions, which run on until Postgres is restarted: a function"
    " of its query takes too long over some values"
)

log = logger("recovery")


async def abandon(world: World, tx: Transaction, view: GraphView, effect: Abandon, *, now: datetime) -> None:
    """End the generation. Fail the jobs that keep failing, and evict a worker that is dead or hangs."""
    blamed = None if effect.failure is None else effect.failure.job
    if blamed is not None and view.policy.shared:
        world.leading.callers.failed()
    slow = frozenset[JobId]() if effect.failure is None else effect.failure.slow
    failing = await _failing(world, tx, view, effect, now=now)
    await tx.queue.too_slow(slow.intersection(failing), now=now)
    await tx.failures.blame(blamed, graph=view.graph)
    for job, error in failing.items():
        if job not in slow or not await moving_out.decide(tx, job, error, now=now):
            await fail(tx, job, error, now=now)
    await _blame_statements(tx, view, effect, now=now)
    generation = await tx.graphs.set_status(view.graph, GraphStatus.RECOVERING, now=now, reason=effect.reason)
    if view.worker is not None and (view.worker not in view.alive or (_hung(view, effect) and _alone(view))):
        await tx.workers.give_up(view.worker)
    await tx.graphs.ask_recovery(view.graph, None)
    if view.worker is not None and is_the_workers(effect.failure, hung=_hung(view, effect)):
        world.leading.setbacks.failed(view.graph, view.worker, now=now)
    facts = {"graph": view.graph, "generation": generation, "reason": effect.reason, "job": blamed}
    await tx.events.append("graph.recovering", facts, now=now)
    (log.info if effect.reason in {STOPPED, HANDED_OVER} else log.warning)("graph.recovering", **facts)


async def _failing(
    world: World, tx: Transaction, view: GraphView, effect: Abandon, *, now: datetime
) -> Mapping[JobId, str]:
    """Return the jobs that are failed, each with the reason. Lock all jobs that the recovery changes.

    A job whose failure is deterministic would fail in the same way again, and every time the whole graph would recover.
    A worker's list of other jobs may be long and may name any job (I13). Only jobs that run in the graph count.
    """
    failing: dict[JobId, str] = {}
    failure = effect.failure
    running = {job.id: job for job in await tx.jobs.where({JobState.CREATING, JobState.CREATED}, graph=view.graph)}
    changed = {job.id for job in running.values() if job.state is JobState.CREATING or job.failures}
    if failure is not None:
        failing = {one.job: one.error for one in failure.others if one.job in running}
    if failure is not None and failure.job is not None:
        changed.add(failure.job)
        caller = running[failure.job].created_by if failure.job in running else ""
        suspects = world.leading.suspects
        again = failure.exhausted and suspects.suspect(view.graph, failure.job, caller=caller, now=now)
        if failure.deterministic or again:
            failing[failure.job] = effect.reason
        # Graphs of their own compute beside each other, too.
        crowd = [failure.job] if failure.exhausted and not view.policy.shared else failure.beside
        suspects.crowded([running[one].created_by for one in crowd if one in running], now=now)
    await tx.jobs.hold_all(changed.union(failing, await moving_out.concerned(tx, failure)))
    return failing


async def _blame_statements(tx: Transaction, view: GraphView, effect: Abandon, *, now: datetime) -> None:
    """Count the abandoned epoch against its statements, and fail those that would break the next epoch.

    Do nothing if a job's failure, a dead worker or an operator ended the epoch.
    """
    broke = effect.failure is not None and effect.failure.job is None
    hung = _hung(view, effect) and view.worker in view.alive
    if view.in_flight is None or not (broke or hung):
        return
    culprit = None if effect.failure is None else effect.failure.statement
    error = f"the epoch that ran the statement was abandoned: {effect.reason}"
    if culprit is not None and effect.failure is not None and effect.failure.too_slow:
        # Another run would take another session, and so would statements like it. Those of others are not to blame.
        alike = f"it was not run, because Postgres could not stop statement {culprit} of the same caller"
        failing = {culprit: error, **dict.fromkeys(await tx.statements.given_up(culprit, now=now), alike)}
        await tx.events.append("statement.unstoppable", {"statement": culprit}, now=now)
    else:
        carried = await tx.statements.blame(view.in_flight.epoch, culprit)
        failing = dict.fromkeys(failed(carried, culprit=culprit, hung=hung), error)
    results = [StatementResult(id=one, affected=0, error=why) for one, why in sorted(failing.items())]
    await tx.statements.finish(results, epoch=view.committed, now=now)


def _hung(view: GraphView, effect: Abandon) -> bool:
    """Whether the generation ends because a barrier is unanswered, not for a failure, a recovery request or a stop."""
    unanswered = view.in_flight is not None and not view.in_flight.collected and effect.failure is None
    return unanswered and view.recover_asked is None and effect.reason != STOPPED


def _alone(view: GraphView) -> bool:
    """Whether evicting the graph's worker disturbs only graphs that the hang blocks anyway.

    A worker may hang in the epoch of a Snapshot job that shares it, and still run the database graph (I10). Such a
    worker stays. It drops the epoch when it receives a barrier of the next generation (`workers.agent`).
    """
    return view.policy.shared or view.policy.own_worker is not None


@retried
async def roll_back(world: World, view: GraphView, *, term: Term) -> None:
    """Fence the state store against older generations and roll it back to the committed epoch."""
    left = await world.state_store.fences.fence(view.graph, view.generation, term=term)
    async with world.stores.begin(term) as tx:
        if len(left) >= STUCK_GENERATIONS and not view.policy.shared:
            await _give_up(tx, view, now=world.clock.now())
        # A view that failed after its creation is still readable, so its uncommitted rows are rolled back as well.
        jobs = await tx.jobs.where(IN_GRAPH | {JobState.FAILED}, graph=view.graph)
        outputs = await tx.plans.outputs([job.id for job in jobs])
        settled = await tx.snapshots.settled()
    # The database graph must not roll back the epochs that a job's partial graph committed before the merge.
    reached = {
        output: max(view.committed, settled.get(job, NEVER)) for job, written in outputs.items() for output in written
    }
    for epoch in sorted(set(reached.values())):
        relations = [one for one, upto in reached.items() if upto == epoch]
        await world.state_store.tables.roll_back(relations, view.graph, epoch, term=term)
    await _show(world, view, term=term)
    async with world.stores.begin(term) as tx:
        if view.policy.shared:
            await tx.partial_graphs.leave()
        await tx.graphs.set_status(view.graph, GraphStatus.WAITING, now=world.clock.now())
    # A new partial graph also starts here, with nothing to roll back.
    (log.debug if view.committed == NEVER else log.info)(
        "graph.rolled_back", graph=view.graph, generation=view.generation, epoch=view.committed
    )


async def _give_up(tx: Transaction, view: GraphView, *, now: datetime) -> None:
    """Fail the job of a partial graph whose sessions cannot be ended. Each further generation would leave another one,
    which takes a core of the server that all share (I13).
    """
    its = {job.id for job in await tx.jobs.where({JobState.CREATING, JobState.CREATED}, graph=view.graph)}
    await tx.jobs.hold_all(its)
    for job in sorted(its):
        await fail(tx, job, STUCK, now=now)


@retried
async def _show(world: World, view: GraphView, *, term: Term) -> None:
    """Let a relation that left the database graph be read as of its own graph's epochs (I2).

    Until then users read it at the epochs of the database graph, so nothing may be written. A reader of the view can
    delay this, and with it only the graph, until its session is ended. Raises Unavailable then, so that the loop of the
    graph tries again after a pause.
    """
    if not view.policy.created:
        return
    async with world.stores.begin(term) as tx:
        entry = None if view.policy.relation is None else await tx.catalog.get(view.policy.relation)
    if entry is None or not (entry.shown and entry.relation.kind.stored):
        return
    refused = await world.state_store.tables.publish(view.graph, view.committed, term=term, created=[entry.relation])
    if refused:
        raise Unavailable(f"{entry.relation.name} cannot be read in its own graph: {refused[entry.relation.id]}")
    async with world.stores.begin(term) as tx:
        await tx.visibility.publish(view.graph, view.committed, now=world.clock.now(), created=False)


async def apply_stops(tx: Transaction, view: GraphView, *, now: datetime) -> None:
    """Apply waiting Stops while no actor runs. The next initial barrier omits the jobs."""
    stops = [command for command in await tx.commands.waiting(view.graph) if isinstance(command.mutation, Stop)]
    await tx.jobs.hold_all({job for one in stops if isinstance(one.mutation, Stop) for job in one.mutation.jobs})
    await apply_commands(tx, view.graph, stops, epoch=view.committed, now=now)


async def clean_up(world: World, *, term: Term, aside: SetAside[RelationId] | None = None) -> bool:
    """Remove the tables of dropped, cancelled and failed relations from the state store (I9).

    Return whether nothing is left. A relation that cannot be removed, for example because a reader still uses it, is
    set aside and retried later. It delays no other relation (I13), so the others come first.
    """
    aside = SetAside() if aside is None else aside
    while (left := await _clean_up_some(world, aside, term=term)) is None:
        pass
    return not left


@retried
async def _clean_up_some(world: World, aside: SetAside[RelationId], *, term: Term) -> Collection[RelationId] | None:
    """Remove the newest relations. Return what is left, or None if more of it is due.

    Relations that are dropped meanwhile come before the rest: a DROP waited 40 s for another caller's 1,400 views.
    """
    async with world.stores.begin(term) as tx:
        left = {cleanup.relation: cleanup for cleanup in await tx.cleanups.all()}
    found = len(left)
    aside.keep(left)
    free = [relation for relation in left if relation not in world.leading.starting]
    due = aside.due(free, now=world.clock.now())
    first = [relation for relation in due if left[relation].held is None]
    last = [relation for relation in due if left[relation].held is not None]
    more = len(first) > REMOVED_AT_ONCE
    for relation in first[:REMOVED_AT_ONCE] if more else (*first, *last):
        cleanup = left[relation]
        try:
            await world.state_store.tables.drop(relation, cleanup.name, term=term)
        except Deposed:
            raise
        except Exception as error:  # noqa: BLE001 - any error concerns this relation alone
            await _not_removed(world, cleanup, str(error), aside, term=term)
            continue
        async with world.stores.begin(term) as tx:
            await tx.cleanups.done(relation)
        del left[relation]
    if len(left) < found:
        world.signals.notify(None)
    return None if more else left


async def _not_removed(world: World, cleanup: Cleanup, error: str, aside: SetAside[RelationId], *, term: Term) -> None:
    """Count a failure. After some, hide the relation and record who holds it: from then on nobody waits for that."""
    now = world.clock.now()
    if aside.failed(cleanup.relation, now=now) < REMOVAL_TRIES:
        return
    await world.state_store.tables.hide(cleanup.relation, cleanup.name, term=term)
    if cleanup.held == error:
        return
    facts = {"relation": cleanup.relation, "name": cleanup.name, "error": error}
    async with world.stores.begin(term) as tx:
        await tx.cleanups.hold(cleanup.relation, error)
        if cleanup.held is None:
            log.warning("relation.not_removed", **facts)
            await tx.events.append("relation.not_removed", facts, now=now)
    world.signals.notify(None)
