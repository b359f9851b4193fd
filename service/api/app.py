"""Assemble the API. A request passes the middleware and then one route, which calls one operation.

Nothing here knows a database. Next: `service.api.middleware`, then `service.api.routes`.
"""

from collections.abc import Callable

from fastapi import FastAPI
from fastapi.middleware.cors import CORSMiddleware

from service.api import access, errors, openapi
from service.api.credentials import Callers, Credentials
from service.api.crowd import Crowd, Streams
from service.api.middleware import Bodies, Net, Origins
from service.api.routes import (
    docs,
    events,
    graphs,
    internal,
    jobs,
    lending,
    logins,
    mutations,
    parameters,
    probes,
    progress,
    relations,
    sources,
    sql,
    tokens,
)
from service.api.rows_json import Unsent
from service.api.settings import ApiSettings
from service.api.tracing import Traced
from service.api.uploads import Uploads
from service.domain.shares import Shares
from service.domain.uploading import Spool
from service.operations.world import World
from service.ports.tokens import Bearers
from service.telemetry.traces import Traces

VERSION = "0.1.0"
_PUBLIC = (sql, relations, logins, lending, sources, jobs, progress, mutations, graphs, parameters, events, tokens)
ROUTERS = tuple(module.router for module in (*_PUBLIC, probes, internal, docs))


def create_app(
    world: World,
    *,
    settings: ApiSettings,
    ready: probes.Checks,
    reserved: World | None = None,
    bearers: Bearers | None = None,
    traces: Traces | None = None,
) -> FastAPI:
    """Return the ASGI app. `ready` runs the readiness checks and returns `ok` or the fault of each, by name. `reserved`
    is the world for the calls of workers, if they have another one. `bearers` recognises JWTs, if there is an issuer.
    `traces` makes the spans of requests, if there are to be some.
    """
    app = FastAPI(
        title="tidefill",
        version=VERSION,
        description=openapi.DESCRIPTION,
        redirect_slashes=False,
        generate_unique_id_function=openapi.operation_id,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        # The middleware checks the media type of bodies, so that a wrong one is answered with a problem.
        strict_content_type=False,
    )
    app.state.world = world
    app.state.reserved = reserved
    app.state.ready = ready
    app.state.looks = {}
    app.state.calls = Shares(settings.calls_max)
    app.state.unsent = Unsent(Spool(settings.unsent_bytes_max, "8 * TIDEFILL_RESULT_BYTES_MAX", "unsent answers"))
    app.state.streams = Streams(settings.streams_max)
    app.state.credentials = Credentials(settings.worker_token, settings.api_token, bearers)
    for router in ROUTERS:
        app.include_router(router)
    errors.install(app)
    secured = settings.api_token is not None or bearers is not None
    app.openapi = openapi.document(app, token=secured)
    # The document of the API is made without a world.
    _guard(app, settings, lambda: world.clock.monotonic(), traces, loopback_only=not secured)  # noqa: PLW0108
    return app


def _guard(
    app: FastAPI, settings: ApiSettings, monotonic: Callable[[], float], traces: Traces | None, *, loopback_only: bool
) -> None:
    """Add the middleware that every request passes. The last one added is the outermost."""
    app.add_middleware(Bodies, size_max=settings.body_size_max)
    app.add_middleware(Uploads, uploads_max=settings.arriving_max, monotonic=monotonic)
    app.add_middleware(Crowd, calls=app.state.calls)
    if traces is not None:
        app.add_middleware(Traced, traces=traces)
    app.add_middleware(Callers, credentials=app.state.credentials, open_paths=access.check(ROUTERS))
    if settings.allowed_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.allowed_origins,
            allow_methods=["*"],
            allow_headers=["Authorization", "Content-Type", "Idempotency-Key", "Last-Event-ID"],
            expose_headers=["Location", "Retry-After"],
        )
    app.add_middleware(Origins, loopback_only=loopback_only, allowed=settings.allowed_origins)
    app.add_middleware(Net)
