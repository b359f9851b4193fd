"""Parse and bind statements in processes that can be ended."""

from collections.abc import Callable
from typing import ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Parsers(Protocol):
    """Processes that parse texts for the service."""

    def of(self, caller: str) -> "Parsers":
        """Return the same processes for the calls of one caller, who takes his share of them only."""
        ...

    async def run(self, length: int, read: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `read`, a pure function of `service.sql`, for a text of `length` characters, and return its result.

        Arguments and result must be picklable. Raises the errors of `read`, Invalid if it needs more processor time
        than a text of this length may, and Unavailable if too many calls wait.
        """
        ...
