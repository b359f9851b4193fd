"""The sessions of browsers. They are kept in the memory of this process, so another replica or a restart asks again.

A session holds the token of its user, and every request shows it to `service.api.credentials` again: a revoked or
expired token ends its sessions as soon as its calls. The browser holds the id of the session and never the token.
"""

import hashlib
import hmac
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from pydantic import SecretStr

from service.pages.bounded import Bounded

LIFETIME_SECONDS: Final = 8 * 3600
SESSIONS_MAX: Final = 10_000
"""A session takes less than a kilobyte."""
_RANDOM_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class Session:
    """A browser that has logged in. `ends_at` is on the monotonic clock of the process, in seconds."""

    token: SecretStr
    csrf: str = field(repr=False)
    ends_at: float


class Sessions:
    """The sessions of this process. `open_csrf` is in the forms of browsers without a session."""

    def __init__(self, monotonic: Callable[[], float], size_max: int = SESSIONS_MAX) -> None:
        self._monotonic = monotonic
        self._kept: Bounded[Session] = Bounded(size_max)
        self.open_csrf: Final = secrets.token_urlsafe(_RANDOM_BYTES)

    def begin(self, token: SecretStr, *, by: str) -> str:
        """Begin a session of an actor and return its id, which only the browser keeps."""
        id_ = secrets.token_urlsafe(_RANDOM_BYTES)
        ends_at = self._monotonic() + LIFETIME_SECONDS
        self._kept.put(_digest(id_), Session(token, secrets.token_urlsafe(_RANDOM_BYTES), ends_at), owner=by)
        return id_

    def called(self, id_: str) -> Session | None:
        """Return a session that has not ended."""
        found = self._kept.get(_digest(id_))
        return found if found is not None and self._monotonic() < found.ends_at else None

    def end(self, id_: str) -> None:
        """End a session."""
        self._kept.forget(_digest(id_))


def same(given: str, expected: str) -> bool:
    """Compare in constant time."""
    return hmac.compare_digest(given.encode(), expected.encode())


def _digest(id_: str) -> str:
    return hashlib.sha256(id_.encode()).hexdigest()
