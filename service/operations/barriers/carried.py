"""Choose what a barrier carries of the commands that wait (I4)."""

from collections.abc import Sequence
from itertools import takewhile
from typing import Final

from service.operations.commands.fan_out import share_of
from service.ports.meta_store import Transaction
from service.ports.records import Command
from service.protocol.ids import CommandId
from service.protocol.mutation import Add, Mutation, Throttle

ADDED_TOGETHER: Final = 8
"""The maximum number of waiting Adds in one barrier. Each new scan adds a Spark job of about 100 ms to the epoch. A
larger number would create many views hardly sooner and would delay the barrier for all jobs.
"""
LIMITED_TOGETHER: Final = 100
"""The maximum number of waiting Throttles in one barrier. Each takes a query."""


async def mutation_of(tx: Transaction, waiting: Sequence[Command]) -> tuple[Mutation | None, list[CommandId]]:
    """Take the oldest mutation, the Adds or Throttles that may share its barrier, and every flush. A flush needs no
    barrier of its own.

    The barrier carries only the part of the mutation that concerns this graph (`share_of`).
    """
    taken = _together([command for command in waiting if command.mutation is not None])
    carried = [command.id for command in waiting if command.mutation is None or command in taken]
    added = [plan.id for command in taken if isinstance(command.mutation, Add) for plan in command.mutation.jobs]
    if added:
        # The plan in the command may be older than a later ALTER.
        return Add(jobs=tuple(await tx.plans.of(added))), carried
    return _merged([await share_of(tx, command) for command in taken]), carried


def _together(asked: Sequence[Command]) -> Sequence[Command]:
    """Return the oldest mutation, and the Adds or Throttles directly after it if it is one. None overtakes another."""
    for kind, most in ((Add, ADDED_TOGETHER), (Throttle, LIMITED_TOGETHER)):
        if same := list(takewhile(lambda command, kind=kind: isinstance(command.mutation, kind), asked[:most])):
            return same
    return asked[:1]


def _merged(shares: Sequence[Mutation | None]) -> Mutation | None:
    """Return one mutation, of several Throttles the last limit of each scan."""
    limits = [one for one in shares if isinstance(one, Throttle)]
    if len(limits) < 2:
        return next((one for one in shares if one is not None), None)
    last = {scan: (limit, scan in one.auto) for one in limits for scan, limit in one.fragments.items()}
    auto = tuple(scan for scan, (_, adapted) in last.items() if adapted)
    return Throttle(fragments={scan: limit for scan, (limit, _) in last.items()}, auto=auto)
