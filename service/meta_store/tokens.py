"""API tokens, as SHA-256 digests."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from sqlalchemy import Row, delete, func, or_, select, update
from sqlalchemy.dialects.postgresql import insert

from service.domain.errors import Conflict
from service.domain.roles import Role
from service.meta_store.documents import among
from service.meta_store.engine import OnConnection
from service.meta_store.schema.access import UNREVOKED, api_token
from service.ports.tokens import ApiToken, NewToken, TokenId

_ALL: Final = select(api_token)


class Tokens(OnConnection):
    """API tokens. Their secret parts are not stored."""

    async def add(self, new: NewToken, sha256: bytes) -> ApiToken:
        """Raises Conflict if an unrevoked token has the name."""
        values = {
            "name": new.name,
            "role": new.role,
            "sha256": sha256,
            "created_by": new.created_by,
            "created_at": new.created_at,
            "expires_at": new.expires_at,
        }
        adding = insert(api_token).values(values)
        named_once = adding.on_conflict_do_nothing(index_elements=["name"], index_where=UNREVOKED)
        row = (await self._connection.execute(named_once.returning(api_token))).first()
        if row is None:
            raise Conflict(f'there is a token "{new.name}": revoke it first, or take another name')
        return _token(row)

    async def called(self, wanted: Collection[TokenId]) -> Mapping[TokenId, ApiToken]:
        found = await self._connection.execute(_ALL.where(among(api_token.c.id, wanted)))
        return {TokenId(row.id): _token(row) for row in found}

    async def page(self, *, after: int, limit: int) -> Sequence[ApiToken]:
        """Return tokens with an id above `after`, oldest first, revoked ones included."""
        found = _ALL.where(api_token.c.id > after).order_by(api_token.c.id).limit(limit)
        return [_token(row) for row in await self._connection.execute(found)]

    async def revoke(self, token: TokenId, *, now: datetime) -> ApiToken | None:
        """Revoke a token and return it, or None if there is none. A revoked one keeps its time."""
        ended = func.coalesce(api_token.c.revoked_at, now)
        revoking = update(api_token).where(api_token.c.id == token).values(revoked_at=ended).returning(api_token)
        row = (await self._connection.execute(revoking)).first()
        return None if row is None else _token(row)

    async def used(self, token: TokenId, *, now: datetime) -> None:
        await self._connection.execute(update(api_token).where(api_token.c.id == token).values(last_used_at=now))

    async def forget_older(self, than: datetime) -> None:
        """Delete the tokens that were revoked, or expired, before `than`."""
        over = or_(api_token.c.revoked_at < than, api_token.c.expires_at < than)
        await self._connection.execute(delete(api_token).where(over))


def _token(row: Row[Any]) -> ApiToken:
    return ApiToken(
        TokenId(row.id),
        row.name,
        Role(row.role),
        row.created_by,
        row.created_at,
        row.expires_at,
        row.last_used_at,
        row.revoked_at,
        bytes(row.sha256),
    )
