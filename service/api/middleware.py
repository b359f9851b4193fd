"""Plain ASGI middleware that every request passes before a route. From the outside in:

* `Net` catches unexpected errors.
* `Origins` refuses requests of web pages of other origins.
* `Callers` checks bearer tokens (`service.api.credentials`).
* `Bodies` checks the size and form of bodies.

The body of a JSON call is read here, whole and bounded. A body that is too large, has another media type, or holds what
no Postgres text can hold is therefore refused before anything happens. Bulk loads are streamed past it.
"""

import asyncio
import math
import re
import traceback
from collections.abc import Awaitable, Callable, Collection
from types import MappingProxyType
from typing import Final

from fastapi.responses import JSONResponse
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.api.credentials import BODILESS
from service.api.errors import (
    BROKEN,
    FOREIGN,
    INVALID,
    MALFORMED,
    MEDIA,
    MISDIRECTED,
    TOO_LARGE,
    TOO_SLOW,
    UNAVAILABLE,
    Kind,
    answer,
)
from service.api.json_body import SMALL, UnreadableError, read_once
from service.api.origins import Head, Refusal, judge
from service.domain.errors import TimedOut
from service.telemetry.log import logger

STREAMED: Final = re.compile(r"^/v1/relations/[^/]+/rows$")
BODY_SECONDS: Final = 60
"""A megabyte at 17 kB/s. The body is kept in memory until it is complete."""
WORKER_BODY_MAX: Final = 64 << 20
"""A worker's answer holds the changed positions of every vnode of every scan. Workers are trusted more than clients."""
_NUL: Final = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")
"""An escaped NUL in a JSON string. After an odd number of further backslashes it is plain text: an escaped backslash
and `u0000`.
"""

BROKE: Final = "the service failed; its log says why"
BROKE_SECONDS: Final = 10.0
_CUT: Final = (
    "the service stopped before this call had ended, and what the call asks for may still happen; repeat it, with the "
    "same Idempotency-Key if it changes something"
)

log = logger("api")


def _broken(_: Scope) -> ASGIApp:
    return answer(BROKEN, BROKE)


class Net:
    """Answers an unexpected error with a 500 that reveals nothing of the inside, and logs it. A call that the stopping
    service cancels is answered 503: repeated with its `Idempotency-Key`, it gets the answer of the first one.

    `broken` makes the answer to an unexpected error.
    """

    def __init__(self, app: ASGIApp, broken: Callable[[Scope], ASGIApp] = _broken) -> None:
        self.app, self.broken = app, broken
        self.told: dict[tuple[str, int], float] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = False

        async def watched(message: Message) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        try:
            await self.app(scope, receive, watched)
        except ClientDisconnect:
            log.info("request.left", method=scope["method"], path=scope["path"])
        except asyncio.CancelledError:
            # The server cancels the calls that are still open when it has stopped for long enough, and nothing else.
            log.info("request.cut", method=scope["method"], path=scope["path"])
            if started:
                raise
            await answer(UNAVAILABLE, _CUT)(scope, receive, send)
        except Exception as error:
            self._tell(scope, error)
            if started:
                raise  # the response is half sent: only closing the connection reports the error
            await self.broken(scope)(scope, receive, send)

    def _tell(self, scope: Scope, error: Exception) -> None:
        """Log an error, of each place in the code once in `BROKE_SECONDS`: whoever finds one could fill a disk."""
        *_, (frame, line) = traceback.walk_tb(error.__traceback__)
        place, now = (frame.f_code.co_filename, line), asyncio.get_running_loop().time()
        if now - self.told.get(place, -math.inf) >= BROKE_SECONDS:
            self.told[place] = now
            log.error("request.broke", method=scope["method"], path=scope["path"], exc_info=error)


_REFUSED: Final = MappingProxyType(
    {
        Refusal.TARGET: (MALFORMED, "the request target is a whole URL; send its path, and the host in Host"),
        Refusal.HOST: (
            MISDIRECTED,
            "without TIDEFILL_API_TOKEN only 127.0.0.0/8, [::1] and localhost are served, as Host says it",
        ),
        Refusal.ORIGIN: (
            FOREIGN,
            "a web page of another origin may not call this service; TIDEFILL_ALLOWED_ORIGINS lists those that may",
        ),
    }
)


