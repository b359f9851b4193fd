"""Describe the credentials of callers: API tokens, and JWTs."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import NewType, Protocol

from service.domain.roles import Role
from service.ports.audit import Asker

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


class Bearers(Protocol):
    """The bearers of JWTs, which the service did not make itself."""

    async def caller(self, text: str) -> Asker | None:
        """Return the bearer of a JWT, or None if it is not valid for this service.

        Raises Unavailable if the keys of its issuer cannot be read.
        """
        ...
