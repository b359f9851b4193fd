"""Enqueue the commands of users, split by graph: a job is created in the database graph or in a partial graph (I4)."""

from collections import defaultdict
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from datetime import datetime
from typing import TypeVar

from service.domain.command_turns import check_waiting, counted_with
from service.ports.audit import Asker
from service.ports.meta_store import Transaction
from service.ports.records import Command
from service.protocol.ids import BIGINT_MAX, DATABASE_GRAPH, CommandId, Epoch, FragmentId, GraphId
from service.protocol.mutation import Mutation, Pause, Resume, StartFragmentBackfill, Stop, Throttle
from service.protocol.plan import JobPlan

T = TypeVar("T")


async def ask(tx: Transaction, mutation: Mutation | None, *, asked_by: Asker, now: datetime) -> CommandId:
    """Enqueue a mutation, or a flush for None, and record an event for a mutation.

    The later event `mutation.applied` contains the epoch.
    """
    command = await queue(tx, mutation, asked_by=asked_by.actor, now=now)
    if isinstance(mutation, Throttle):
        await tx.limits.unpause(mutation.fragments)
    if mutation is not None:
        facts = {"command": command, "asked_by": asked_by.actor, **mutation.model_dump(mode="json")}
        await tx.events.append("mutation.asked", facts, now=now)
    return command


async def check_room(tx: Transaction, kind: str | None, caller: str) -> None:
    """Raise Unavailable if so many commands of a caller wait that it may add none of this kind. None is a flush.

    It is asked before anything is read or locked for the command, so that a flood of refused ones costs little.
    """
    if kind == "stop":
        return  # its job has ended already
    check_waiting(caller, await tx.commands.waiting_of(caller))
    if (few := counted_with(kind)) is not None:
        kinds, most = few
        waiting = await tx.commands.wholes_of(caller, kinds)
        check_waiting(caller, waiting, most=most, what=f"commands ({', '.join(sorted(kinds))})")


async def queue(
    tx: Transaction, mutation: Mutation | None, *, asked_by: str, now: datetime, hurried: bool = True
) -> CommandId:
    """Enqueue a command for every affected graph. Return the first one, of which the others are parts."""
    whole: CommandId | None = None
    async for graph, part in _by_graph(tx, mutation):
        added = await tx.commands.add(graph, part, asked_by=asked_by, now=now, part_of=whole, hurried=hurried)
        whole = added if whole is None else whole
    assert whole is not None, mutation
    return whole


async def follow(tx: Transaction, plan: JobPlan, graph: GraphId, *, now: datetime) -> None:
    """Copy the unfinished commands for a job's scans from the database graph to the partial graph in which it starts.

    The worker of that graph would not receive them otherwise.
    """
    scans = {fragment.id for fragment in plan.fragments}
    for command in await unfinished_in(tx, DATABASE_GRAPH):
        part = _of_scans(command.mutation, scans)
        if part is not None:
            await tx.commands.add(graph, part, asked_by=command.asked_by, now=now, part_of=command.id)


async def shares_of(tx: Transaction, commands: Collection[Command]) -> Sequence[Mutation | None]:
    """Return for each command the sub-command of its own graph, or None if that is empty.

    It omits the scans that a part of the command names in another graph. That part applies there, and a later command
    for these scans must not be overwritten.
    """
    parts = await tx.commands.parts([one.id for one in commands if _named(one.mutation)])
    told = {whole: {scan for part in its for scan in _named(part.mutation)} for whole, its in parts.items()}
    return [_without(one.mutation, told.get(one.id, ())) for one in commands]


async def throttles(tx: Transaction, scans: Collection[FragmentId] | None = None) -> Sequence[Throttle]:
    """Return the uncommitted Throttles of all graphs, oldest first, each as the sub-command of its graph.

    With `scans` only those that may name one of them.
    """
    graphs = {DATABASE_GRAPH, *await tx.partial_graphs.unmerged()}
    found = [one for one in await tx.commands.unfinished("throttle", scans=scans) if one.graph in graphs]
    return [share for share in await shares_of(tx, found) if isinstance(share, Throttle)]


async def unfinished_in(tx: Transaction, graph: GraphId) -> Sequence[Command]:
    """Return the uncommitted commands of a graph: first those that barriers carry, then the waiting ones."""
    return [*await tx.commands.carried(graph, Epoch(BIGINT_MAX)), *await tx.commands.waiting(graph)]


async def _by_graph(tx: Transaction, mutation: Mutation | None) -> AsyncIterator[tuple[GraphId, Mutation | None]]:
    match mutation:
        case Throttle(fragments=named) | StartFragmentBackfill(fragments=named):
            shares = await _graphs(tx, named)
            # If all scans are gone, the command has no effect but is finished like any other.
            parts = {graph: _of_scans(mutation, share) or mutation for graph, share in shares.items()}
        case Stop(jobs=jobs):
            stopping = _grouped(await tx.partial_graphs.of_jobs(jobs))
            parts = {graph: Stop(jobs=tuple(sorted(share))) for graph, share in stopping.items()}
        case _:
            parts = {DATABASE_GRAPH: mutation}
    for graph, part in parts.items():
        yield graph, part
    if isinstance(mutation, Pause | Resume):
        # Read after the command of the database graph is enqueued. A job that starts later is paused with that command.
        for graph in await tx.partial_graphs.unmerged():
            yield graph, mutation


def _named(mutation: Mutation | None) -> Collection[FragmentId]:
    match mutation:
        case Throttle(fragments=named) | StartFragmentBackfill(fragments=named):
            return named
        case _:
            return ()


def _without(mutation: Mutation | None, told: Collection[FragmentId]) -> Mutation | None:
    if not told:
        return mutation
    return _of_scans(mutation, [one for one in _named(mutation) if one not in told])


def _of_scans(mutation: Mutation | None, scans: Collection[FragmentId]) -> Mutation | None:
    match mutation:
        case Throttle(fragments=limits, auto=auto) if mine := {one: limits[one] for one in limits if one in scans}:
            return Throttle(fragments=mine, auto=tuple(one for one in auto if one in mine))
        case StartFragmentBackfill(fragments=starting) if share := tuple(one for one in starting if one in scans):
            return StartFragmentBackfill(fragments=share)
        case _:
            return None


async def _graphs(tx: Transaction, fragments: Collection[FragmentId]) -> Mapping[GraphId, Sequence[FragmentId]]:
    owners = {fragment: job for fragment, (job, _) in (await tx.fragments.job_of(fragments)).items()}
    graphs = await tx.partial_graphs.of_jobs(set(owners.values()))
    return _grouped({fragment: graphs[job] for fragment, job in owners.items()}) or {DATABASE_GRAPH: ()}


def _grouped(graphs: Mapping[T, GraphId]) -> Mapping[GraphId, Sequence[T]]:
    found: dict[GraphId, list[T]] = defaultdict(list)
    for one, graph in graphs.items():
        found[graph].append(one)
    return found
