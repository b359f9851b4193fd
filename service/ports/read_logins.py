"""The Postgres logins with which users' own tools read tables and views."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol


@dataclass(frozen=True, slots=True)
class ReadLogin:
    """A login, by the part of its name that tells of its caller. It ends with `until`, None: not by itself."""

    suffix: str
    until: datetime | None = None


@dataclass(frozen=True, slots=True)
class ReadPlace:
    """The server as the service reaches it, and the secret from which passwords are derived."""

    host: str
    port: int
    database: str
    key: str = field(repr=False)


class ReadLogins(Protocol):
    """The logins of the state store's server that this installation made for its callers."""

    def name(self, suffix: str) -> str:
        """Return the name of a login."""
        ...

    async def open(self, login: ReadLogin, password: str) -> None:
        """Create a login, or give an existing one this password, this end and the initial settings. Repeatable.

        Raises Conflict if a role of the name may do more than read, Invalid and Unavailable.
        """
        ...

    async def all(self) -> Sequence[ReadLogin]: ...

    async def end(self, suffix: str) -> bool:
        """Lock a login, end its sessions and drop it. Return whether it is gone. Repeatable."""
        ...
