"""A deadlock's victim runs again, a bounded number of times, and every transaction of a caller is one that does."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from service.domain.errors import Deadlocked, Unavailable
from service.operations.retrying import PAUSE_FIRST, TRIES, retried
from service.operations.sources import secrets
from service.operations.world import World
from tests.support.fake_meta_store import FakeStores
from tests.support.http import BrokenStores, world_of
from tests.support.meta_store import A_TEST, NOW

OPERATIONS = Path(__file__).parents[3] / "service" / "operations"
SINGLE = {
    "lead": "one row, the lease; the elector's next attempt is the repetition",
    "_recorded": "the transaction of `_accept`, which is retried",
    "_not_removed": "it only appends an event",
    "_check": "it only appends an event",
    "_start": "one row of a launch",
    "end_overdue": "it only appends an event",
}


async def test_f2_a_victim_runs_again_with_growing_pauses_and_not_for_ever() -> None:
    stores = BrokenStores(Deadlocked("deadlock detected"))
    world = world_of(cast("Any", stores))
    with pytest.raises(Unavailable, match="deadlock detected") as raised:
        await secrets.change(world, "s", "v", asked_by=A_TEST)
    assert not isinstance(raised.value, Deadlocked), "an operation around this one does not try it again"
    assert stores.asked == TRIES
    assert world.clock.monotonic() == pytest.approx(PAUSE_FIRST.total_seconds() * (2 ** (TRIES - 1) - 1))


async def test_f2_what_a_second_try_returns_is_returned() -> None:
    tries: list[int] = []

    @retried
    async def operation(_world: World, number: int) -> int:
        tries.append(number)
        if len(tries) < 2:
            raise Deadlocked("deadlock detected")
        return number

    assert await operation(world_of(FakeStores(lambda: NOW)), 7) == 7
    assert tries == [7, 7]


def _begins(of: ast.AST) -> Iterator[ast.Call]:
    """Yield the calls of `begin` that a function makes itself, on the authority of a term or for an asker."""
    for node in ast.walk(of):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "begin":
            whole = ast.unparse(node.func).endswith("stores.begin")
            if whole and (node.args or node.keywords):
                yield node


def test_f2_every_transaction_of_a_user_or_of_the_leader_is_in_an_operation_that_is_retried() -> None:
    """Those without a term or an asker read, or are decorated as well where they write."""
    once: set[str] = set()
    for path in OPERATIONS.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.AsyncFunctionDef) and any(_begins(node)):
                decorated = any(ast.unparse(one) == "retried" for one in node.decorator_list)
                if not decorated and node.name not in SINGLE:
                    once.add(f"{path.relative_to(OPERATIONS)}:{node.lineno} {node.name}")
    assert once == set()
