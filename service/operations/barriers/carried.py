"""Collect what a barrier carries of the commands that wait (I4)."""

from collections.abc import Mapping, Sequence

from service.domain.command_turns import Asked, CommandTurns
from service.domain.commuting import merged
from service.operations.commands.fan_out import shares_of
from service.ports.meta_store import Transaction
from service.ports.records import Command
from service.protocol.ids import CommandId, FragmentId, JobId
from service.protocol.mutation import Add, Mutation, Reload, Update


async def mutation_of(
    tx: Transaction, waiting: Sequence[Command], turns: CommandTurns
) -> tuple[Mutation | None, list[CommandId]]:
    """Take the mutation whose turn it is, those that may share its barrier, and every flush. A flush needs no barrier
    of its own.

    The barrier carries only the parts of the mutations that concern this graph (`shares_of`).
    """
    owners = await _owners(tx, waiting)
    mutating = [(one, _asked(one, one.mutation, owners)) for one in waiting if one.mutation is not None]
    taken = [mutating[place][0] for place in turns.next([asked for _, asked in mutating])]
    ids = {command.id for command in taken}
    carried = [command.id for command in waiting if command.mutation is None or command.id in ids]
    added = [plan.id for command in taken if isinstance(command.mutation, Add) for plan in command.mutation.jobs]
    if added:
        # The plan in the command may be older than a later ALTER.
        return Add(jobs=tuple(await tx.plans.of(added))), carried
    shares = [share for share in await shares_of(tx, taken) if share is not None]
    return (merged(shares) if shares else None), carried


def _asked(command: Command, mutation: Mutation, owners: Mapping[FragmentId, JobId]) -> Asked:
    match mutation:
        case Add(jobs=plans):
            # The service asks for an Add, on behalf of the caller of its job.
            return Asked(next((plan.caller for plan in plans if plan.caller), command.asked_by), mutation)
        case Update(fragments=scans) | Reload(fragments=scans):
            return Asked(command.asked_by, mutation, {owners[one] for one in scans if one in owners})
        case _:
            return Asked(command.asked_by, mutation)


async def _owners(tx: Transaction, waiting: Sequence[Command]) -> Mapping[FragmentId, JobId]:
    """Return the jobs of the scans that Updates and Reloads name."""
    moved = [command.mutation for command in waiting if isinstance(command.mutation, Update | Reload)]
    named = {scan for mutation in moved for scan in mutation.fragments}
    owners = await tx.fragments.job_of(named) if named else {}
    return {fragment: job for fragment, (job, _) in owners.items()}
