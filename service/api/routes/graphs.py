"""`/v1/barriers`, `/v1/graphs`, `/v1/recover`, `/v1/leader`, `/v1/workers`: barriers, and what runs them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel

from service.api.access import needs
from service.api.calling import Calling, Here, Limit
from service.api.json_body import ParsedRoute
from service.domain.roles import Role
from service.operations.barriers import leadership
from service.operations.commands import mutations
from service.operations.status import history
from service.operations.status.models import BarrierPage, GraphDetail
from service.ports.records import WorkerRecord
from service.protocol.ids import BIGINT_MAX, Epoch, EpochField

router = APIRouter(prefix="/v1", tags=["graphs"], route_class=ParsedRoute)


@dataclass(frozen=True, slots=True)
class GraphList:
    """Every graph. `next` is null: the list is whole."""

    items: Sequence[GraphDetail]
    next: str | None = None


@dataclass(frozen=True, slots=True)
class WorkerList:
    """Every worker that registered. `next` is null: the list is whole."""

    items: Sequence[WorkerRecord]
    next: str | None = None


class Flushed(BaseModel):
    """The epoch up to which everything is published."""

    epoch: EpochField


class Recovering(BaseModel):
    """The recovery that was requested; `/v1/graphs` shows its progress."""

    reason: str


class Resigning(BaseModel):
    """The lease was taken from the service that had it."""

    status: Literal["resigned"] = "resigned"


@router.get("/barriers", dependencies=needs(Role.VIEWER))
async def list_barriers(
    world: Here,
    limit: Limit = 100,
    before: Annotated[int | None, Query(ge=0, le=BIGINT_MAX, description="`next` of the page before")] = None,
) -> BarrierPage:
    """List the newest barriers with their latencies, newest first."""
    until = None if before is None else Epoch(before)
    return await history.barriers(world, limit=limit, before=until)


@router.post("/barriers", response_model=Flushed, dependencies=needs(Role.OPERATOR))
async def flush(call: Calling) -> Mapping[str, Any]:
    """Force a checkpoint and wait until it is published."""

    async def act() -> Flushed:
        return Flushed(epoch=await mutations.flush(call.world, asked_by=call.asked_by))

    return await call.once(Flushed, act)


@router.get("/graphs", dependencies=needs(Role.VIEWER))
async def list_graphs(world: Here) -> GraphList:
    """Show the state of every graph."""
    return GraphList(await history.graphs(world))


@router.post("/recover", response_model=Recovering, dependencies=needs(Role.ADMIN))
async def recover(call: Calling) -> Mapping[str, Any]:
    """End the present generation and start the next one from the last committed epoch."""

    async def act() -> Recovering:
        reason = "adhoc recovery"
        await mutations.recover(call.world, reason, asked_by=call.asked_by)
        return Recovering(reason=reason)

    return await call.once(Recovering, act)


@router.post("/leader/resign", response_model=Resigning, dependencies=needs(Role.ADMIN))
async def resign_leader(call: Calling) -> Mapping[str, Any]:
    """Take the lease from the service that leads, so that another one leads within a second. 409 if none leads."""

    async def act() -> Resigning:
        await leadership.hand_over(call.world, asked_by=call.asked_by)
        return Resigning()

    return await call.once(Resigning, act)


@router.get("/workers", dependencies=needs(Role.VIEWER))
async def list_workers(world: Here) -> WorkerList:
    """Show the workers that registered."""
    return WorkerList(await history.workers(world))
