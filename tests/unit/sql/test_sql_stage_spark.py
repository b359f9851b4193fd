"""The Spark texts of a stage: what has one, what the state store alone computes and why."""

from dataclasses import replace
from string import ascii_lowercase, ascii_uppercase
from typing import Final

import pytest

from service.domain.errors import Conflict, Invalid
from service.domain.parameters import parse_session_variable
from service.domain.stage_engine import asked_engine, check_verifiable, with_engine
from service.protocol.columns import Column, ColumnType, KeyColumn
from service.protocol.ids import RelationId
from service.protocol.relation import Relation, RelationKind
from service.protocol.stage import Aggregate, Engine, EngineChoice, Join, JoinKind, Partition, Stage, Value
from service.protocol.stage_spark import engine_of, spark_reason, verify_reason
from service.sql.queries.relations import ONE as ONE_ROW
from tests.support.stage_cases import CASES, TABLES, join, on, values
from tests.support.state_store import relation
from tests.support.trees import with_spark
from workers.backfill.stages import BoundStage
from workers.queries.stage_spark import used_columns

KINDS: Final = {
    "id": "bigint",
    "i": "integer",
    "n": "numeric(12,2)",
    "m": "numeric(20,6)",
    "w": "numeric(38,10)",
    "d": "double precision",
    "t": "text",
    "j": "jsonb",
    "s": "numeric",
    "u": "numeric",
    "f": "numeric(30,29)",
    "ts": "timestamp",
}
ONE: Final = relation(1, "one", KINDS, "id")
DECIMAL: Final = (
    "(case when $ rlike '[.][0-9]{20}[0-9]*[1-9]' then raise_error('only the state store computes with a numeric of"
    " more than 20 digits behind the point: SET stage_engine = store') else cast($ as decimal(38,20)) end)"
)
"""Spark computes with a numeric without a precision so, .."""
FRACTION: Final = (
    "(case when $ rlike '[.][0-9]{38}[0-9]*[1-9]' then raise_error('more than 38 digits behind the point are not"
    " supported in a view') else cast(concat(case when startswith($, '-') then '-' else '' end, '0.',"
    " split_part($, '.', 2)) as decimal(38,38)) end)"
)
""".. and compares its fraction so."""
RELATIONS: Final = {ONE.id: ONE}
INNER: Final = Join(kind=JoinKind.INNER, inputs=join(JoinKind.INNER, "a i0").inputs)


def target(**kinds: str) -> Relation:
    return Relation(
        id=RelationId(9),
        name="target",
        kind=RelationKind.MATERIALIZED_VIEW,
        columns=tuple(Column(name=name, type=ColumnType.parse(kind)) for name, kind in kinds.items()),
        key=(KeyColumn(name=next(iter(kinds))),),
    )


def value(text: str, kind: str) -> Value:
    """Return a value of a stage over one input with its Spark text."""
    planned = with_spark(Stage(joins=(INNER,), rows=values(v=text)), RELATIONS, target(v=kind))
    return planned.rows[0]


def measure(text: str, kind: str) -> Value:
    """Return a measure of a stage over one input with its Spark text."""
    stage = Stage(
        joins=(INNER,),
        rows=values(k="i0.id", c="1::bigint", v=text),
        aggregate=Aggregate(keys=("k",), measures=("c", "v")),
        distribution=("k",),
    )
    return with_spark(stage, RELATIONS, target(k="bigint", c="bigint", v=kind)).rows[2]


@pytest.mark.parametrize(
    ("text", "kind", "spark"),
    [
        ("i0.i", "integer", "`i0__i`"),
        ("i0.i", "bigint", "cast(`i0__i` as bigint)"),
        ("i0.i + 1", "integer", "(`i0__i` + 1)"),
        ("i0.n", "numeric(20,4)", "cast(`i0__n` as decimal(20,4))"),
        ("i0.s", "numeric", "`i0__s`"),
        ("i0.n * 2", "numeric", "cast((`i0__n` * cast(2 as decimal(10,0))) as string)"),
        ("'it''s'", "text", "'it\\'s'"),
        ("upper(i0.t)", "text", f"translate(`i0__t`, '{ascii_lowercase}', '{ascii_uppercase}')"),
        ("lower(i0.t || 'A')", "text", f"translate(concat(`i0__t`, 'A'), '{ascii_uppercase}', '{ascii_lowercase}')"),
    ],
)
def test_a_value_has_exactly_the_type_of_its_column(text: str, kind: str, spark: str) -> None:
    assert (value(text, kind).spark, value(text, kind).refusal) == (spark, None)


