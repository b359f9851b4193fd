"""`/v1/tokens` and `/v1/audit`: who may call, and who changed what.

A token's text is in the answer to its creation and nowhere else.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from service.api.access import AskedBy, needs
from service.api.calling import Cursor, Here, Limit
from service.api.json_body import ParsedRoute
from service.domain.roles import Role, permits
from service.operations import auditing, tokens
from service.ports.tokens import ApiToken, TokenId
from service.protocol.ids import BIGINT_MAX

router = APIRouter(prefix="/v1", tags=["access"], route_class=ParsedRoute)

Word = Annotated[str | None, Query(min_length=1, max_length=2000)]
EXPIRY_MAX_SECONDS = 10 * 366 * 24 * 3600


class TokenBody(BaseModel):
    """A token to make. Without an expiry it is valid until it is revoked."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$", examples=["ci"])
    role: Annotated[Literal["viewer", "operator", "admin"], Field(description="Each has the rights of those before it")]
    expires_in_seconds: int | None = Field(default=None, ge=1, le=EXPIRY_MAX_SECONDS)


@dataclass(frozen=True, slots=True)
class TokenView:
    """A token without its text. `last_used_at` is at most a minute old."""

    id: TokenId
    name: str
    role: Role
    created_by: str
    created_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None
    revoked_at: datetime | None


@dataclass(frozen=True, slots=True)
class NewTokenView:
    """A new token. `text` is what its bearer sends; it cannot be read again."""

    id: TokenId
    name: str
    role: Role
    expires_at: datetime | None
    text: str


@dataclass(frozen=True, slots=True)
class TokenPage:
    """Some tokens, oldest first, revoked ones included. Pass `next` as `after`; it is null on the last page."""

    items: Sequence[TokenView]
    next: str | None


@router.get("/tokens", dependencies=needs(Role.ADMIN))
async def list_tokens(world: Here, after: Cursor = 0, limit: Limit = 100) -> TokenPage:
    """List the API tokens, oldest first, without their texts."""
    found, following = await tokens.page(world, after=after, limit=limit)
    return TokenPage([_view(one) for one in found], following)


@router.post("/tokens", dependencies=needs(Role.ADMIN, discreet=True))
async def create_token(body: TokenBody, world: Here, asked_by: AskedBy, response: Response) -> NewTokenView:
    """Make an API token. The answer is not kept, so this call takes no idempotency key."""
    expires_in = None if body.expires_in_seconds is None else timedelta(seconds=body.expires_in_seconds)
    asked_by = asked_by.saying(None, body.name)
    new = await tokens.create(world, body.name, Role(body.role), expires_in, asked_by=asked_by)
    response.headers["Cache-Control"] = "no-store"
    made = new.made
    return NewTokenView(made.id, made.name, made.role, made.expires_at, new.text)


@router.delete("/tokens/{token}", dependencies=needs(Role.ADMIN, discreet=True))
async def revoke_token(
    token: Annotated[TokenId, Path(ge=0, le=BIGINT_MAX)], world: Here, asked_by: AskedBy
) -> TokenView:
    """Revoke an API token. It is refused within 5 seconds, and its event streams end within 15."""
    return _view(await tokens.revoke(world, token, asked_by=asked_by))


@router.get("/audit", dependencies=needs(Role.VIEWER))
async def list_audit_entries(
    world: Here,
    asked_by: AskedBy,
    limit: Limit = 100,
    before: Annotated[int | None, Query(ge=0, le=BIGINT_MAX, description="`next` of the page before")] = None,
    actor: Word = None,
    target: Word = None,
) -> auditing.AuditPage:
    """List the audit trail, newest first, of one actor or about one target if given. Only admins see the entries of
    secrets and tokens.
    """
    discreet = permits(asked_by.role, Role.ADMIN)
    return await auditing.entries(world, limit=limit, before=before, discreet=discreet, actor=actor, target=target)


def _view(one: ApiToken) -> TokenView:
    return TokenView(
        one.id,
        one.name,
        one.role,
        one.created_by,
        one.created_at,
        one.expires_at,
        one.last_used_at,
        one.revoked_at,
    )
