"""The plan of a view of stages as text."""

from service.domain.strategy import Strategy
from service.protocol.columns import Column, ColumnType, KeyColumn
from service.protocol.ids import RelationId
from service.protocol.plan import ScanType
from service.protocol.relation import Relation, RelationKind
from service.protocol.stage import (
    Aggregate,
    Condition,
    EngineChoice,
    Input,
    Join,
    JoinKind,
    Partition,
    Side,
    Stage,
    Value,
    lookup_index,
    lookups,
)
from service.sql.views.backfill_order import Edges
from service.sql.views.explain_costs import Known
from service.sql.views.explain_stages import ExplainedScan, ExplainedStage, stages_text


def relation(number: int, name: str) -> Relation:
    columns = (Column(name="id", type=ColumnType.parse("bigint")), Column(name="k", type=ColumnType.parse("text")))
    kind = RelationKind.MATERIALIZED_VIEW
    return Relation(id=RelationId(number), name=name, kind=kind, columns=columns, key=(KeyColumn(name="id"),))


RELATIONS = {one.id: one for one in (relation(1, "t"), relation(2, "u"), relation(-1, "__m_1"), relation(0, "m"))}
EQUAL = Condition(
    sql='"a"."k" = "b"."k"',
    inputs=("a", "b"),
    equal=(
        Side(sql='"a"."k"', inputs=("a",), alias="a", column="k"),
        Side(sql='"b"."k"', inputs=("b",), alias="b", column="k"),
    ),
)
GROUPED = Stage(
    joins=(
        Join(kind=JoinKind.INNER, inputs=(Input(alias="a", relation=RelationId(1)),)),
        Join(kind=JoinKind.LEFT, inputs=(Input(alias="b", relation=RelationId(2)),), on=(EQUAL,)),
    ),
    where=(Condition(sql='"a"."id" > 0', inputs=("a",)),),
    rows=(Value(name="id", sql='"a"."id"'), Value(name="n", sql="1")),
    aggregate=Aggregate(keys=("id",), measures=("n",)),
)
NEWEST = Stage(
    joins=(Join(kind=JoinKind.INNER, inputs=(Input(alias="s", relation=RelationId(-1)),)),),
    partition=Partition(columns=("k",), sql="select * from part"),
)


def test_stages_in_order() -> None:
    stages = [
        ExplainedStage(GROUPED, RELATIONS[RelationId(-1)], [ExplainedScan(2, None)], lookups(GROUPED, RELATIONS)),
        ExplainedStage(NEWEST, RELATIONS[RelationId(0)], [ExplainedScan(2, 7)], lookups(NEWEST, RELATIONS)),
    ]
    missing = {lookup_index(RELATIONS[RelationId(2)], ["k"])}
    strategy = Strategy(ScanType.SNAPSHOT_BACKFILL, "it is the default")
    assert stages_text(
        RELATIONS[RelationId(0)], stages, RELATIONS, missing, Known(), strategy, (), serverless=True
    ) == (
        "StreamMaterialize { name: m, columns: [id, k], key: [id], vnodes: 256 }",
        (
            "├─StreamStage { stage: 1, target: __m_1, operator: aggregate, engine: store, type: SNAPSHOT_BACKFILL,"
            " parallelism: 2 }"
        ),
        '│   engine of history: store, because "a"."k" = "b"."k": it was planned without Spark',
        '│   engine of changes: store, because "a"."k" = "b"."k": it was planned without Spark',
        "│   input: t a, driver, unknown rows",
        "│   left join: u b, unknown rows",
        '│     on: "a"."k" = "b"."k"',
        '│   where: "a"."id" > 0',
        "│   group by: [id], sums: [n]",
        "│   stores: name: __m_1, columns: [id, k], key: [id], vnodes: 256",
        "│   index: t (k), exists, unknown size",
        "│   index: u (k), to be built, unknown size",
        (
            "│   one changed row of t a: looks up u b by (k), unknown rows; adds to the sums of an unknown number of"
            " groups"
        ),
        (
            "│   one changed row of u b: looks up t a by (k), unknown rows; adds to the sums of an unknown number of"
            " groups"
        ),
        (
            "└─StreamStage { stage: 2, target: m, operator: partition, engine: store, type: SNAPSHOT_BACKFILL,"
            " parallelism: 2, rate_limit: 7 }"
        ),
        "    engine of history: store, because it was planned without Spark",
        "    engine of changes: store, because it was planned without Spark",
        "    input: __m_1 s, driver",
        "    computed again by: [k]",
        "    index: __m_1 (k), made with its table",
        "    one changed row: computes a part of unknown rows again",
        "Backfill strategy: SNAPSHOT_BACKFILL, because it is the default",
        "Backfill order: each stage after those that it reads",
        "Backfill worker: its own, until the job merges",
    )


