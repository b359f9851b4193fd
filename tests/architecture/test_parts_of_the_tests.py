"""What `make test` leaves to `make soak` and `make cluster`, and how it divides the rest."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

TESTS = Path(__file__).parents[1]
WHOLE = {"e2e", "attacks", "soak"}
"""Where the parts of `make test` look for tests with whole processes."""
SLOW = {"soak", "control_plane"}


class Case(NamedTuple):
    """A test function: where it is, the marks of all its cases, and the text that may cite an invariant."""

    place: str
    marks: set[str]
    told: str


@cache
def _tests() -> tuple[Case, ...]:
    return tuple(case for path in sorted(TESTS.rglob("test_*.py")) for case in _of(path, ast.parse(path.read_text())))


def _of(path: Path, tree: ast.Module) -> Iterator[Case]:
    """Yield the tests of a file."""
    everywhere = {
        mark
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"
        for mark in _marks(node.value)
    }
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            # A mark within `parametrize` is that of a case.
            own = {mark for one in node.decorator_list for mark in _marks(one) if "parametrize" not in _marks(one)}
            told = [ast.get_docstring(tree), node.name.upper(), ast.get_docstring(node)]
            yield Case(str(path.relative_to(TESTS)), everywhere | own, "\n".join(filter(None, told)))


def _marks(node: ast.expr) -> set[str]:
    return set(re.findall(r"pytest\.mark\.(\w+)", ast.unparse(node)))


def _cited(told: str) -> set[int]:
    """Return the invariants that a text names: I3, I1-I4, or `test_i1_i12_..`."""
    cited: set[int] = set()
    for first, last in re.findall(r"(?<![A-Z0-9])I(\d+)(?:-I(\d+))?(?![A-Z0-9])", told):
        cited.update(range(int(first), int(last or first) + 1))
    return cited


@pytest.mark.parametrize("invariant", range(1, 14))
def test_each_invariant_is_tested_in_every_run(invariant: int) -> None:
    cited = [test for test in _tests() if invariant in _cited(test.told)]
    assert [test.place for test in cited if not test.marks & SLOW]


def test_whole_processes_are_tested_where_they_are_looked_for() -> None:
    elsewhere = {test.place for test in _tests() if "e2e" in test.marks and Path(test.place).parts[0] not in WHOLE}
    assert elsewhere == set()


def test_what_is_left_for_later_is_there() -> None:
    marks = [test.marks for test in _tests()]
    assert all(any(mark in one for one in marks) for mark in SLOW)
