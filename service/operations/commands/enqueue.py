"""Enqueue the command of a user and record who requested it."""

from datetime import datetime

from service.operations.commands.fan_out import queue
from service.ports.audit import Asker
from service.ports.meta_store import Transaction
from service.protocol.ids import CommandId
from service.protocol.mutation import Mutation, Throttle


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
