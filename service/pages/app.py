"""Assemble the pages, and put them beside the API: one app answers both, at the paths of each.

The pages have a stack of their own, because browsers send cookies and forms. From the outside in: `Net` and `Origins`
of the API, `Door` (session, CSRF token, form), `Crowd` of the API, and a `Net` again. Next: `service.pages.door`.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Final, cast

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from starlette.datastructures import Headers
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Receive, Scope, Send

from service.api.access import AskedBy, check, needs
from service.api.calling import Here, gone_of
from service.api.credentials import BODILESS, Credentials
from service.api.crowd import Crowd
from service.api.errors import BROKEN, INVALID, NO_ROUTE, kind_of
from service.api.middleware import BROKE, Net, Origins
from service.api.settings import ApiSettings
from service.domain.errors import Invalid, MetaError
from service.domain.roles import Role
from service.operations.world import World
from service.pages import live, logins, render
from service.pages.acting import ACTIONS, Act, Action
from service.pages.asking import Ask
from service.pages.data import sql
from service.pages.door import Door, with_own_cookie
from service.pages.notices import PARAMETER, Notice, Notices
from service.pages.running import Verifications
from service.pages.sessions import Sessions
from service.pages.table import PAGES, Page
from service.telemetry.log import logger

log = logger("pages")
IMMUTABLE: Final = "public, max-age=31536000, immutable"


def install(app: FastAPI, settings: ApiSettings, *, base: str = "") -> None:
    """Add the pages to the app of the API. `base` is the path below which a proxy serves all of it, such as
    `/tidefill`; the proxy may pass it on or take it off.
    """

    # Tests put another world into the app after it is made.
    def monotonic() -> float:
        return cast("World", app.state.world).clock.monotonic()

    sessions = Sessions(monotonic)
    pages = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)
    # The world, the credentials and the readiness of the API are those of the pages.
    pages.state = app.state
    pages.state.sessions, pages.state.notices, pages.state.verifications = sessions, Notices(), Verifications()
    pages.state.turns = render.turns_of_pages()
    routers = routers_of()
    for router in routers:
        pages.include_router(router)
    pages.add_exception_handler(MetaError, _refused)
    pages.add_exception_handler(RequestValidationError, _invalid)
    pages.add_exception_handler(NO_ROUTE.status, _nowhere)
    credentials = cast("Credentials", app.state.credentials)
    # This one answers with a page, and the one outside with a document for programs.
    pages.add_middleware(Net, broken=_broken)
    # A caller has one share of the calls, of the pages and the API together.
    pages.add_middleware(Crowd, calls=app.state.calls)
    pages.add_middleware(
        Door,
        credentials=credentials,
        sessions=sessions,
        open_paths=check(routers),
        size_max=settings.body_size_max,
        uploads_max=settings.arriving_max,
        monotonic=monotonic,
    )
    secured = settings.api_token is not None or credentials.bearers is not None
    # Pages of other origins may call the API where TIDEFILL_ALLOWED_ORIGINS says so, but send no form of these.
    pages.add_middleware(Origins, loopback_only=not secured, allowed=())
    pages.add_middleware(Net)
    patterns = [route.path_regex for router in routers for route in router.routes]  # pyright: ignore[reportAttributeAccessIssue]
    app.add_middleware(Switch, pages=pages, patterns=patterns, known=app.routes, base=base)


def routers_of() -> tuple[APIRouter, ...]:
    """Return the routes of all pages and forms."""
    router = APIRouter()
    for action in ACTIONS:
        router.add_api_route(action.path, _acts(action), methods=["POST"], dependencies=needs(action.role))
    for page in PAGES:
        router.add_api_route(page.path, _shows(page), methods=["GET"], dependencies=needs(page.role))
    router.add_api_route("/sql", _run_statement, methods=["POST"], dependencies=needs(Role.VIEWER))
    router.add_api_route("/static/{name:path}", _static, methods=["GET"], dependencies=needs(None))
    return router, logins.router, live.router


def _broken(scope: Scope) -> Response:
    return render.page(Request(scope), "error.html", BROKE, status=BROKEN.status, title=BROKEN.title)


class Switch:
    """Sends what is at the path of a page to the pages, and everything else to the API. A browser at an address that
    neither has gets a page, too. `known` are the routes of the API.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        pages: ASGIApp,
        patterns: Collection[re.Pattern[str]],
        known: Sequence[BaseRoute],
        base: str,
    ) -> None:
        self.app, self.pages, self.patterns, self.known, self.base = app, pages, patterns, known, base

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        scope = with_own_cookie(scope)
        path: str = scope["path"]
        if self.base and (path == self.base or path.startswith(f"{self.base}/")):
            path = path.removeprefix(self.base) or "/"
            scope = {**scope, "path": path}
        scope["state"] = {**scope.get("state", {}), "base": self.base}
        await (self.pages if self._owns(scope, path) else self.app)(scope, receive, send)

    def _owns(self, scope: Scope, path: str) -> bool:
        headers = Headers(scope=scope)
        browser = "text/html" in headers.get("accept", "")
        if path == "/":
            # Programs get the text that names the routes of the API.
            return browser or "hx-request" in headers
        if any(pattern.match(path) for pattern in self.patterns):
            return True
        reads = browser and scope["method"] in BODILESS and not path.startswith("/v1/")
        return reads and all(route.matches(scope)[0] is Match.NONE for route in self.known)


