"""Run one tick of one graph: read, decide, record, and change the state store if the effect lies there.

The transaction that records `Commit` is the commit point of an epoch. A recovery undoes everything before it.
Everything after it (publishing, cleaning up) is repeatable, and a new leader publishes before it does anything else.
Next: `service.meta_store.barriers.barriers`, then `workers.agent`, then `service.operations.barriers.committing`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from service.domain.barrier import after_commit, chores, decide
from service.domain.dml import BYTES_MAX, STATEMENTS_MAX, epoch_budget_ms
from service.domain.graph import (
    Abandon,
    ApplyStops,
    Attach,
    BuildIndex,
    Commit,
    Effect,
    GraphPolicy,
    GraphStatus,
    GraphView,
    InFlight,
    Inject,
    Pace,
    Publish,
    Retire,
    RollBack,
    Wait,
)
from service.domain.job import IN_GRAPH
from service.domain.loads import epoch_cost
from service.domain.parameters import SystemParameters
from service.domain.trace import Span
from service.operations.barriers import recovery, tracing
from service.operations.barriers.carried import mutation_of
from service.operations.barriers.committing import Recorded, commit
from service.operations.jobs import rescaling, snapshots
from service.operations.retrying import retried
from service.operations.world import Context, World
from service.ports.meta_store import Transaction
from service.ports.records import Command
from service.protocol.barrier import Barrier, BarrierKind
from service.protocol.dml import NOTHING_UNFINISHED, DmlLimits, Statement
from service.protocol.ids import DATABASE_GRAPH, CommandId, Epoch, GraphId, Term
from service.protocol.mutation import Add
from service.protocol.report import ActorReport, Collected, DmlReport
from service.telemetry.log import bound, logger
from service.telemetry.metrics import Consuming, Metrics, Stage

_STAGES: Final[Mapping[type[Effect], Stage]] = {
    Inject: "inject",
    Attach: "commit",
    Commit: "commit",
    Publish: "publish",
}

_NO_STATEMENTS: Final[tuple[tuple[Statement, ...], DmlLimits]] = ((), DmlLimits())

log = logger("barriers")


@dataclass(frozen=True, slots=True)
class _Look:
    """The result of one tick."""

    view: GraphView
    pace: Pace
    effect: Effect
    recorded: Recorded


async def advance(world: World, graph: GraphId, *, term: Term) -> Effect:
    """Run one tick: perform the graph's next effect and return it. Raises Deposed for a newer term, Unavailable."""
    return (await _advance(world, graph, term=term)).effect


async def proceed(world: World, graph: GraphId, *, term: Term) -> Sequence[Effect]:
    """Advance once. After a commit of the database graph, and after an idle one of any graph, publish as well: the next
    look would decide that anyway.

    Return the effects in order. After an idle epoch the last one is the wait for the next barrier, if nothing else is
    due. Raises Deposed, Unavailable.
    """
    look = await _advance(world, graph, term=term)
    committed, recorded, barrier = look.effect, look.recorded, look.view.in_flight
    at_once = recorded.idle or (look.view.policy.shared and recorded.answers)
    if not isinstance(committed, Commit) or barrier is None or not at_once:
        return [look.effect]
    passed = _Passed(barrier.injected_at, None if recorded.idle else recorded.answers[-1].timings_ms)
    await _publish(world, look.view, committed.epoch, recorded, look.pace, passed, term=term)
    publish = Publish(committed.epoch)
    _notify(world, publish)
    now = world.clock.now()
    following = after_commit(look.view, committed.epoch, now=now, pace=look.pace) if recorded.idle else None
    return [committed, publish, following] if isinstance(following, Wait) else [committed, publish]


