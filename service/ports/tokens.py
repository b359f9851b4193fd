"""Store API tokens as hashes. Part of `service.ports.meta_store`."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NewType, Protocol

from service.domain.roles import Role

TokenId = NewType("TokenId", int)


@dataclass(frozen=True, slots=True)
class NewToken:
    """A token to store. `expires_at` None: it does not expire."""

    name: str
    role: Role
    created_by: str
    created_at: datetime
    expires_at: datetime | None


@dataclass(frozen=True, slots=True)
class ApiToken:
    """A stored token. `sha256` is the digest of its secret part."""

    id: TokenId
    name: str
    role: Role
    created_by: str
    created_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None
    revoked_at: datetime | None
    sha256: bytes = field(repr=False)

    def valid(self, now: datetime) -> bool:
        """Whether it is neither revoked nor expired."""
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)


class Tokens(Protocol):
    """API tokens. Their secret parts are not stored."""

    async def add(self, new: NewToken, sha256: bytes) -> ApiToken:
        """Raises Conflict if an unrevoked token has the name."""
        ...

    async def called(self, wanted: Collection[TokenId]) -> Mapping[TokenId, ApiToken]: ...

    async def page(self, *, after: int, limit: int) -> Sequence[ApiToken]:
        """Return tokens with an id above `after`, oldest first, revoked ones included."""
        ...

    async def revoke(self, token: TokenId, *, now: datetime) -> ApiToken | None:
        """Revoke a token and return it, or None if there is none. A revoked one keeps its time."""
        ...

    async def used(self, token: TokenId, *, now: datetime) -> None: ...

    async def forget_older(self, than: datetime) -> None:
        """Delete the tokens that were revoked, or expired, before `than`."""
        ...