def _shows(page: Page):  # noqa: ANN202 - FastAPI reads the annotations of the inner function
    async def show(request: Request, world: Here, asked_by: AskedBy) -> HTMLResponse:
        ask = ask_of(request, world, asked_by)
        found = await page.read(ask)
        return await render.aside(request, page.template, lambda: found, title=page.menu)

    return show


def _acts(action: Action):  # noqa: ANN202 - see above
    async def act(request: Request, world: Here, asked_by: AskedBy) -> Response:
        form = cast("Mapping[str, str]", request.state.form)
        given = {name: str(value) for name, value in request.path_params.items()}
        verifications = cast("Verifications", request.app.state.verifications)
        try:
            text = await action.do(Act(request, world, asked_by, given, form, verifications))
            notice = Notice("done", text)
        except MetaError as error:
            notice = Notice("refused", error.message)
        return leads(request, form.get("back") or action.to.format(**given), notice, owner=asked_by.actor)

    return act


def leads(request: Request, to: str, notice: Notice, *, owner: str) -> Response:
    """Return the redirection to a page of this service, which then shows the notice."""
    key = cast("Notices", request.app.state.notices).put(notice, owner=owner)
    path = logins.inside(to)
    address = f"{path}{'&' if '?' in path else '?'}{PARAMETER}={key}"
    return RedirectResponse(f"{request.state.base}{address}", 303)


def ask_of(request: Request, world: World, caller: AskedBy) -> Ask:
    """Return what a request asks for."""
    given = {**request.query_params, **{name: str(value) for name, value in request.path_params.items()}}
    if any("\0" in value for value in given.values()):
        raise Invalid("the address has a NUL character, which no Postgres text can hold")
    return Ask(world, caller, given, request.app.state.ready, request.app.state.verifications)


async def _run_statement(request: Request, world: Here, asked_by: AskedBy) -> HTMLResponse:
    await request.body()
    found = await sql.run(ask_of(request, world, asked_by), request.state.form, await gone_of(request))
    return await render.aside(request, "sql.html", found, title="SQL")


async def _static(name: str) -> Response:
    if name not in render.TYPES:
        return Response(status_code=404)
    return Response(render.static(name), media_type=render.TYPES[name], headers={"Cache-Control": IMMUTABLE})


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, MetaError), error
    kind = kind_of(error)
    return render.page(request, "error.html", error.message, status=kind.status, title=kind.title)


async def _nowhere(request: Request, _error: Exception) -> Response:
    return render.page(request, "error.html", "no page has this address", status=NO_ROUTE.status, title=NO_ROUTE.title)


async def _invalid(request: Request, _error: Exception) -> Response:
    return render.page(
        request, "error.html", "the address is not that of a page", status=INVALID.status, title=INVALID.title
    )