def projection(number: int, spark: str | None) -> Stage:
    one = Input(alias="i0", relation=RelationId(number))
    where = Condition(sql='("i0"."id" > 0)', spark=spark and "(`i0__id` > 0)", inputs=("i0",))
    return Stage(
        joins=(Join(kind=JoinKind.INNER, inputs=(one,), on=(where,)),),
        rows=(Value(name="id", sql='"i0"."id"', spark=spark), Value(name="k", sql="lower(k)", spark=spark)),
    )


def explained(stages: list[Stage], strategy: Strategy, order: Edges = (), *, limit: int | None = None) -> list[str]:
    view = RELATIONS[RelationId(0)]
    shown = [ExplainedStage(one, view, [ExplainedScan(2, limit)], ()) for one in stages]
    return list(stages_text(view, shown, RELATIONS, (), Known(), strategy, order))


def test_a_projection() -> None:
    assert explained([projection(1, "x")], Strategy(ScanType.BACKFILL, "so it is asked"), limit=0) == [
        "StreamMaterialize { name: m, columns: [id, k], key: [id], vnodes: 256 }",
        (
            "└─StreamStage { stage: 1, target: m, operator: projection, engine: by rows, type: BACKFILL,"
            " parallelism: 2, rate_limit: 0 }"
        ),
        "    engine of history: spark from 100000 rows on, store below: jobs of Spark would take longer than the rows",
        "    engine of changes: spark from 1000000 changed rows of an epoch on, store below",
        '    projection: "i0"."id", lower(k)',
        "    input: t i0, driver, unknown rows",
        '      where: ("i0"."id" > 0)',
        "    one changed row of t i0: rewrites at most 1 row",
        "Backfill strategy: BACKFILL, because so it is asked",
        "Backfill order: NONE",
    ]


def test_projections_in_an_order() -> None:
    """They interleave as they are asked to, also in an Arrangement backfill."""
    strategy = Strategy(ScanType.ARRANGEMENT_BACKFILL, "so it is")
    lines = explained([projection(1, "x"), projection(2, None)], strategy, (("t", "u"),))
    assert [line for line in lines if "StreamStage" in line] == [
        (
            "├─StreamStage { stage: 1, target: m, operator: projection, engine: by rows, type: ARRANGEMENT_BACKFILL,"
            " parallelism: 2 }"
        ),
        (
            "└─StreamStage { stage: 2, target: m, operator: projection, engine: store, type: ARRANGEMENT_BACKFILL,"
            " parallelism: 2 }"
        ),
    ]
    assert '    engine of history: store, because ("i0"."id" > 0): it was planned without Spark' in lines
    assert lines[-1] == "Backfill order: FIXED(t -> u)"


def test_the_choice_of_a_user() -> None:
    stage = projection(1, "x").model_copy(update={"engine": EngineChoice.SPARK})
    lines = explained([stage], Strategy(ScanType.SNAPSHOT_BACKFILL, "so it is"))
    assert lines[2:4] == [
        f"    engine of {one}: spark, because stage_engine is spark" for one in ("history", "changes")
    ]


def test_operators_with_their_scans() -> None:
    scans = [ExplainedScan(2, None, "a"), ExplainedScan(3, 7, "b")]
    stages = [
        ExplainedStage(GROUPED, RELATIONS[RelationId(-1)], scans, ()),
        ExplainedStage(NEWEST, RELATIONS[RelationId(0)], [], ()),
    ]
    strategy = Strategy(ScanType.ARRANGEMENT_BACKFILL, "a variable is off")
    text = stages_text(RELATIONS[RelationId(0)], stages, RELATIONS, (), Known(), strategy, (("u", "t"),))
    why = "store, because only the store looks up rows within what was read of each input"
    assert text[1:6] == (
        "├─StreamStage { stage: 1, target: __m_1, operator: aggregate, engine: store }",
        f"│   engine of history: {why}",
        f"│   engine of changes: {why}",
        "│   StreamTableScan { table: t, input: a, type: ARRANGEMENT_BACKFILL, parallelism: 2 }",
        "│   StreamTableScan { table: u, input: b, type: ARRANGEMENT_BACKFILL, parallelism: 3, rate_limit: 7 }",
    )
    assert text[-8:] == (
        f"    engine of history: {why}",
        f"    engine of changes: {why}",
        "    input: __m_1 s, driver",
        "    computed again by: [k]",
        "    one changed row: computes a part of unknown rows again",
        "Backfill strategy: ARRANGEMENT_BACKFILL, because a variable is off",
        "Backfill order: FIXED(u -> t)",
        "Note: groups and padded rows are written again while their inputs are read",
    )
