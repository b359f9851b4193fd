"""Decide about a request of a browser before its page does: who sends it, and whether a form of ours does.

Two things make a form's request ours. `service.api.origins` refuses requests of pages of other origins. The form holds
the CSRF token of the session, which other pages cannot read. A service without API token has no sessions; its forms
hold a token of the process.

Next: `service.pages.sessions`.
"""

import asyncio
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl, quote

from fastapi.responses import PlainTextResponse, RedirectResponse, Response
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.api.access import is_open
from service.api.credentials import BODILESS, Credentials, recognise
from service.api.errors import kind_of
from service.api.json_body import SMALL
from service.api.middleware import BODY_SECONDS
from service.api.origins import is_loopback
from service.api.uploads import Uploads
from service.domain.errors import MetaError, TimedOut, Unavailable
from service.domain.roles import PEOPLE
from service.pages.sessions import Session, Sessions, same
from service.ports.audit import Asker
from service.turns import Turns

SECURE_COOKIE: Final = "__Host-tidefill"
"""Browsers keep a cookie of such a name only from https, for this host and all its paths."""
PLAIN_COOKIE: Final = "tidefill"
FIELDS_MAX: Final = 200
LOGIN_BYTES_MAX: Final = 16 << 10
LONG_FORMS_AT_ONCE: Final = 4
LOGIN_SECONDS: Final = 5
LOGINS_MAX: Final = 20
"""How many forms of browsers without a session may be arriving. For another one, the slowest is given up."""
HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self';"
        " form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    # With `no-referrer` browsers send the forms of these pages with `Origin: null`, which says nothing.
    "Referrer-Policy": "same-origin",
}
_STALE: Final = "this form is older than your session or the service; go back, reload the page and send it again"


@dataclass(frozen=True, slots=True)
class Visit:
    """Who sends a request. `csrf` is the token that the forms of this browser hold."""

    caller: Asker | None
    csrf: str
    session: str | None = None


def cookie_of(scope: Scope) -> str:
    """Return the name of the session's cookie: a plain one for loopback without TLS."""
    loopback = is_loopback(Headers(scope=scope).get("host", ""))
    return PLAIN_COOKIE if loopback and scope["scheme"] == "http" else SECURE_COOKIE