@pytest.mark.parametrize(
    ("text", "kind", "why"),
    [
        ("i0.n", "numeric(12,1)", "has type numeric(12,2), and the column numeric(12,1)"),
        ("i0.i", "text", "has type integer, and the column text"),
        ("i0.d", "real", "has type double precision, and the column real"),
        ("i0.n / 3", "numeric", "numeric / numeric is not supported"),
        ("coalesce(i0.n, 0)", "numeric", "and the column numeric"),
        ("case when i0.i > 0 then i0.n else i0.m end", "numeric", "and the column numeric"),
        ("i0.w * i0.w", "numeric", "and the column numeric"),
        ("i0.s + 1", "numeric", "and the column numeric"),
        ("i0.d::text", "text", "Spark writes floats differently"),
        ("i0.j ->> 'a'", "text", "Spark reads JSON numbers as floats"),
        ("date_bin('1 month', i0.ts, i0.ts)", "timestamp", "a stride above zero, without months"),
        ("date_bin('0 seconds', i0.ts, i0.ts)", "timestamp", "a stride above zero, without months"),
        ("date_bin('1 day', i0.ts::date, '2001-01-01')", "timestamptz", "date_bin of a value of type date"),
        ("upper(i0.t || 'ä')", "text", "changes the case of such a text"),
        ("i0.t ilike 'a%'", "boolean", "ignores case"),
        ("i0.t not ilike 'a%' escape 'b'", "boolean", "ignores case"),
        ("regexp_count(i0.t, 'a')", "integer", "function regexp_count is not supported"),
        ("exp(i0.d)", "double precision", "Spark's last digit differs"),
        ("(select 1)", "integer", "a subquery is not supported"),
    ],
)
def test_what_spark_does_not_compute_alike_is_the_stores_alone(text: str, kind: str, why: str) -> None:
    found = value(text, kind)
    assert found.spark is None
    assert why in (found.refusal or "")


@pytest.mark.parametrize(
    ("text", "kind", "spark"),
    [
        ("1::bigint", "bigint", "decimal(20,0)"),
        ("i0.n::numeric", "numeric", "decimal(12,2)"),
        ("(case when i0.n is not null then (i0.n)::numeric else 0 end)::numeric", "numeric", "decimal(12,2)"),
        ("(case when i0.i > 1 then 1 else 0 end)::bigint", "bigint", "decimal(20,0)"),
    ],
)
def test_a_measure_is_a_decimal_with_room_for_its_sum(text: str, kind: str, spark: str) -> None:
    found = measure(text, kind)
    assert found.spark is not None, found.refusal
    assert found.spark.endswith(f" as {spark})")
    assert found.long_scale is None


@pytest.mark.parametrize(
    ("text", "spark", "scale"),
    [
        ("i0.w::numeric", "decimal(38,10)", 10),
        ("(i0.n * (1 - i0.n))::numeric", "decimal(26,4)", None),
        ("(i0.m * i0.n)::numeric", "decimal(33,8)", 8),
        ("(i0.m * i0.m * i0.n)::numeric", "decimal(38,14)", 14),
        ("(case when i0.i > 0 then i0.w else 0 end)::numeric", "decimal(38,10)", 10),
    ],
)
def test_a_long_measure_is_summed_in_two_parts(text: str, spark: str, scale: int | None) -> None:
    found = measure(text, "numeric")
    assert found.spark is not None, found.refusal
    assert (found.spark.rpartition(" as ")[2], found.long_scale) == (f"{spark})", scale)


