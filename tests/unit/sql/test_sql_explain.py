"""The plan of a view as text."""

from dataclasses import replace

from service.domain.strategy import Strategy
from service.protocol.barrier import ScanLimits
from service.protocol.columns import Column, ColumnType, ComputedColumn, KeyColumn
from service.protocol.ids import RelationId
from service.protocol.plan import Pushdown, ScanType, Stateless
from service.protocol.relation import Relation, RelationKind
from service.protocol.stage import EngineChoice
from service.sql.views.explain import SCAN_ENGINE, PlannedScan, plan_text

INT = ColumnType.parse("int")
VIEW = Relation(
    id=RelationId(0),
    name="m",
    kind=RelationKind.MATERIALIZED_VIEW,
    columns=(Column(name="v", type=INT), Column(name="_key_id", type=INT, hidden=True)),
    key=(KeyColumn(name="_key_id", descending=True), KeyColumn(name="v")),
    vnode_count=8,
)
COPIED = PlannedScan("t", Stateless(projection=("v", "id"), pushdown=Pushdown(columns=("v", "id"))), 2, None)
COMPUTED = PlannedScan("u", Stateless(projection=("v + 1", "id"), predicate="v > 0"), 3, 0)

HISTORY = "spark from 100000 rows on, store below: jobs of Spark would take longer than the rows"
CHANGES = "spark from 1000000 changed rows of an epoch on, store below"
BESIDE = "spark in epochs that read both, because it compares changes with what was read"


def test_the_choice_of_a_user() -> None:
    scan = replace(COPIED, query=COPIED.query.model_copy(update={"engine": EngineChoice.SPARK}))
    lines = plan_text(VIEW, [scan], Strategy(ScanType.SNAPSHOT_BACKFILL, "so it is"), (), ScanLimits())
    assert lines[2:4] == tuple(
        f"    engine of {one}: spark, because stage_engine is spark" for one in ("history", "changes")
    )


def test_one_scan() -> None:
    assert plan_text(VIEW, [COPIED], Strategy(ScanType.BACKFILL, "so it is asked"), (), ScanLimits()) == (
        "StreamMaterialize { name: m, columns: [v, _key_id(hidden)], key: [_key_id DESC, v], vnodes: 8 }",
        "└─StreamTableScan { table: t, type: BACKFILL, parallelism: 2 }",
        f"    engine of history: {HISTORY}; {BESIDE}",
        f"    engine of changes: {CHANGES}; {BESIDE}",
        "    projection: v, id",
        "Backfill strategy: BACKFILL, because so it is asked",
        "Backfill order: NONE",
    )


def test_u2_a_choice_without_effect_is_said() -> None:
    lines = plan_text(
        VIEW, [COPIED], Strategy(ScanType.BACKFILL, "so it is asked"), (), ScanLimits(), notice=SCAN_ENGINE
    )
    assert lines[-1].startswith("Note: stage_engine is store, and Spark computes what")


def test_a_worker_of_its_own() -> None:
    strategy = Strategy(ScanType.SNAPSHOT_BACKFILL, "so it is")
    assert plan_text(VIEW, [COPIED], strategy, (), ScanLimits(), serverless=True)[-1] == (
        "Backfill worker: its own, until the job merges"
    )


def test_several_scans_in_an_order() -> None:
    strategy = Strategy(ScanType.ARRANGEMENT_BACKFILL, "so it is")
    lines = plan_text(VIEW, [COPIED, COMPUTED], strategy, (("t", "u"),), ScanLimits())
    begins = (
        "├─StreamTableScan { table: t, type: ARRANGEMENT_BACKFILL,",
        "│   engine of history: spark from 100000 rows on",
        "│   engine of changes: spark from 1000000 changed rows",
        "│   projection: v, id",
        "└─StreamTableScan { table: u, type: ARRANGEMENT_BACKFILL,",
        "    engine of history: spark, because only spark",
        "    engine of changes: spark, because only spark",
        "    projection: v + 1, id",
        "    predicate: v > 0",
        "Backfill strategy: ARRANGEMENT_BACKFILL, because so it is",
        "Backfill order: FIXED(t -> u)",
    )
    assert all(line.startswith(begin) for line, begin in zip(lines[1:], begins, strict=True)), lines
    assert "parallelism: 3, rate_limit: 0 }" in lines[5]


def test_columns_that_the_store_computes() -> None:
    computed = ComputedColumn(name="_tidefill_computed_0", type=INT, expression="(j ->> 'k')::integer")
    scan = PlannedScan("t", Stateless(projection=("_tidefill_computed_0", "id"), computed=(computed,)), 2, None)
    lines = plan_text(VIEW, [scan], Strategy(ScanType.BACKFILL, "so it is asked"), (), ScanLimits())
    assert lines[4:6] == (
        "    computed by the state store: _tidefill_computed_0 = (j ->> 'k')::integer",
        "    projection: _tidefill_computed_0, id",
    )
