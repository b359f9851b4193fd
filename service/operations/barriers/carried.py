"""Choose what a barrier carries of the commands that wait (I4)."""

from collections.abc import Sequence
from itertools import takewhile
from typing import Final

from service.operations.commands.fan_out import share_of
from service.ports.meta_store import Transaction
from service.ports.records import Command
from service.protocol.ids import CommandId
from service.protocol.mutation import Add, Mutation

ADDED_TOGETHER: Final = 8
"""The maximum number of waiting Adds in one barrier. Each new scan adds a Spark job of about 100 ms to the epoch. A
larger number would create many views hardly sooner and would delay the barrier for all jobs.
"""


async def mutation_of(tx: Transaction, waiting: Sequence[Command]) -> tuple[Mutation | None, list[CommandId]]:
    """Take the oldest mutation, the Adds that may share its barrier, and every flush. A flush needs no barrier of its
    own.

    The barrier carries only the part of the mutation that concerns this graph (`share_of`).
    """
    taken = _together([command for command in waiting if command.mutation is not None])
    carried = [command.id for command in waiting if command.mutation is None or command in taken]
    added = [plan.id for command in taken if isinstance(command.mutation, Add) for plan in command.mutation.jobs]
    if not added:
        return (await share_of(tx, taken[0]) if taken else None), carried
    # The plan in the command may be older than a later ALTER.
    return Add(jobs=tuple(await tx.plans.of(added))), carried


def _together(asked: Sequence[Command]) -> Sequence[Command]:
    """Return the oldest mutation and, if it is an Add, the Adds directly after it. None overtakes another mutation."""
    adds = list(takewhile(lambda command: isinstance(command.mutation, Add), asked[:ADDED_TOGETHER]))
    return adds or asked[:1]