@retried
async def _advance(world: World, graph: GraphId, *, term: Term) -> _Look:
    now, began = world.clock.now(), world.clock.monotonic()
    async with world.stores.begin(term) as tx:
        # Only silence during which this process could receive calls counts against a worker.
        world.workers.attention.missed(began, world.clock.monotonic())
        view = await tx.graphs.view(graph, now=now, lease=world.patience())
        if view.status is GraphStatus.WAITING:
            # A start chooses a worker.
            view = replace(view, setbacks=world.leading.setbacks.of(graph, now=now))
        parameters = SystemParameters.of(view.parameters)
        pace = pace_of(world, view.policy, parameters)
        effect = decide(view, now=now, pace=pace)
        with bound(**_about(world, view)):
            recorded = await _record(world, tx, view, effect, parameters, now=now)
        spans = await _spans(world, tx, view, effect, recorded, pace)
    if due := chores(view, pace):
        world.signals.notify(*due)
    # Metrics are counted only after the transaction has committed.
    _count(world, view, effect, recorded, pace, seconds=world.clock.monotonic() - began)
    if world.traces is not None:
        world.traces.send(spans)
    await _carry_out(world, view, effect, recorded, pace, term=term)
    _notify(world, effect, merging=recorded.merging)
    return _Look(view, pace, effect, recorded)


def _about(world: Context, view: GraphView) -> Mapping[str, int | str]:
    """Return what the log lines about the barrier in flight carry."""
    if view.in_flight is None:
        return {}
    epoch = view.in_flight.epoch
    traced = {} if world.traces is None else {"trace_id": world.traces.of_epoch(view.graph, epoch, always=True).trace}
    return {"graph": view.graph, "epoch": epoch, **traced}


async def _spans(
    world: Context, tx: Transaction, view: GraphView, effect: Effect, recorded: Recorded, pace: Pace
) -> Sequence[Span]:
    if world.traces is None:
        return ()
    now = world.clock.now()
    return await tracing.after(tx, world.traces, view, effect, recorded, interval=pace.interval, now=now)


async def _carry_out(
    world: World, view: GraphView, effect: Effect, recorded: Recorded, pace: Pace, *, term: Term
) -> None:
    """Perform the part of an effect that lies outside the meta store."""
    match effect:
        case Publish(epoch):
            await _publish(world, view, epoch, recorded, pace, term=term)
        case RollBack():
            await recovery.roll_back(world, view, term=term)
        case BuildIndex():
            await snapshots.build_index(world, view, term=term)
        case Retire():
            await snapshots.retire(world, view, term=term)
        case _:
            pass


def _notify(world: World, effect: Effect, *, merging: bool = False) -> None:
    """Wake those who wait for what the effect has changed. The usual effects of a barrier wake no graph's loop, because
    the loop of this graph looks again by itself. A merge wakes the database graph's loop: the job goes on there.
    """
    match effect:
        case Wait():
            pass
        case Inject() | Attach() | Commit() | Publish():
            if isinstance(effect, Inject):
                world.workers.barriers.notify()
            world.signals.notify(None, *([DATABASE_GRAPH] if merging else []))
        case _:
            world.signals.notify()


def _count(world: World, view: GraphView, effect: Effect, recorded: Recorded, pace: Pace, *, seconds: float) -> None:
    if (stage := _STAGES.get(type(effect))) is not None:
        world.metrics.transacted(stage, seconds)
    for answer in recorded.reporting:
        for dml in answer.of(DmlReport):
            _measure(world, answer, dml, pace)
    if isinstance(effect, Commit) and view.in_flight is not None:
        _count_committed(world.metrics, view, view.in_flight, recorded, now=world.clock.now())


def _measure(world: World, answer: Collected, dml: DmlReport, pace: Pace) -> None:
    """Record how long the statements of an epoch took."""
    world.leading.callers.committed()
    seconds = answer.timings_ms.get("dml", 0) / 1000
    if len(dml.results) == 1 and dml.unfinished == NOTHING_UNFINISHED:
        world.leading.singles.ended(seconds, now=world.clock.monotonic())
    cost = epoch_cost(
        epoch=answer.timings_ms.get("epoch", 0) / 1000,
        statements=seconds,
        interval=pace.interval.total_seconds(),
        reads_history=any(actor.snapshot_rows for actor in answer.of(ActorReport)),
    )
    moved = [result.id for result in dml.results if result.error is None]
    world.leading.loads.measured(cost, moved, [*dml.unfinished.not_reached, *dml.unfinished.set_aside])


