"""The messages that a form leaves for the page to which it leads."""

import secrets
from dataclasses import dataclass
from typing import Final, Literal

from service.pages.bounded import Bounded

NOTICES_MAX: Final = 1_000
PARAMETER: Final = "notice"


@dataclass(frozen=True, slots=True)
class Notice:
    """A message: something was `done`, or was `refused`."""

    kind: Literal["done", "refused"]
    text: str


class Notices:
    """The messages of this process. The address has only the key of one, so that a link cannot bring a text."""

    def __init__(self) -> None:
        self._kept: Bounded[Notice] = Bounded(NOTICES_MAX)

    def put(self, notice: Notice, *, owner: str) -> str:
        """Keep a message for its owner and return its key."""
        key = secrets.token_urlsafe(8)
        self._kept.put(key, notice, owner=owner)
        return key

    def get(self, key: str) -> Notice | None:
        """Return the message of a key."""
        return self._kept.get(key)
