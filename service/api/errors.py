"""Map every error to HTTP, in one table: `application/problem+json` (RFC 9457) with stable types.

A problem's `type` is a URN whose meaning never changes. `detail` is a text for people. `position` is a 1-based
character offset into the statement. `pointer` is a JSON pointer into the body, or a parameter's name.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.routing import Match

from service.domain.errors import (
    Conflict,
    Deadlocked,
    Deposed,
    Exhausted,
    Fenced,
    Forbidden,
    InLake,
    InUse,
    Invalid,
    MetaError,
    Moved,
    NotFound,
    OverQuota,
    Refused,
    Stale,
    TimedOut,
    TooLarge,
    Unavailable,
    UnderRecovery,
    Unreachable,
)

MEDIA_TYPE: Final = "application/problem+json"
RETRY_AFTER_SECONDS: Final = 1
"""One barrier interval. A recovery rarely takes less, so a client gains nothing by retrying earlier."""
_FAULTS_MAX: Final = 20
"""How many faults of a request are named."""


class Problem(BaseModel):
    """An error of a call. It may have more members than these."""

    model_config = ConfigDict(frozen=True, extra="allow")

    type: str = Field(examples=["urn:tidefill:problem:not-found"])
    title: str
    status: int
    detail: str
    position: int | None = Field(default=None, description="1-based character offset into the statement")
    pointer: str | None = Field(default=None, description="JSON pointer into the body, or a parameter's name")
    errors: list[dict[str, str]] | None = Field(
        default=None, description=f"The faults of a request that is not valid, {_FAULTS_MAX} at most"
    )


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of problem: its stable name, its status and its title."""

    name: str
    status: int
    title: str


INVALID: Final = Kind("invalid", 422, "The request is not valid")
MALFORMED: Final = Kind("malformed", 400, "The request cannot be read")
UNAUTHORIZED: Final = Kind("unauthorized", 401, "A bearer token is needed")
FOREIGN: Final = Kind("foreign-origin", 403, "A web page of another origin sent the call")
NO_ROUTE: Final = Kind("no-such-route", 404, "There is nothing at this path")
METHOD: Final = Kind("method-not-allowed", 405, "The path does not take this method")
TOO_SLOW: Final = Kind("too-slow", 408, "The body did not arrive in time")
TOO_LARGE: Final = Kind("too-large", 413, "The body is too large")
MEDIA: Final = Kind("unsupported-media-type", 415, "The body's media type is not supported")
MISDIRECTED: Final = Kind("misdirected", 421, "The service is not known by this host name")
UNAVAILABLE: Final = Kind("unavailable", 503, "Not possible at this moment")
BROKEN: Final = Kind("internal", 500, "The service failed")

KINDS: Final[Mapping[type[MetaError], Kind]] = MappingProxyType(
    {
        Invalid: INVALID,
        TooLarge: INVALID,
        InLake: INVALID,
        NotFound: Kind("not-found", 404, "The thing named does not exist"),
        Forbidden: Kind("forbidden", 403, "The caller's role does not permit the call"),
        Conflict: Kind("conflict", 409, "The present state does not allow this"),
        OverQuota: Kind("quota", 429, "A quota of the caller's role is reached"),
        TimedOut: Kind("request-timeout", 408, "The body came too slowly"),
        Refused: Kind("refused", 422, "The request was refused"),
        Deposed: Kind("deposed", 410, "A newer leader term exists"),
        Stale: Kind("stale", 410, "The worker or its generation is of the past"),
        Fenced: Kind("fenced", 410, "You are no longer who you were"),
        UnderRecovery: Kind("under-recovery", 503, "The graph is recovering"),
        Unreachable: Kind("unreachable", 503, "A host that the request names does not answer"),
        Exhausted: Kind("exhausted", 503, "A store lacks space, memory or time"),
        Deadlocked: UNAVAILABLE,
        Moved: UNAVAILABLE,
        InUse: UNAVAILABLE,
        Unavailable: UNAVAILABLE,
    }
)
"""An error without an entry takes that of its nearest base class."""

_BY_STATUS: Final = MappingProxyType({kind.status: kind for kind in (MALFORMED, UNAUTHORIZED, NO_ROUTE, METHOD, MEDIA)})


def kind_of(error: MetaError) -> Kind:
    """Return the kind of a domain error."""
    return next(KINDS[above] for above in type(error).__mro__ if above in KINDS)


def problem(kind: Kind, detail: str, /, **members: object) -> dict[str, Any]:
    """Return the body of a problem. Members that are None are left out."""
    body: dict[str, Any] = {
        "type": f"urn:tidefill:problem:{kind.name}",
        "title": kind.title,
        "status": kind.status,
        "detail": detail,
    }
    return body | {name: value for name, value in members.items() if value is not None}


