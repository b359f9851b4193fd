"""Storing what somebody asks of the next barriers, and who it was."""

from datetime import datetime

from service.operations.commands.fan_out import queue
from service.ports.meta_store import Transaction
from service.protocol.ids import CommandId
from service.protocol.mutation import Mutation, Throttle


async def ask(tx: Transaction, mutation: Mutation | None, *, asked_by: str, now: datetime) -> CommandId:
    """Queue a mutation, or (None) a flush, and say so in the event log; `mutation.applied` will tell the epoch."""
    command = await queue(tx, mutation, asked_by=asked_by, now=now)
    if isinstance(mutation, Throttle):
        await tx.limits.unpause(mutation.fragments)
    if mutation is not None:
        facts = {"command": command, "asked_by": asked_by, **mutation.model_dump(mode="json")}
        await tx.events.append("mutation.asked", facts, now=now)
    return command