def _count_committed(
    metrics: Metrics, view: GraphView, barrier: InFlight, recorded: Recorded, *, now: datetime
) -> None:
    actors = [actor for answer in recorded.reporting for actor in answer.of(ActorReport)]
    metrics.committed(actors, barriers=len(recorded.answers), replaying=not view.policy.shared)
    if view.policy.relation is not None:
        replayed = any(answer.consumed is not None for answer in recorded.answers)
        consuming: Consuming = "consuming_log_store" if replayed else "consuming_snapshot"
        metrics.consumed(view.policy.relation, consuming, seconds=(now - barrier.injected_at).total_seconds())
    elif view.recovering_since is not None and barrier.kind is not BarrierKind.INITIAL:
        metrics.recovered(seconds=(now - view.recovering_since).total_seconds())


async def _record(
    world: World, tx: Transaction, view: GraphView, effect: Effect, parameters: SystemParameters, *, now: datetime
) -> Recorded:
    """Record the effect in the meta store."""
    match effect:
        case Inject():
            await _inject(world, tx, view, effect, parameters, now=now)
        case Attach(epoch):
            await tx.barriers.attach(view.graph, epoch)
        case Commit(epoch):
            return await commit(tx, view, epoch, parameters, lease=world.workers.lease, now=now)
        case Publish():
            return Recorded(created=await tx.visibility.unshown(view.graph))
        case Abandon():
            await recovery.abandon(world, tx, view, effect, now=now)
        case ApplyStops():
            await recovery.apply_stops(tx, view, now=now)
        case RollBack() | Wait() | BuildIndex() | Retire():
            pass
    return Recorded()


async def _inject(
    world: World, tx: Transaction, view: GraphView, effect: Inject, parameters: SystemParameters, *, now: datetime
) -> None:
    # Commands and statements that arrived after the view was read wait for the next tick, which they have signalled.
    starting = effect.kind is BarrierKind.INITIAL
    waiting = await tx.commands.waiting(view.graph) if view.commands_open or starting else ()
    kind, (statements, limits) = effect.kind, _NO_STATEMENTS
    if starting:
        await rescaling.fit(tx, view, effect.worker, now=now, lease=world.workers.lease)
        mutation, carried = await _initial(tx, view, waiting, parameters, now=now)
        await tx.graphs.set_status(view.graph, GraphStatus.RUNNING, now=now, worker=effect.worker)
    else:
        mutation, carried = await mutation_of(tx, waiting, world.leading.commands)
        if any(command.hurried and command.id in carried for command in waiting):
            # Decided by the carried commands, because one may have arrived after the view was read.
            kind = BarrierKind.CHECKPOINT
        # Only the database graph has DML, because it contains every table.
        if view.statements_queued:
            statements, limits = await _statements(world, tx, parameters)
    barrier = Barrier(
        graph=view.graph,
        generation=view.generation,
        prev=view.committed if view.attached is None else view.attached,
        curr=world.leading.epochs.next(view.newest, now=now),
        kind=kind,
        mutation=mutation,
        statements=statements,
        dml=limits,
        interval_ms=parameters.barrier_interval_ms,
        overhead_ms=round(world.leading.overhead.seconds * 1000),
        replay_upto=None if view.policy.shared else await snapshots.replay_upto(tx, view.graph),
        follows=view.policy.created,
        scans=parameters.of_scans(shared=view.policy.shared, apart=world.leading.suspects.apart(now=now)),
    )
    if world.traces is not None:
        context = world.traces.of_epoch(barrier.graph, barrier.curr, always=mutation is not None)
        barrier = barrier.model_copy(update={"traceparent": context.traceparent})
    await tx.barriers.record(barrier, worker=effect.worker, now=now, commands=carried)
    mutating = None if mutation is None else mutation.type
    log.debug("barrier.injected", epoch=barrier.curr, kind=kind, mutation=mutating, statements=len(statements))


