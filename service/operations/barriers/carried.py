"""Collect what a barrier carries of the commands that wait (I4)."""

from collections.abc import Sequence

from service.domain.command_turns import Asked, CommandTurns
from service.operations.commands.fan_out import share_of
from service.ports.meta_store import Transaction
from service.ports.records import Command
from service.protocol.ids import CommandId
from service.protocol.mutation import Add, Mutation


async def mutation_of(
    tx: Transaction, waiting: Sequence[Command], turns: CommandTurns
) -> tuple[Mutation | None, list[CommandId]]:
    """Take the mutation whose turn it is, the Adds that may share its barrier, and every flush. A flush needs no
    barrier of its own.

    The barrier carries only the part of the mutation that concerns this graph (`share_of`).
    """
    mutating = [(one, Asked(one.asked_by, one.mutation)) for one in waiting if one.mutation is not None]
    taken = [mutating[place][0] for place in turns.next([asked for _, asked in mutating])]
    carried = [command.id for command in waiting if command.mutation is None or command in taken]
    added = [plan.id for command in taken if isinstance(command.mutation, Add) for plan in command.mutation.jobs]
    if not added:
        return (await share_of(tx, taken[0]) if taken else None), carried
    # The plan in the command may be older than a later ALTER.
    return Add(jobs=tuple(await tx.plans.of(added))), carried