@pytest.mark.parametrize(
    ("text", "spark"),
    [
        ("i0.s is null", "(`i0__s` is null)"),
        ("i0.s = i0.u", "(<i0__s> = <i0__u> and {i0__s} = {i0__u})"),
        ("(i0.s) > i0.n", "(<i0__s> > W or (<i0__s> = W and {i0__s} > F))"),
        ("i0.s + 1 > i0.n", "(([i0__s] + cast(1 as decimal(10,0))) > `i0__n`)"),
        ("0.5 * i0.s < i0.n", "((0.5BD * [i0__s]) < `i0__n`)"),
        ("i0.s::numeric(10,2) = i0.n", "((cast([i0__s] as decimal(10,2))) = `i0__n`)"),
    ],
)
def test_a_numeric_without_a_precision_is_compared_as_a_text_or_a_decimal(text: str, spark: str) -> None:
    stage = with_spark(Stage(joins=(INNER,), where=(on(text),), rows=values(v="i0.i")), RELATIONS, target(v="integer"))
    rest = "(`i0__n` % 1BD)"
    spark = spark.replace("W", f"cast((`i0__n` - {rest}) as decimal(38,0))").replace(
        "F", f"cast({rest} as decimal(38,38))"
    )
    for name in ("i0__s", "i0__u"):
        spark = spark.replace(f"<{name}>", f"cast(split_part(`{name}`, '.', 1) as decimal(38,0))")
        spark = spark.replace(f"{{{name}}}", FRACTION.replace("$", f"`{name}`"))
        spark = spark.replace(f"[{name}]", DECIMAL.replace("$", f"`{name}`"))
    assert (stage.where[0].spark, stage.where[0].refusal) == (spark, None)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("i0.f::numeric", "at most 28 digits behind the point exactly, and this number has 29"),
        ("(i0.d)::text::numeric", "Spark writes floats differently"),
        ("i0.d", "cannot sum a value of type double precision exactly"),
    ],
)
def test_a_sum_that_could_overflow_or_round_is_the_stores_alone(text: str, why: str) -> None:
    assert why in (measure(text, "numeric").refusal or "")


def planned(place: int) -> Stage:
    case = CASES[place]
    return with_spark(case.stage, {table.id: table for table in TABLES.values()}, case.target)


def test_every_case_is_computed_by_spark() -> None:
    for place, case in enumerate(CASES):
        stage = planned(place)
        assert spark_reason(stage) is None, (case.name, spark_reason(stage))
        assert with_spark(stage, {table.id: table for table in TABLES.values()}, case.target) == stage
    assert spark_reason(CASES[0].stage) == '("i0"."x" = "i1"."id"): it was planned without Spark'


@pytest.mark.parametrize(
    "joins",
    [
        (join(JoinKind.INNER, "a i0, b i1", "i0.x < i1.id"),),
        (join(JoinKind.INNER, "a i0"), join(JoinKind.LEFT, "b i1", "i0.x < i1.id")),
        (join(JoinKind.INNER, "a i0"), join(JoinKind.SEMI, "b i1", "i1.x > 3")),
        (join(JoinKind.INNER, "a i0"), join(JoinKind.LEFT, "b i1, c i2", "i0.x = i1.id", "i0.x = i2.id")),
    ],
)
def test_rows_that_no_equality_joins_are_the_stores_alone(joins: tuple[Join, ...]) -> None:
    stage = Stage(joins=joins, rows=values(v="i0.x"))
    found = with_spark(stage, {table.id: table for table in TABLES.values()}, target(v="bigint"))
    assert "without an equality" in (spark_reason(found) or "")


def test_beside_one_row_no_equality_is_needed() -> None:
    b = TABLES["b"]
    one = b.model_copy(update={"columns": (*b.columns, Column(name=ONE_ROW, type=ColumnType.parse("smallint")))})
    relations = {table.id: table for table in TABLES.values()}
    single = relations | {b.id: one.model_copy(update={"key": (KeyColumn(name=ONE_ROW),)})}
    apart = (
        join(JoinKind.INNER, "a i0"),
        join(JoinKind.LEFT, "b i1", "i0.x < i1.id"),
        join(JoinKind.INNER, "b i2"),
        join(JoinKind.ANTI, "b i3", "i3.x > i0.x"),
    )
    for joins in (apart, (join(JoinKind.INNER, "b i0, a i1"),), (join(JoinKind.INNER, "a i0, b i1, b i2"),)):
        stage = Stage(joins=joins, rows=values(v="i0.x"))
        assert "without an equality" in (spark_reason(with_spark(stage, relations, target(v="bigint"))) or "")
        assert spark_reason(with_spark(stage, single, target(v="bigint"))) is None
    both = Stage(joins=(join(JoinKind.INNER, "b i0, a i1, c i2"),), rows=values(v="i0.x"))
    assert "without an equality" in (spark_reason(with_spark(both, single, target(v="bigint"))) or "")


