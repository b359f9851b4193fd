"""Log in with a token, and out. Next: `service.pages.sessions`."""

from typing import Annotated, Final, cast
from urllib.parse import urlsplit

from fastapi import APIRouter, Query, Request
from fastapi.responses import RedirectResponse, Response
from pydantic import SecretStr
from starlette.datastructures import Headers

from service.api.access import needs
from service.api.credentials import Credentials
from service.api.origins import is_loopback
from service.pages import render
from service.pages.door import bearer, cookie_of
from service.pages.sessions import LIFETIME_SECONDS, Sessions

router = APIRouter()
_TOKEN_MAX: Final = 10_000
_WRONG: Final = "this token is not valid, or not that of a user"
_PLAIN: Final = "the browser keeps no session of this address, because it is neither https nor this machine: use https"


@router.get("/login", dependencies=needs(None))
async def show_login(request: Request, next_: Annotated[str, Query(alias="next")] = "/") -> Response:
    """Show the form that takes a token. Who needs none, or has logged in, goes on."""
    if request.state.caller is not None:
        return RedirectResponse(f"{request.state.base}{inside(next_)}", 303)
    return render.page(request, "login.html", {"next": inside(next_), "fault": None}, title="Log in")


@router.post("/login", dependencies=needs(None))
async def log_in(request: Request) -> Response:
    """Begin a session for the bearer of a token, and go on to where the browser came from."""
    form: dict[str, str] = request.state.form
    token, after = form.get("token", "").strip(), inside(form.get("next", "/"))
    known, fault = None, _PLAIN if _is_plain(request) else None
    if fault is None:
        credentials = cast("Credentials", request.app.state.credentials)
        known = await bearer(credentials, request.scope, token) if 0 < len(token) <= _TOKEN_MAX else None
        fault = None if known is not None else _WRONG
    if known is None:
        return render.page(request, "login.html", {"next": after, "fault": fault}, status=401, title="Log in")
    response = RedirectResponse(f"{request.state.base}{after}", 303)
    id_ = cast("Sessions", request.app.state.sessions).begin(SecretStr(token), by=known.actor)
    _keep(request, response, id_, LIFETIME_SECONDS)
    return response


@router.post("/logout", dependencies=needs(None))
async def log_out(request: Request) -> Response:
    """End the session."""
    id_ = cast("str | None", request.state.session)
    if id_ is not None:
        cast("Sessions", request.app.state.sessions).end(id_)
    response = RedirectResponse(f"{request.state.base}/login", 303)
    _keep(request, response, "", 0)
    return response


def inside(address: str) -> str:
    """Return an address if it is a path of this service, otherwise `/`. No form leads to another site."""
    try:
        parts = urlsplit(address)
    except ValueError:
        return "/"
    foreign = parts.scheme or parts.netloc or not address.startswith("/") or address.startswith("//")
    return "/" if foreign or "\\" in address or any(ord(char) < 33 for char in address) else address


def _keep(request: Request, response: Response, id_: str, seconds: int) -> None:
    name = cookie_of(request.scope)
    response.set_cookie(
        name, id_, max_age=seconds, path="/", secure=name.startswith("__Host-"), httponly=True, samesite="strict"
    )


def _is_plain(request: Request) -> bool:
    """Whether the browser uses http and another machine, as the origin of its form says."""
    headers = Headers(scope=request.scope)
    origin = urlsplit(headers.get("origin", ""))
    return origin.scheme == "http" and not is_loopback(headers.get("host", ""))
