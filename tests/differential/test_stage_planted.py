"""Bugs that were mended once, or that a rule of stages keeps out, are found by the schedules of the generator."""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

import pytest
from sqlglot import exp

from service.protocol.ids import Epoch, RelationId
from service.protocol.relation import Relation, state_table
from service.sql.queries import aggregates, finishing, measures, tables
from service.sql.queries.drafts import Draft
from tests.differential.stage_run import Case, Outcome, live
from tests.support.sampling import sampled
from workers.backfill.stages import BoundStage
from workers.state_store import stage_blocks, stage_parts, stage_sql
from workers.state_store.stage_delta import NEW, Delta, states_of

pytestmark = pytest.mark.postgres

LIVE_VERSION: Final = stage_sql.live_version
TOUCHED: Final = stage_blocks.BlockPrinter.touched
WHOLE: Final = stage_sql.whole
SAME_PART: Final = stage_parts._same_part  # pyright: ignore[reportPrivateUsage]


def unrestricted(delta: Delta) -> Mapping[str, str]:
    """Earlier inputs are not restricted to what is unchanged: a row of two changes comes twice."""
    return states_of(delta, NEW)


def touched_before(printer: stage_blocks.BlockPrinter, *given: Any) -> list[str]:
    """Unchanged rows that meet a new version beside them are left as they are."""
    return [one for one in TOUCHED(printer, *given) if f"{NEW}_" not in one]


def without_null(relation: Relation, given: str, values: str) -> str:
    """A group with a NULL in its key is not found again."""
    columns = tuple(column.model_copy(update={"nullable": False}) for column in relation.columns)
    return LIVE_VERSION(relation.model_copy(update={"columns": columns}), given, values)


def of_values(bound: BoundStage, row: str, part: str) -> Iterator[str]:
    """A part with a NULL in its columns has no rows."""
    yield SAME_PART(bound, row, part)[0]


def never_empty(bound: BoundStage, at: Mapping[RelationId, Epoch]) -> str:
    """A whole input without rows has no result."""
    return f"select * from ({WHOLE(bound, at)}) w where exists (select from {state_table(bound.upstream.id)})"


def only_rows(_: BoundStage, delta: str) -> str:
    """A group that is always there needs a row."""
    return delta


def uncounted(value: exp.Expr, _: set[str]) -> exp.Expr:
    """A count over no row is NULL in a correlated subquery."""
    return value


def item(node: exp.Expr) -> bool:
    """A join in parentheses that begins with a query is that query."""
    return isinstance(node, exp.Table)


def unscaled(*_: object) -> None:
    """A sum keeps the digits of values that went."""


def of_driver(draft: Draft, _: object) -> tuple[str, ...]:
    """A row whose key is longer than its driver's has the driver's vnode."""
    return draft.distribution


PLANTED: Final[Mapping[str, tuple[object, str, Callable[..., object], str]]] = MappingProxyType(
    {
        "same": (stage_blocks, "unchanged", unrestricted, "select x.a, y.s from t3 x join t2 y on x.a = y.a"),
        "touched": (
            stage_blocks.BlockPrinter, "touched", touched_before,
            "select x.id, y.v from t1 x left join t2 y on y.s = x.s",
        ),
        "null group": (stage_sql, "live_version", without_null, "select distinct f, a from t3"),
        "null part": (stage_parts, "_same_part", of_values, "select n, min(x) as x from t3 group by n"),
        "empty part": (
            stage_sql, "whole", never_empty,
            "select max(x.b) as b from t1 x join t4 y on x.b = y.b and x.b = 77",
        ),
        "empty group": (stage_sql, "_with_always", only_rows, "select count(*) from t1 where b = 77"),
        "count of none": (
            aggregates, "_counted", uncounted,
            "select x.id, (select count(*) from t2 y where y.v = x.b) as n from t1 x",
        ),
        "digits": (
            measures.Measures, "_scale", unscaled,
            "select f, sum(coalesce(n, 0)) as z, sum(case when a > 1 then n * 1.50 else a end) as s from t3 group by f",
        ),
        "vnode": (
            finishing, "_distribution", of_driver,
            ("select z.a, q.x from t2 z left join (select l.id, r.a, r.s, r.x from t1 l left join t2 r on r.v <> 7) q "
            "on q.id = z.v and q.a = z.a and q.s = z.s"),
        ),
        "parentheses": (
            tables, "_is_item", item,
            "select x.id from t1 x join ((select id as i from t4) s join t2 y on y.v = s.i) on x.a = y.a",
        ),
    }
)  # fmt: skip
"""Where a bug is planted, and a query like those of the generator that shows it."""


def lived(url: str, query: str, seed: int) -> Outcome:
    """Live through a world with one query."""
    case = Case(seed, 0, query)
    asyncio.run(live(url, [case]))
    return case.outcome


@pytest.mark.parametrize("name", sampled(PLANTED))
def test_schedules_find_a_planted_bug(postgres_url: str, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    module, attribute, planted, query = PLANTED[name]
    with monkeypatch.context() as patch:
        patch.setattr(module, attribute, planted)
        seed = next((one for one in range(1, 13) if lived(postgres_url, query, one) is Outcome.FAILED), None)
    assert seed is not None
    assert lived(postgres_url, query, seed) is Outcome.PLANNED
