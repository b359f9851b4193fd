"""`/v1/system-parameters`: the parameters that ALTER SYSTEM SET sets."""

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Body
from pydantic import Field, Strict, TypeAdapter

from service.api.access import AskedBy, needs
from service.api.calling import Calling, Here
from service.api.json_body import ParsedRoute
from service.domain.parameters import SystemParameters
from service.domain.probes import LENGTH_MAX
from service.domain.roles import Role
from service.operations import parameters
from service.protocol.first_fault import first_fault

router = APIRouter(prefix="/v1", tags=["parameters"], route_class=ParsedRoute)

Value = Annotated[int, Strict()] | Annotated[bool, Strict()] | Annotated[str, Field(max_length=LENGTH_MAX)]
_Values = dict[str, Value]


@router.get("/system-parameters", dependencies=needs(Role.VIEWER))
async def show_system_parameters(world: Here, asked_by: AskedBy) -> SystemParameters:
    """Show every system parameter with its value. `***` replaces what is secret in a URL. Only admins see its path."""
    return await parameters.known(world, asked_by.role)


@router.patch("/system-parameters", response_model=SystemParameters, dependencies=needs(Role.ADMIN))
async def alter_system_parameters(
    values: Annotated[
        _Values, first_fault(TypeAdapter(_Values)), Body(min_length=1, examples=[{"barrier_interval_ms": 500}])
    ],
    call: Calling,
) -> Mapping[str, Any]:
    """Set some parameters: all of them, or none. The text `default` sets the built-in value."""

    async def act() -> SystemParameters:
        texts = {name: value if isinstance(value, str) else str(value).lower() for name, value in values.items()}
        return await parameters.alter(call.world, texts, asked_by=call.asked_by.saying(None, ", ".join(texts)))

    return await call.once(SystemParameters, act)
