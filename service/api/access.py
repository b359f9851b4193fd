"""The role that a call needs is declared at its route, with `needs`. A route without it does not start (`check`).

`service.api.credentials` says who calls, and `service.domain.roles.permits` decides. `POST /v1/sql` needs in addition
what the kind of its statement needs (`service.operations.statements.call.handles`).
"""

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Final, cast

from fastapi import APIRouter, Depends, Request
from fastapi.params import Depends as Dependency
from fastapi.routing import APIRoute
from starlette.datastructures import Headers

from service.domain.roles import Role
from service.domain.trace import SpanContext, parse_traceparent
from service.operations.auditing import admit
from service.operations.world import World
from service.ports.audit import Asker, AuditedCall
from service.telemetry.log import bind

_REQUEST_ID: Final = re.compile(r"[\x21-\x7e]{1,128}")


@dataclass(frozen=True, slots=True)
class Needs:
    """A dependency that admits callers whose role permits `role`. None: no credentials are needed.

    Only admins see the entries that the audit trail gets of a `discreet` route.
    """

    role: Role | None
    discreet: bool = False

    async def __call__(self, request: Request) -> None:
        """Admit the caller and keep it for `asker_of`, or raise Forbidden."""
        if self.role is None:
            return
        world, caller = cast("World", request.app.state.world), cast("Asker", request.state.caller)
        asker = replace(caller, call=_call(request, world, discreet=self.discreet))
        await admit(world, asker, self.role)
        request.state.asked_by = asker


def needs(role: Role | None, *, discreet: bool = False) -> Sequence[Dependency]:
    """Return the `dependencies` of a route whose callers need `role`."""
    return [Depends(Needs(role, discreet))]


async def asker_of(request: Request) -> Asker:
    """Return the caller that the route admitted."""
    return cast("Asker", request.state.asked_by)


AskedBy = Annotated[Asker, Depends(asker_of)]


def declared(route: APIRoute) -> Needs | None:
    """Return what a route declares, or None if it declares nothing."""
    return next((one.dependency for one in route.dependencies if isinstance(one.dependency, Needs)), None)


def check(routers: Iterable[APIRouter]) -> Sequence[re.Pattern[str]]:
    """Assert that every route declares a role. Return the paths that need no credentials."""
    routes = [route for router in routers for route in router.routes]
    needed: list[tuple[APIRoute, Needs]] = []
    for route in routes:
        assert isinstance(route, APIRoute), route
        found = declared(route)
        assert found is not None, f"{route.path} declares no role"
        needed.append((route, found))
    return [route.path_regex for route, found in needed if found.role is None]


def is_open(path: str, patterns: Collection[re.Pattern[str]]) -> bool:
    """Return whether a path is one that needs no credentials."""
    return any(pattern.match(path) for pattern in patterns)


def _call(request: Request, world: World, *, discreet: bool) -> AuditedCall:
    headers = Headers(scope=request.scope)
    request_id = headers.get("x-request-id", "")
    span = cast("SpanContext | None", getattr(request.state, "span", None))
    trace = span or parse_traceparent(headers.get("traceparent", ""))
    if trace is not None:
        bind(trace_id=trace.trace)
    return AuditedCall(
        at=world.clock.now(),
        method=request.method,
        route=cast("APIRoute", request.scope["route"]).path_format,
        target=", ".join(map(str, request.path_params.values())) or None,
        discreet=discreet,
        request_id=request_id if _REQUEST_ID.fullmatch(request_id) else None,
        trace_id=None if trace is None else trace.trace,
        traceparent=None if span is None else span.traceparent,
    )
