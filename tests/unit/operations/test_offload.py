"""Which texts are parsed where."""

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import pytest

from service.operations.offload import LONG, parsed
from service.sql.statements.dml import Insert

P = ParamSpec("P")
T = TypeVar("T")


class Counted:
    """Parses here, and counts the calls."""

    def __init__(self) -> None:
        self.calls = 0

    def of(self, _: str) -> "Counted":
        return self

    async def run(self, _: int, read: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        self.calls += 1
        return read(*args, **kwargs)


@pytest.mark.parametrize(("length", "calls"), [(100, 0), (LONG - 100, 0), (LONG + 100, 1)])
async def test_a9_long_constants_are_parsed_in_the_share_of_their_caller(length: int, calls: int) -> None:
    """A hundred of them in threads of the service left no time for barriers and answers."""
    parsers: Any = Counted()
    statement = await parsed(parsers, f"INSERT INTO t VALUES ('{'x' * (length - 25)}')")
    assert isinstance(statement, Insert)
    assert parsers.calls == calls