def answer(kind: Kind, detail: str, /, *, headers: Mapping[str, str] | None = None, **members: object) -> JSONResponse:
    """Return the response of a problem."""
    sent = dict(headers or {})
    if kind.status == 503:
        sent["Retry-After"] = str(RETRY_AFTER_SECONDS)
    return JSONResponse(
        problem(kind, _printable(detail), **members), status_code=kind.status, headers=sent, media_type=MEDIA_TYPE
    )


def install(app: FastAPI) -> None:
    """Answer every error as a problem. `service.api.middleware` catches unexpected errors."""
    app.add_exception_handler(MetaError, _domain)
    app.add_exception_handler(RequestValidationError, _validation)
    app.add_exception_handler(HTTPException, _http)


async def _domain(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, MetaError), error
    return answer_to(error)


def answer_to(error: MetaError) -> JSONResponse:
    """Return the response of a domain error."""
    forbidden = error if isinstance(error, Forbidden) else None
    over = error if isinstance(error, OverQuota) else None
    headers: dict[str, str] = {}
    if forbidden is not None:
        headers["WWW-Authenticate"] = 'Bearer error="insufficient_scope"'
    if over is not None and over.retry_soon:
        headers["Retry-After"] = str(RETRY_AFTER_SECONDS)
    return answer(
        kind_of(error),
        error.message,
        position=error.position if isinstance(error, Invalid | NotFound) else None,
        pointer=error.pointer if isinstance(error, Invalid) else None,
        kind=error.kind if isinstance(error, NotFound) else None,
        needs=None if forbidden is None else forbidden.needs,
        has=None if forbidden is None else forbidden.has,
        quota=None if over is None else over.quota,
        limit=None if over is None else over.limit,
        used=None if over is None else over.used,
        headers=headers,
    )


async def _validation(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError), error
    faults: Sequence[Mapping[str, Any]] = error.errors()[:_FAULTS_MAX]
    first = faults[0]
    if first["type"] == "json_invalid":
        return answer(MALFORMED, f"the body is not JSON: {first.get('ctx', {}).get('error', first['msg'])}")
    pointers = [_pointer(fault, error.body) for fault in faults]
    listed = [{"pointer": pointer, "detail": _words(fault)} for pointer, fault in zip(pointers, faults, strict=True)]
    return answer(INVALID, f"{pointers[0] or 'body'}: {_words(first)}", pointer=pointers[0], errors=listed)


async def _http(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException), error
    kind = _BY_STATUS.get(error.status_code) or Kind("http", error.status_code, str(error.detail))
    if kind is METHOD:
        # Starlette names only the methods of the first route at this path; another route may take others.
        allowed = ", ".join(_methods(request))
        return answer(METHOD, f"{request.method} is not among {allowed}", headers={"Allow": allowed})
    return answer(kind, str(error.detail), headers=error.headers)


def _methods(request: Request) -> list[str]:
    """Return the methods that some route takes at the request's path, sorted."""
    app: FastAPI = request.app
    found: set[str] = set()
    for method in ("DELETE", "GET", "PATCH", "POST", "PUT"):
        scope = {**request.scope, "method": method}
        if any(route.matches(scope)[0] is Match.FULL for route in app.router.routes):
            found.add(method)
    return sorted(found)


def _words(fault: Mapping[str, Any]) -> str:
    """Return the message of a fault. A failed assertion of a value has no message of its own."""
    return "the parts contradict each other" if fault["type"] == "assertion_error" else _printable(str(fault["msg"]))


def _pointer(fault: Mapping[str, Any], body: Any) -> str:
    """Return the JSON pointer of a place in the body, or the name of a parameter.

    pydantic also names the branch of a union that it tried. Such steps are no places in the body and are left out.
    """
    where, *path = fault["loc"]
    if where != "body":
        return str(path[0]) if path else str(where)
    steps: list[str] = []
    for step in path:
        inside = (isinstance(body, dict) and step in body) or (
            isinstance(body, list) and isinstance(step, int) and 0 <= step < len(body)
        )
        if inside or (fault["type"] == "missing" and step == path[-1]):
            steps.append("/" + str(step).replace("~", "~0").replace("/", "~1"))
        body = body[step] if inside else body
    return "".join(steps)


def _printable(text: str) -> str:
    """Return `text` without lone surrogates, which JSON in UTF-8 cannot carry."""
    return text.encode("utf-8", "replace").decode()
