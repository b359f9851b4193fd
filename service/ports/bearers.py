"""Recognise callers by credentials that the service did not make itself."""

from typing import Protocol

from service.ports.audit import Asker


class Bearers(Protocol):
    """The bearers of JWTs."""

    async def caller(self, text: str) -> Asker | None:
        """Return the bearer of a JWT, or None if it is not valid for this service.

        Raises Unavailable if the keys of its issuer cannot be read.
        """
        ...