def test_the_engine_follows_the_choice_the_format_and_what_spark_can() -> None:
    able, unable = planned(0), CASES[0].stage

    def chosen(stage: Stage, choice: EngineChoice, *, store_engine: bool) -> Engine | None:
        return engine_of(
            stage.model_copy(update={"engine": choice}), None if store_engine else "the table format has no engine"
        )[0]

    auto, spark, store = EngineChoice
    assert chosen(able, auto, store_engine=True) is None
    assert chosen(able, auto, store_engine=False) is Engine.SPARK
    assert chosen(able, spark, store_engine=True) is Engine.SPARK
    assert chosen(able, store, store_engine=True) is Engine.STORE
    assert chosen(able, store, store_engine=False) is Engine.SPARK
    assert chosen(unable, spark, store_engine=True) is Engine.STORE
    assert chosen(unable, auto, store_engine=True) is Engine.STORE
    assert "planned without Spark" in engine_of(unable, None)[1]


def test_a_session_that_asks_spark_for_more_than_it_can_is_refused() -> None:
    assert asked_engine({}) is EngineChoice.AUTO
    assert asked_engine({"stage_engine": parse_session_variable("stage_engine", " Spark ")}) is EngineChoice.SPARK
    with pytest.raises(Invalid, match='only "auto" or "spark" or "store" is supported as "stage_engine"'):
        parse_session_variable("stage_engine", "duckdb")
    assert with_engine(planned(0), EngineChoice.SPARK).engine is EngineChoice.SPARK
    assert with_engine(CASES[0].stage, EngineChoice.AUTO).engine is EngineChoice.AUTO
    with pytest.raises(
        Invalid, match=r"only the state store can compute a stage of this view: .*planned without Spark"
    ):
        with_engine(CASES[0].stage, EngineChoice.SPARK)


def test_verification_by_spark_needs_the_results_of_groups_too() -> None:
    whole = planned(7)
    assert verify_reason(whole) is None
    check_verifiable("v", [planned(0), whole], created=True)
    check_verifiable("v", [], created=False)
    with pytest.raises(Conflict, match="is being created"):
        check_verifiable("v", [whole], created=False)
    case = replace(CASES[7])
    assert case.stage.aggregate is not None
    results = (Value(name="total", sql="s::numeric / n"),)
    stage = case.stage.model_copy(update={"aggregate": case.stage.aggregate.model_copy(update={"results": results})})
    divided = with_spark(stage, {table.id: table for table in TABLES.values()}, case.target)
    assert spark_reason(divided) is None
    with pytest.raises(Conflict, match="numeric / numeric is not supported"):
        check_verifiable("v", [divided], created=True)


def test_an_expression_tells_which_columns_it_reads() -> None:
    stage = Stage(
        joins=(join(JoinKind.INNER, "a i0, b i1", "i0.x = i1.id"),),
        where=(on("i1.v > 1"),),
        rows=values(v="i0.x", w="'`i1__x`'"),
    )
    relations = {table.id: table for table in TABLES.values()}
    found = with_spark(stage, relations, target(v="bigint", w="text"))
    assert [one.reads for one in (*found.conditions, *found.rows)] == [
        (("i0", "x"), ("i1", "id")), (("i1", "v"),), (("i0", "x"),), ()
    ]  # fmt: skip
    bound = BoundStage(found, target(v="bigint", w="text"), relations)
    assert [one.name for one in used_columns(bound, ["i1"]).columns] == ["id", "v"], "a text that looks like x is none"
    before = BoundStage(stage, bound.target, relations)
    assert used_columns(before, ["i1"]) == TABLES["b"], "planned before, so that all may be read"


def test_a_part_reads_what_its_query_names() -> None:
    relations = {table.id: table for table in TABLES.values()}
    for text, reads in {
        "select x as v, min(id) as w from part group by x": ("id", "x"),
        "select v, x as w from (select *, row_number() over (order by v, id) as r from part) q": ("id", "x", "v"),
    }.items():
        stage = Stage(
            joins=(join(JoinKind.INNER, "a i0"),),
            rows=(),
            partition=Partition(columns=(), sql=text),
            distribution=("v",),
        )
        found = with_spark(stage, relations, target(v="bigint", w="bigint"))
        assert found.partition is not None
        assert found.partition.refusal is None
        assert found.partition.reads == tuple(("i0", name) for name in reads)


def test_conditions_have_a_spark_text() -> None:
    stage = Stage(joins=(INNER,), where=(on("i0.x = 1 or i0.v is null"),), rows=values(v="i0.v"))
    found = with_spark(stage, {table.id: table for table in TABLES.values()}, target(v="bigint"))
    assert found.where[0].spark == "((`i0__x` = 1) or (`i0__v` is null))"
