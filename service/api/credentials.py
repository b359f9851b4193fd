"""Say who calls: by a bearer token, or, on a service that has none, by being on this machine."""

import hmac
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final, cast

from pydantic import SecretStr
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from service.api.access import is_open
from service.api.errors import UNAUTHORIZED, answer, answer_to
from service.domain.errors import MetaError
from service.domain.roles import Role
from service.operations import tokens
from service.operations.world import World
from service.ports.audit import Asker
from service.ports.tokens import Bearers
from service.turns import CALLER

BODILESS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
"""No route reads the bodies of these calls, some of which need no credentials."""
_DOTS_OF_A_JWT: Final = 2
WORKER: Final = Asker("worker", Role.WORKER)
ROOT: Final = Asker("TIDEFILL_API_TOKEN", Role.ADMIN)


RECOGNISED: Final = "recognised"
"""The name in a scope's state of a function of the connection, to be called when its caller is known."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """What callers may show. Without an API token and an issuer every caller of this machine is an admin."""

    worker_token: SecretStr
    api_token: SecretStr | None
    bearers: Bearers | None = None

    async def caller(self, scope: Scope) -> Asker | None:
        """Return who sends a request, or None if that is not known. Raises Unavailable."""
        scheme, _, given = Headers(scope=scope).get("authorization", "").partition(" ")
        text = given.strip() if scheme.lower() == "bearer" else ""
        worker, root = _same(text, self.worker_token), _same(text, self.api_token)
        if worker:
            return WORKER
        if scope["path"].startswith("/internal/"):
            return ROOT if root else None
        if self.api_token is None and self.bearers is None:
            client = scope.get("client")
            return Asker("http" if client is None else f"http {client[0]}", Role.ADMIN)
        if root:
            return ROOT
        if self.bearers is not None and text.count(".") == _DOTS_OF_A_JWT:
            return await self.bearers.caller(text)
        return await tokens.caller(cast("World", scope["app"].state.world), text)


class Callers:
    """Refuses requests of unknown callers, before their bodies are read. Open paths may be read by everyone."""

    def __init__(self, app: ASGIApp, *, credentials: Credentials, open_paths: Collection[re.Pattern[str]]) -> None:
        self.app, self.credentials, self.open_paths = app, credentials, open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the request, or refuse it."""
        if scope["type"] != "http" or (scope["method"] in BODILESS and is_open(scope["path"], self.open_paths)):
            await self.app(scope, receive, send)
            return
        try:
            caller = await self.credentials.caller(scope)
        except MetaError as error:
            await answer_to(error)(scope, receive, send)
            return
        if caller is None:
            known = "authorization" in Headers(scope=scope)
            challenge = 'Bearer error="invalid_token"' if known else "Bearer"
            refusal = answer(
                UNAUTHORIZED, "send Authorization: Bearer with a valid token", headers={"WWW-Authenticate": challenge}
            )
            await refusal(scope, receive, send)
            return
        recognise(scope, caller)
        await self.app(scope, receive, send)


def recognise(scope: Scope, caller: Asker) -> None:
    """Keep who sends a request, and tell its connection that somebody known does. The work of users is shared out."""
    state = scope.setdefault("state", {})
    state["caller"] = caller
    if caller.role is not Role.WORKER:
        CALLER.set(caller.actor)
    if RECOGNISED in state:
        state[RECOGNISED](None if caller.role is Role.WORKER else caller.actor)


def _same(given: str, expected: SecretStr | None) -> bool:
    """Compare in constant time, so that the duration of a refusal reveals nothing about the token."""
    return expected is not None and hmac.compare_digest(given.encode(), expected.get_secret_value().encode())