async def _initial(
    tx: Transaction, view: GraphView, waiting: Sequence[Command], parameters: SystemParameters, *, now: datetime
) -> tuple[Add, list[CommandId]]:
    """Return the Add that rebuilds every job of the graph, and the waiting Adds that it fulfils.

    Later barriers carry the other commands.
    """
    jobs = await tx.jobs.where(IN_GRAPH, graph=view.graph)
    plans = await tx.plans.of([job.id for job in jobs if not job.failed])
    paused = (await tx.graphs.state(view.graph)).paused
    if parameters.pause_on_next_bootstrap and view.policy.shared:
        paused = True
        await snapshots.pause_all(tx, now=now)
        await tx.graphs.set_paused(view.graph, paused=True, now=now, by="pause_on_next_bootstrap")
        await tx.parameters.set("pause_on_next_bootstrap", "false")
    carried = [command.id for command in waiting if isinstance(command.mutation, Add)]
    return Add(jobs=tuple(plans), paused=paused), carried


async def _statements(
    world: World, tx: Transaction, parameters: SystemParameters
) -> tuple[tuple[Statement, ...], DmlLimits]:
    """Return the statements of the next barrier, and their time limits.

    It is one statement that needs its own epoch, if such a statement waits and may have one now. Otherwise these are
    all other statements that fit.
    """
    singles = world.leading.singles
    singly, was_last = singles.may_begin(world.clock.monotonic()), singles.was_last
    waiting = await tx.statements.waiting(limit=1, singly=True) if singly and not was_last else ()
    singles.was_last = bool(waiting)
    waiting = waiting or await tx.statements.waiting(limit=STATEMENTS_MAX, bytes_max=BYTES_MAX)
    if singly and was_last and not waiting:
        waiting = await tx.statements.waiting(limit=1, singly=True)
    budget_ms = epoch_budget_ms(parameters.dml_epoch_budget_ms, crowded=not singly)
    limits = DmlLimits(epoch_ms=budget_ms, statement_ms=parameters.dml_statement_timeout_ms, patient=singly)
    carried = world.leading.callers.next(one.caller for one in waiting)
    one_by_one = [(one.statement, one.applied_rows) for one in waiting if one.caller in carried]
    cut = world.leading.loads.cut(one_by_one, interval_ms=parameters.barrier_interval_ms, budget_ms=budget_ms)
    return cut.statements, limits


@dataclass(frozen=True, slots=True)
class _Passed:
    """The injection time of the newest barrier of a publication, and the timings of its epoch.

    An idle epoch has None. Its commit is cheaper than one with scans, for which the overhead is estimated.
    """

    injected_at: datetime
    timings_ms: Mapping[str, float] | None


@retried
async def _publish(
    world: World,
    view: GraphView,
    epoch: Epoch,
    recorded: Recorded,
    pace: Pace,
    passed: _Passed | None = None,
    *,
    term: Term,
) -> None:
    graph, created, spans = view.graph, recorded.created, ()
    readable = [relation for relation in created if relation.kind.stored]
    refused = await world.state_store.tables.publish(graph, epoch, term=term, created=readable)
    with world.timed("publish"):
        async with world.stores.begin(term) as tx:
            now = world.clock.now()
            for relation, reason in refused.items():
                await tx.visibility.hold_back(relation, reason)
            await tx.visibility.publish(graph, epoch, now=now, created=bool(created), held_back=refused)
            if passed is None:
                newest = await tx.barriers.history(graph, limit=1)
                passed = _Passed(newest[0].injected_at, newest[0].timings_ms) if newest else None
            if (traces := world.traces) is not None:
                spans = await tracing.published(tx, traces, graph, recorded, interval=pace.interval, now=now)
    if traces is not None:
        traces.send(spans)
    # The epochs of another graph may be long, and no statement waits for them.
    if passed is not None and view.policy.shared:
        seconds = (now - passed.injected_at).total_seconds()
        world.metrics.published(seconds=seconds)
        if passed.timings_ms is not None:
            world.leading.overhead.measured(
                latency_seconds=seconds, epoch_seconds=passed.timings_ms.get("epoch", 0) / 1000
            )


def pace_of(world: World, policy: GraphPolicy, parameters: SystemParameters) -> Pace:
    """Return the barrier interval, checkpoint frequency and deadline of a graph."""
    return Pace(
        interval=policy.interval(timedelta(milliseconds=parameters.barrier_interval_ms)),
        checkpoint_frequency=policy.checkpoint_frequency(parameters.checkpoint_frequency),
        deadline=world.workers.barrier_deadline,
        permits=parameters.max_concurrent_creating_streaming_jobs,
    )
