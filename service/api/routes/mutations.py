"""`/v1/mutations`: inject any mutation. Each is acknowledged with the epoch at which it took effect (I4)."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Body, Path, Query
from fastapi.openapi.models import Example
from pydantic import BaseModel, Field

from service.api.access import needs
from service.api.calling import Call, Calling, Here, said
from service.api.json_body import ParsedRoute
from service.domain.roles import Role
from service.operations.commands import mutations
from service.operations.status import history
from service.operations.status.models import CommandView
from service.protocol.ids import BIGINT_MAX, CommandId, EpochField
from service.protocol.mutation import Pause, Resume, StartFragmentBackfill, Stop, Throttle

router = APIRouter(prefix="/v1", tags=["mutations"], route_class=ParsedRoute)

Wait = Annotated[
    Literal["applied", "queued"],
    Query(description="`applied` waits until every actor has applied it; `queued` answers once it is stored"),
]


PublicMutation = Annotated[Pause | Resume | Throttle | StartFragmentBackfill | Stop, Field(discriminator="type")]
"""The mutations that a caller may inject. Only the service adds and replaces jobs and their actors."""
_EXAMPLES: Final[dict[str, Example]] = {
    "pause": {"summary": "Pause every backfill", "value": {"type": "pause"}},
    "resume": {"summary": "Take back the pause", "value": {"type": "resume"}},
    "throttle": {
        "summary": "Limit a scan, in rows/s and actor",
        "value": {"type": "throttle", "fragments": {"7": 1000}},
    },
}


class Acknowledged(BaseModel):
    """The command that was stored. `epoch` is the barrier that carried it, null while it is queued. `notice` says why
    the command has no effect, null if it has one.
    """

    command: CommandId
    epoch: EpochField | None = None
    notice: str | None = None


@router.post("/mutations", response_model=Acknowledged, dependencies=needs(Role.OPERATOR))
async def inject_mutation(
    mutation: Annotated[PublicMutation, Body(openapi_examples=_EXAMPLES)], call: Calling, wait: Wait = "queued"
) -> Mapping[str, Any]:
    """Queue a mutation for the next free barrier."""
    asked_by = call.asked_by.saying(said(mutation))
    return await acknowledged(call, lambda: mutations.inject(call.world, mutation, asked_by=asked_by), wait)


@router.get("/mutations/{command}", dependencies=needs(Role.VIEWER))
async def show_mutation(world: Here, command: Annotated[CommandId, Path(ge=0, le=BIGINT_MAX)]) -> CommandView:
    """Show the state of a mutation or a flush."""
    return await history.command(world, command)


async def acknowledged(
    call: Call,
    queue: Callable[[], Awaitable[CommandId]],
    wait: Wait,
    notice: Callable[[], Awaitable[str | None]] | None = None,
) -> Mapping[str, Any]:
    """Queue a command once, and return its acknowledgement; with `wait` "applied", after the command was applied."""

    async def act() -> Acknowledged:
        command = await queue()
        epoch = await mutations.applied(call.world, command) if wait == "applied" else None
        return Acknowledged(command=command, epoch=epoch, notice=None if notice is None else await notice())

    return await call.once(Acknowledged, act)