class Origins:
    """Refuses requests of web pages (`service.api.origins`). `loopback_only`: no API token is configured."""

    def __init__(self, app: ASGIApp, *, loopback_only: bool, allowed: Collection[str]) -> None:
        self.app, self.loopback_only, self.allowed = app, loopback_only, frozenset(allowed)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the request, or refuse it."""
        refusal = self._refusal(scope) if scope["type"] == "http" else None
        if refusal is None:
            await self.app(scope, receive, send)
            return
        kind, detail = refusal
        # The body is not read, so the connection cannot be reused.
        await answer(kind, detail, headers={"Connection": "close"})(scope, receive, send)

    def _refusal(self, scope: Scope) -> tuple[Kind, str] | None:
        headers = Headers(scope=scope)
        head = Head(
            method=scope["method"],
            target=scope["path"],
            host=headers.getlist("host"),
            origin=headers.getlist("origin"),
            site=headers.getlist("sec-fetch-site"),
            mode=headers.getlist("sec-fetch-mode"),
        )
        # The worker API always has a token of its own, and workers may reach it under another host name.
        loopback_only = self.loopback_only and not scope["path"].startswith("/internal/")
        found = judge(head, loopback_only=loopback_only, allowed=self.allowed)
        return None if found is None else _REFUSED[found]


class Bodies:
    """Reads whole JSON bodies of at most `size_max` bytes, and refuses bodies that no route can take."""

    def __init__(self, app: ASGIApp, *, size_max: int) -> None:
        self.app, self.size_max = app, size_max

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the request with its body read, or refuse it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        if "\0" in scope["path"] or b"%00" in scope["query_string"]:
            refusal = answer(MALFORMED, "the URL holds a NUL character")
        elif STREAMED.match(scope["path"]) or scope["method"] in BODILESS:
            await self.app(scope, receive, send)
            return
        else:
            try:
                async with asyncio.timeout(BODY_SECONDS):
                    body = await self._read(scope, receive)
            except TimedOut as error:
                body = answer(TOO_SLOW, error.message, headers={"Connection": "close"})
            except TimeoutError:
                body = answer(TOO_SLOW, f"a JSON body arrives within {BODY_SECONDS} s", headers={"Connection": "close"})
            if body is None:
                return  # the client has left
            refusal = body if isinstance(body, JSONResponse) else _refused(scope, body)
            if refusal is None and isinstance(body, bytes):
                await self.app(scope, _replay(body, receive), send)
                return
        assert refusal is not None
        await refusal(scope, receive, send)

    async def _read(self, scope: Scope, receive: Receive) -> bytes | JSONResponse | None:
        """Return the body, the refusal of one that is too large, or None if the client left."""
        size_max = _size_max(scope["path"], self.size_max)
        declared = Headers(scope=scope).get("content-length", "0")
        if declared.isdigit() and int(declared) > size_max:
            return _too_large(size_max)
        body = bytearray()
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            body += message.get("body", b"")
            more = message.get("more_body", False)
            if len(body) > size_max:
                return _too_large(size_max)
        return bytes(body)


def _size_max(path: str, statement_max: int) -> int:
    if path.startswith("/internal/"):
        return WORKER_BODY_MAX
    return statement_max if path == "/v1/sql" else min(statement_max, SMALL)


def _too_large(size_max: int) -> JSONResponse:
    # The rest of the body is not read, so the connection cannot be reused.
    return answer(TOO_LARGE, f"a JSON body has at most {size_max} bytes", headers={"Connection": "close"})


def _refused(scope: Scope, body: bytes) -> JSONResponse | None:
    """Return the refusal of a body that no route can take, or None."""
    if not body:
        return None
    encoding = Headers(scope=scope).get("content-encoding", "identity")
    if encoding.strip().lower() != "identity":
        return answer(MEDIA, f"a JSON body is sent as it is, not with Content-Encoding: {encoding}")
    media = Headers(scope=scope).get("content-type", "").partition(";")[0].strip().lower()
    if media != "application/json":
        return answer(MEDIA, f'the body is "{media}"; send Content-Type: application/json')
    # The plain search comes first, because the pattern's look-behind is slow on megabytes.
    if b"\\u0000" in body and _NUL.search(body):
        return answer(INVALID, "a string holds the character \\u0000, which no Postgres text can hold")
    if scope["path"].startswith("/internal/"):
        return None  # It may be large, and its route parses it in one step.
    try:
        read_once(scope, body)
    except UnreadableError as error:
        return answer(TOO_LARGE, str(error))
    except (ValueError, RecursionError) as error:
        return answer(MALFORMED, f"the body is not JSON: {error}")
    return None


def _replay(body: bytes, receive: Receive) -> Callable[[], Awaitable[Message]]:
    """Return a `receive` that returns the body once, and the client's own messages afterwards."""
    given = False

    async def replayed() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replayed
