"""`/v1/system-parameters`: what ALTER SYSTEM SET sets."""

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Body
from pydantic import BaseModel, Field, Strict

from service.api.calling import Calling, Here
from service.domain.probes import LENGTH_MAX
from service.operations import parameters

router = APIRouter(prefix="/v1", tags=["parameters"])

Value = Annotated[int, Strict()] | Annotated[bool, Strict()] | Annotated[str, Field(max_length=LENGTH_MAX)]


class Parameters(BaseModel):
    """Every system parameter with its value; `***` stands for what is secret in a URL."""

    barrier_interval_ms: int
    checkpoint_frequency: int
    max_concurrent_creating_streaming_jobs: int
    pause_on_next_bootstrap: bool
    backfill_auto_floor: int
    backfill_auto_ceiling: int
    backfill_auto_latency_target_ms: int
    backfill_auto_replication_lag_mb: int
    backfill_auto_connections_percent: int
    backfill_auto_probe_http: str
    backfill_auto_probe_http_status: int
    backfill_auto_probe_http_timeout_ms: int
    backfill_auto_probe_sql: str
    backfill_auto_probe_sql_max: int
    backfill_auto_probe_sql_timeout_ms: int


@router.get("/system-parameters", response_model=Parameters)
async def show_system_parameters(world: Here) -> Mapping[str, Any]:
    """Show every system parameter."""
    return await parameters.current(world)


@router.patch("/system-parameters", response_model=Parameters)
async def alter_system_parameters(
    values: Annotated[dict[str, Value], Body(min_length=1, examples=[{"barrier_interval_ms": 500}])], call: Calling
) -> Mapping[str, Any]:
    """Set some parameters, all or none; the text `default` sets the built-in value."""

    async def act() -> Parameters:
        texts = {name: value if isinstance(value, str) else str(value).lower() for name, value in values.items()}
        return Parameters.model_validate(await parameters.alter(call.world, texts, asked_by=call.asked_by))

    return await call.once(Parameters, act)
