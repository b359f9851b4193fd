"""Describe API tokens."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import NewType

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
