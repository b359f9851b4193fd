"""Parsing and binding a statement's text where it can be given up."""

from collections.abc import Callable
from typing import ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Parsers(Protocol):
    """Processes that read texts for the service."""

    async def run(self, length: int, read: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return what `read`, a pure function of `service.sql`, returns for a text of `length` characters. Arguments
        and result are values that can be pickled. Raises what `read` raises, Invalid when it takes more processor time
        than a text of this length may, and Unavailable when too many calls wait.
        """
        ...
