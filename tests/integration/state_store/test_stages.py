"""Stages in the real store: the target holds what its query answers, whatever changes (I1).

A later epoch's changes come in windows of one or several epochs, as they do when a job catches up.
"""

from collections.abc import AsyncGenerator, Mapping
from dataclasses import replace

import pytest

from tests.support.sampling import sampled
from tests.support.stage_cases import CASES, Case
from tests.support.stage_world import run, stage_store
from tests.support.state_store import Store
from workers.backfill.stages import BoundStage, Window
from workers.state_store import stage_blocks, stage_sql
from workers.state_store.stage_delta import NEW, Delta, states_of
from workers.state_store.stage_parts import of_parts

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(120)]

SEEDS = 3
CONTRIBUTED = stage_sql.contributed
STATES_OF = states_of


@pytest.fixture
async def store(database_url: str) -> AsyncGenerator[Store]:
    async with stage_store(database_url) as prepared:
        yield prepared


@pytest.mark.parametrize("seed", sampled(range(SEEDS)))
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_i1_a_stage_holds_what_its_query_answers(store: Store, case: Case, seed: int) -> None:
    assert await run(store, case, seed) is None


def unrestricted(delta: Delta) -> Mapping[str, str]:
    """Earlier inputs are not restricted to what is unchanged: a row of two changes comes twice."""
    return STATES_OF(delta, NEW)


def at_the_other_epoch(delta: Delta, _side: str) -> Mapping[str, str]:
    """Rows that go are evaluated as of the epoch after: those that were are not found."""
    return STATES_OF(delta, NEW)


def untouched(*_: object) -> list[str]:
    """Unchanged rows that meet a change beside them are left as they are."""
    return []


def only_added(bound: BoundStage) -> str:
    """Rows that go are not subtracted."""
    return CONTRIBUTED(bound).replace("-", "")


def as_they_are(delta: Delta, *, anew: bool) -> list[str]:
    """Parts are computed at the present epoch on both sides."""
    windows = {one: Window(window.upto, window.upto) for one, window in delta.windows.items()}
    return of_parts(replace(delta, windows=windows), anew=anew)


@pytest.mark.parametrize(
    ("module", "name", "planted", "case"),
    [
        (stage_blocks, "unchanged", unrestricted, CASES[1]),
        (stage_blocks, "states_of", at_the_other_epoch, CASES[1]),
        (stage_blocks.BlockPrinter, "touched", untouched, CASES[3]),
        (stage_blocks.BlockPrinter, "touched", untouched, CASES[5]),
        (stage_sql, "contributed", only_added, CASES[6]),
        (stage_sql, "of_parts", as_they_are, CASES[9]),
    ],
    ids=["same", "state", "padded", "existence", "reverse", "part"],
)
async def test_a_broken_rule_is_found(
    store: Store, monkeypatch: pytest.MonkeyPatch, module: object, name: str, planted: object, case: Case
) -> None:
    monkeypatch.setattr(module, name, planted)
    for seed in range(SEEDS):
        if await run(store, case, seed):
            return
    pytest.fail(f"not found by {SEEDS} schedules")
