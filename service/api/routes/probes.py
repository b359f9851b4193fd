"""`/livez`, `/readyz`, `/metrics`: health checks and metrics for operators."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Annotated, Any, Literal, Protocol, TypeVar, cast

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel

from service.api.access import needs
from service.api.calling import Here
from service.domain.roles import Role
from service.operations.status import gauges
from service.operations.status.staleness import degraded_of
from service.operations.world import World
from service.telemetry.metrics import CONTENT_TYPE
from service.turns import for_nobody

router = APIRouter(tags=["probes"])
T = TypeVar("T")


class Checks(Protocol):
    """Checks everything that readiness needs. The result of a check is `ok` or the fault."""

    async def __call__(self) -> Mapping[str, str]: ...

    @property
    def leads(self) -> Callable[[], bool]: ...


class Alive(BaseModel):
    """The process answers."""

    status: Literal["ok"] = "ok"


class Readiness(BaseModel):
    """Whether calls can be served now. `checks` has every check by name, `ok` or its fault."""

    status: Literal["ok", "unavailable"]
    checks: dict[str, str]
    degraded: dict[str, str]
    """Relations that are not kept current, by name: `broken`, `failed` or `stale`. `GET /v1/jobs` gives the reason.
    They do not affect readiness.
    """


@router.get("/livez", dependencies=needs(None))
async def check_liveness() -> Alive:
    """Confirm that the process answers."""
    return Alive()


@router.get(
    "/readyz",
    responses={503: {"model": Readiness, "description": "Some check does not pass"}},
    dependencies=needs(None),
)
async def check_readiness(
    world: Here,
    request: Request,
    response: Response,
    *,
    leader: Annotated[bool, Query(description="Whether this very service has to lead")] = False,
) -> Readiness:
    """Check everything that serving a call needs; 503 if a check fails.

    Services that do not lead serve reads and writes, and are ready.
    """
    found = await _shared(request, "readiness", lambda: _readiness(world, cast("Checks", request.app.state.ready)))
    if leader and not cast("Checks", request.app.state.ready).leads():
        checks = {**found.checks, "leader": "another service leads, or none"}
        found = found.model_copy(update={"status": "unavailable", "checks": checks})
    response.status_code = 200 if found.status == "ok" else 503
    return found


async def _readiness(world: World, ready: Checks) -> Readiness:
    checks = dict(await ready())
    good = all(said == "ok" for said in checks.values())
    degraded = await degraded_of(world) if good else {}
    return Readiness(status="ok" if good else "unavailable", checks=checks, degraded=degraded)


@router.get(
    "/metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {}}}},
    dependencies=needs(Role.VIEWER),
)
async def show_metrics(world: Here, request: Request) -> Response:
    """Show the metrics in Prometheus's text format."""
    return Response(await _shared(request, "scrape", lambda: gauges.scrape(world)), media_type=CONTENT_TYPE)


async def _shared(request: Request, name: str, look: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Return the result of `look`. Concurrent callers share one run, so the service checks once, however many there
    are.
    """
    looks: dict[str, asyncio.Task[Any]] = request.app.state.looks
    if (running := looks.get(name)) is None or running.done():
        running = looks[name] = for_nobody(look())
    return await asyncio.shield(running)