class Door:
    """Refuses requests without a session and foreign forms, and reads forms. Adds the security headers."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        credentials: Credentials,
        sessions: Sessions,
        open_paths: Collection[re.Pattern[str]],
        size_max: int,
        uploads_max: int,
        monotonic: Callable[[], float],
    ) -> None:
        self.app, self.credentials, self.sessions = app, credentials, sessions
        self.open_paths, self.size_max = open_paths, size_max
        self.long_forms = Turns("long forms", running=LONG_FORMS_AT_ONCE, waiting=1_000, each=1)
        self.of_strangers = Uploads(
            self._pass, uploads_max=LOGINS_MAX, monotonic=monotonic, setting="forms without a session"
        )
        self.of_callers = Uploads(self._pass, uploads_max=uploads_max, monotonic=monotonic)
        self.secured = credentials.api_token is not None or credentials.bearers is not None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the request, or refuse it."""
        send = _guarded(send)
        try:
            visit = await self._visit(scope)
        except MetaError as error:
            await PlainTextResponse(error.message, kind_of(error).status)(scope, receive, send)
            return
        if visit.caller is None and not is_open(scope["path"], self.open_paths):
            await self._to_login(scope)(scope, receive, send)
            return
        scope.setdefault("state", {}).update(caller=None, csrf=visit.csrf, session=visit.session, form={})
        if visit.caller is None:
            await self.of_strangers(scope, receive, send)
            return
        recognise(scope, visit.caller)
        await self.of_callers(scope, receive, send)

    async def _pass(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read the form of a request, if it is of a method that has one, and run its page."""
        state = scope["state"]
        if scope["method"] not in BODILESS:
            form = await self._form(scope, receive)
            if isinstance(form, Response):
                await form(scope, receive, send)
                return
            if not same(form.pop("csrf", ""), state["csrf"]):
                await PlainTextResponse(_STALE, 403)(scope, receive, send)
                return
            state["form"] = form
            receive = _read_already(receive)
        await self.app(scope, receive, send)

    async def _visit(self, scope: Scope) -> Visit:
        if not self.secured:
            return Visit(await self.credentials.caller(scope), self.sessions.open_csrf)
        id_ = _cookie(scope)
        session = self.sessions.called(id_) if id_ else None
        caller = None if session is None else await self.caller(scope, session)
        if session is None or caller is None:
            return Visit(None, self.sessions.open_csrf)
        return Visit(caller, session.csrf, id_)

    async def caller(self, scope: Scope, session: Session) -> Asker | None:
        """Return the bearer of a session's token, as for a call of the API. Raises Unavailable."""
        return await bearer(self.credentials, scope, session.token.get_secret_value())

    def _to_login(self, scope: Scope) -> Response:
        base = scope.get("state", {}).get("base", "")
        if "text/event-stream" in Headers(scope=scope).get("accept", ""):
            return Response(status_code=204)  # which tells a browser to end the stream, without a complaint
        if Headers(scope=scope).get("hx-request"):
            return Response(status_code=401, headers={"HX-Redirect": f"{base}/login"})
        wanted = scope["path"] if scope["method"] in BODILESS else "/"
        query = scope["query_string"].decode("latin-1")
        after = quote(f"{wanted}?{query}" if query else wanted, safe="")
        return RedirectResponse(f"{base}/login?next={after}", 303)

    def _bounds(self, scope: Scope) -> tuple[int, int]:
        """Return how many bytes a form may have, and in how many seconds it arrives. Those whom nobody knows send a
        token and nothing else.
        """
        if scope["state"]["caller"] is None:
            return LOGIN_BYTES_MAX, LOGIN_SECONDS
        return self.size_max if scope["path"] == "/sql" else min(self.size_max, SMALL), BODY_SECONDS

    async def _form(self, scope: Scope, receive: Receive) -> dict[str, str] | Response:
        """Return the fields of a form, or the refusal of a body that is none."""
        media = Headers(scope=scope).get("content-type", "").partition(";")[0].strip().lower()
        if media != "application/x-www-form-urlencoded":
            return PlainTextResponse("pages take forms; programs use /v1", 415)
        size_max, seconds = self._bounds(scope)
        try:
            async with asyncio.timeout(seconds):
                body = await _body(receive, size_max)
            if body is None:
                return PlainTextResponse(f"this form has at most {size_max} bytes", 413, {"Connection": "close"})
            fields = await self._fields(body)
        except (TimedOut, Unavailable) as error:
            return PlainTextResponse(error.message, kind_of(error).status, {"Connection": "close"})
        except TimeoutError:
            return PlainTextResponse(f"a form arrives within {seconds} s", 408, {"Connection": "close"})
        except ValueError:
            return PlainTextResponse("the form cannot be read", 400)
        if any("\0" in value for value in fields.values()):
            return PlainTextResponse("a field holds a NUL character, which no Postgres text can hold", 422)
        # Browsers send the line ends of text areas as CR LF.
        return {name: value.replace("\r\n", "\n") for name, value in fields.items()}

    async def _fields(self, body: bytes) -> dict[str, str]:
        """Return the fields of a form. A megabyte of escapes takes 0.1 s, so a thread parses long forms, one of a
        caller at a time. Raises ValueError, and Unavailable where too many of a caller wait.
        """
        if len(body) <= LOGIN_BYTES_MAX:
            return _parsed(body)
        async with self.long_forms.turn():
            return await asyncio.to_thread(_parsed, body)


async def bearer(credentials: Credentials, scope: Scope, token: str) -> Asker | None:
    """Return the bearer of a token, or None if it is not that of a user. Raises Unavailable."""
    headers = [(name, value) for name, value in scope["headers"] if name != b"authorization"]
    shown = {
        **scope,
        "path": "/v1",
        "headers": [*headers, (b"authorization", b"Bearer " + token.encode("latin-1", "replace"))],
    }
    caller = await credentials.caller(shown)
    return caller if caller is not None and caller.role in PEOPLE else None


def _parsed(body: bytes) -> dict[str, str]:
    return dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=FIELDS_MAX, errors="strict"))


async def _body(receive: Receive, size_max: int) -> bytes | None:
    """Return a body, or None if it is larger. What a client that left has sent is no form."""
    body, more = bytearray(), True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
        if len(body) > size_max:
            return None
    return bytes(body)


def _read_already(receive: Receive) -> Receive:
    """Return a `receive` that returns an empty body once, and the client's own messages afterwards."""
    given = False

    async def received() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": b"", "more_body": False}

    return received


def with_own_cookie(scope: Scope) -> Scope:
    """Return a request with no cookie but its session's. FastAPI parses those of every request: 64 kB take seconds."""
    headers = [one for one in scope["headers"] if one[0] != b"cookie"]
    if len(headers) == len(scope["headers"]):
        return scope
    return {**scope, "headers": [*headers, (b"cookie", f"{cookie_of(scope)}={_cookie(scope)}".encode())]}


def _cookie(scope: Scope) -> str:
    """Return the id of the session; empty if there is none."""
    wanted = re.compile(rf"(?:^|;)[ \t]*{re.escape(cookie_of(scope))}=([\w-]*)")
    found = (wanted.search(line) for line in Headers(scope=scope).getlist("cookie"))
    return next((one[1] for one in found if one), "")


def _guarded(send: Send) -> Send:
    async def guarded(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers[name] = value
            if "cache-control" not in headers:
                headers["Cache-Control"] = "no-store"
        await send(message)

    return guarded
