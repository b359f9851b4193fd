"""Which stages a query becomes: their number, inputs, keys and conditions, without any database."""

import pickle
from collections.abc import Sequence

import pytest

from service.protocol.columns import Column, ColumnType, KeyColumn
from service.protocol.ids import RelationId
from service.protocol.relation import Relation, RelationKind
from service.protocol.stage import Aggregate, JoinKind, Stage
from service.sql.queries.drafts import Draft
from service.sql.queries.finishing import description, finished
from service.sql.queries.plan import plan_query
from service.sql.text.tokens import tokenize
from service.sql.text.tree import Tree, parse_tree


def _relation(number: int, name: str, columns: str, key: str) -> Relation:
    pairs = [column.strip().split(" ", 1) for column in columns.split(",")]
    return Relation(
        id=RelationId(number),
        name=name,
        kind=RelationKind.TABLE,
        columns=tuple(
            Column(name=label, type=ColumnType.parse(kind.rstrip("!")), nullable=not kind.endswith("!"))
            for label, kind in pairs
        ),
        key=tuple(KeyColumn(name=label) for label in key.split()),
    )


RELATIONS = {
    "fact": _relation(1, "fact", "id bigint!, dim bigint, x integer, y integer!, f double precision, t text", "id"),
    "dim": _relation(2, "dim", "id bigint!, name text, far bigint", "id"),
    "far": _relation(3, "far", "id bigint!, name text", "id"),
    "line": _relation(4, "line", "doc bigint!, no integer!, n numeric, f double precision", "doc no"),
    "rough": _relation(5, "rough", "id double precision!, v text", "id"),
}


def _tree(text: str) -> Tree:
    return parse_tree(text, tokenize(text))


def _plan(text: str, names: str, views: dict[str, str] | None = None) -> Sequence[Draft]:
    return plan_query(_tree(text), RELATIONS, {name: _tree(sql) for name, sql in (views or {}).items()}, names.split())


def _key(draft: Draft) -> list[str]:
    return [part.name for part in draft.key]


def test_the_fact_drives_and_its_dimensions_add_nothing_to_the_key() -> None:
    text = "select far.name, fact.id from far join dim on dim.far = far.id join fact on fact.dim = dim.id"
    (draft,) = _plan(text, "name id")
    assert [one.relation for one in draft.joins[0].inputs] == [1, 3, 2]
    assert _key(draft) == ["id"]
    assert draft.distribution == ()
    assert draft.columns[: draft.visible] == ("name", "id")


def test_an_input_that_is_not_determined_adds_only_what_is_missing_of_its_key() -> None:
    (draft,) = _plan("select fact.id, line.n from fact join line on line.doc = fact.x", "id n")
    assert _key(draft) == ["id", "_key_no"]
    (draft,) = _plan("select fact.id, line.n from fact join line on line.doc = fact.x and line.no = 3", "id n")
    assert _key(draft) == ["id"]


def test_a_float_does_not_determine_a_bigint_that_equals_it() -> None:
    (draft,) = _plan("select rough.id, fact.id as fid from rough join fact on fact.id = rough.id", "id fid")
    assert _key(draft) == ["fid"], "every bigint equals one float, but several bigints equal the same"


def test_an_equality_in_every_branch_of_an_or_is_a_condition_of_its_own() -> None:
    text = (
        "select f.id from fact f, dim d where (f.dim = d.id and f.x = 1) or (d.id = f.dim and f.x = 2 and f.dim = d.id)"
    )
    (draft,) = _plan(text, "id")
    assert [one.sql for one in draft.joins[0].on if one.equal] == ['("i0"."dim" = "i1"."id")']
    assert _key(draft) == ["id"]


@pytest.mark.parametrize(
    ("where", "kinds"),
    [
        ("d.name = 'a'", ["inner"]),
        ("d.name is not null", ["inner"]),
        ("d.name in ('a', 'b') or d.far > 3", ["inner"]),
        ("not (d.name = 'a')", ["inner"]),
        ("d.name is null", ["inner", "left"]),
        ("coalesce(d.far, 1) = 1", ["inner", "left"]),
        ("d.far <> all (array[]::bigint[])", ["inner", "left"]),
        ("d.name = 'a' or f.x = 1", ["inner", "left"]),
    ],
)
def test_a_left_join_becomes_an_inner_one_if_a_condition_rejects_its_padding(where: str, kinds: list[str]) -> None:
    (draft,) = _plan(f"select f.id, d.name from fact f left join dim d on d.id = f.dim where {where}", "id name")
    assert [join.kind for join in draft.joins] == kinds
    assert bool(draft.where) == (kinds != ["inner"])


def test_exists_and_not_exists_are_groups_that_add_nothing_to_the_key() -> None:
    text = (
        "select id from fact where exists (select from dim join far on far.id = dim.far where dim.id = fact.dim) "
        "and not exists (select 1 from line where doc = fact.id and no < fact.x)"
    )
    (draft,) = _plan(text, "id")
    assert [(join.kind, len(join.inputs)) for join in draft.joins] == [
        (JoinKind.INNER, 1),
        (JoinKind.SEMI, 2),
        (JoinKind.ANTI, 1),
    ]
    assert _key(draft) == ["id"]


@pytest.mark.parametrize(
    ("text", "names", "stages"),
    [
        ("select t, count(*) + 1 as n from fact group by t", "t n", 1),
        ("select t, count(*) from fact group by t having count(*) > 1", "t count", 2),
        ("select t, max(x) from fact group by t having max(x) > 1", "t max", 1),
        ("select * from (select id, rank() over (partition by t order by x) as r from fact) q where r < 3", "id r", 1),
        ("select d.name, count(*) from fact f join dim d on d.id = f.dim group by d.name", "name count", 1),
        ("select d.name, max(x) from fact f join dim d on d.id = f.dim group by d.name", "name max", 2),
        ("select id from fact union all select id from dim union all select id from far", "id", 3),
        ("select x from (select x, y from fact group by x, y) q where y = 1", "x", 2),
        ("with q as (select x, count(*) as n from fact group by x) select a.x from q a join q b on a.n = b.x", "x", 2),
        ("select v.x from v join v w on w.x = v.n", "x", 2),
    ],
)  # fmt: skip
def test_the_number_of_stages(text: str, names: str, stages: int) -> None:
    drafts = _plan(text, names, {"v": "select x, count(*) as n from fact group by x"})
    assert len(drafts) == stages
    assert [draft.final for draft in drafts if draft.target != drafts[-1].target] == [False] * len(
        [draft for draft in drafts if draft.target != drafts[-1].target]
    )
    assert drafts[-1].final


def test_the_branches_of_a_union_write_one_relation_and_share_key_columns_of_one_type() -> None:
    drafts = _plan("select id from fact union all select id from dim union all select doc from line", "id")
    assert {draft.target for draft in drafts} == {0}
    assert _key(drafts[0]) == ["_key_branch", "_key_0", "_key_1"]
    assert drafts[0].distribution == ("_key_branch", "_key_0", "_key_1")
    assert [draft.rows[1].sql for draft in drafts] == [f"CAST({number} AS SMALLINT)" for number in range(3)]


def test_columns_that_nothing_reads_are_not_stored() -> None:
    text = "select q.x from (select x, y, max(f) as m, max(t) as t from fact group by x, y) q join dim on dim.id = q.m"
    hidden, _ = _plan(text, "x")
    assert hidden.columns == ("x", "y", "max"), "the key and what is joined by"


def test_a_partition_carries_the_key_of_its_input_and_ends_ties_by_it() -> None:
    (draft,) = _plan("select x, row_number() over (partition by t order by x) from fact", "x row_number")
    assert draft.partition is not None
    assert draft.partition.columns == ("t",)
    assert 'ORDER BY "part"."x", "part"."id"' in draft.partition.sql
    assert _key(draft) == ["_key_id"]


def test_only_common_columns_of_all_windows_divide_the_input() -> None:
    text = "select id, sum(x) over (partition by t, y), sum(x) over (partition by t) as s from fact"
    (draft,) = _plan(text, "id sum s")
    assert draft.partition is not None
    assert draft.partition.columns == ("t",)


def test_drafts_and_their_results_can_travel() -> None:
    drafts = _plan("select d.name, sum(f.x) from fact f join dim d on d.id = f.dim group by d.name", "name sum")
    assert pickle.loads(pickle.dumps(drafts)) == drafts


def _finished(text: str, names: str, types: Sequence[str]) -> tuple[list[str], dict[str, str], dict[str, str]]:
    (draft,) = _plan(text, names)
    known = {one.id: one for one in RELATIONS.values()}
    assert description(draft, known).startswith("select ")
    planned = finished(draft, types, known)
    assert planned.stage.aggregate is not None
    results = {one.name: one.sql for one in planned.stage.aggregate.results}
    columns = {one.name: str(one.type) for one in planned.relation.columns}
    return [one.sql for one in planned.stage.rows], results, columns


def test_sums_of_integers_share_their_measures_and_have_postgres_types() -> None:
    rows, results, columns = _finished(
        "select t, count(*), sum(y), avg(y), count(y) as c from fact group by t",
        "t count sum avg c",
        ["text", "integer", "integer", "integer", "bigint", "bigint", "numeric", "bigint",
         "bigint", "bigint", "numeric", "bigint"],
    )  # fmt: skip
    assert rows == ['"i0"."t"', "CAST(1 AS BIGINT)", 'CAST(CAST("i0"."y" AS DECIMAL) AS DECIMAL)'], (
        "y has no NULL: count(*) counts it"
    )
    assert results["sum"] == 'CASE WHEN "_key_m0" > 0 THEN CAST("_key_m1" AS BIGINT) END'
    mean = '(CAST("_key_m1" AS DECIMAL) / CAST("_key_m0" AS DECIMAL))'
    assert results["avg"] == f'CASE WHEN "_key_m0" > 0 THEN {mean} END'
    assert columns == {
        "t": "text", "count": "bigint", "sum": "bigint", "avg": "numeric", "c": "bigint", "_key_m0": "bigint",
        "_key_m1": "numeric",
    }  # fmt: skip


def test_a_float_adds_its_shortest_decimal_and_what_is_not_finite_is_counted() -> None:
    rows, results, _ = _finished(
        "select sum(f) from fact", "sum", ["smallint", "double precision", "double precision", "double precision"]
    )
    assert sum("AS TEXT) AS DECIMAL)" in sql for sql in rows) == 1
    assert sum("'NaN'" in sql and sql.endswith("AS BIGINT)") for sql in rows) == 1
    assert "'-Infinity'" in results["sum"]


def test_a_type_that_cannot_be_a_key_is_refused_where_it_stands() -> None:
    (draft,) = _plan("select to_jsonb(t) as j, count(*) from fact group by 1", "j count")
    with pytest.raises(Exception, match="cannot group by or distinguish rows by a value of type jsonb") as caught:
        finished(draft, ["jsonb", "bigint", "bigint"], {one.id: one for one in RELATIONS.values()})
    assert getattr(caught.value, "position", None) == 8


@pytest.mark.parametrize(
    ("text", "names", "projects"),
    [
        ("select id from fact where x > 1", "id", [True]),
        ("select id from fact union all (select id from dim)", "id", [True, True]),
        ("select id from simple", "id", [True]),
        ("select id from (select id from fact) q", "id", [True]),
        ("with q as (select id, x from fact) select id from q where x > 1", "id", [True]),
        ("select id from joined", "id", [False]),
        ("select f.id from fact f, dim", "id", [False]),
        ("select count(*) from fact", "count", [False]),
        ("select id from fact order by id limit 1", "id", [False]),
        ("select id from fact union select id from dim", "id", [True, True, False]),
        ("select id from fact where id in (select id from dim)", "id", [False]),
        ("select id, rank() over (order by id) from fact", "id rank", [False]),
    ],
)
def test_which_stages_compute_each_row_from_one_row(text: str, names: str, projects: list[bool]) -> None:
    drafts = _plan(
        text,
        names,
        {
            "simple": "select id from fact where x > 1",
            "joined": "select fact.id from fact join dim on dim.id = fact.dim",
        },
    )
    stages = [
        Stage(
            joins=draft.joins,
            partition=draft.partition,
            aggregate=draft.grouping and Aggregate(keys=(), measures=()),
        )
        for draft in drafts
    ]
    assert [stage.is_projection for stage in stages] == projects


def test_a_column_that_is_passed_on_is_known_by_its_name() -> None:
    (draft,) = _plan("select id as key, (x), x + 1 as next, 1 as one from fact", "key x next one")
    assert [value.column for value in draft.rows] == ["id", "x", None, None, "id"][: len(draft.rows)]


_TOP = "select id, y from (select id, y, {call} over (partition by x order by {order}) as r from fact) q where {where}"


@pytest.mark.parametrize(
    ("text", "order", "first"),
    [
        (_TOP.format(call="row_number()", order="y", where="r <= 3"), ("y", "id"), "LIMIT 3"),
        (_TOP.format(call="row_number()", order="y desc", where="r < 3 and r < 5"), ("y",), "LIMIT 2"),
        (_TOP.format(call="row_number()", order="y", where="1 = r"), ("y", "id"), "LIMIT 1"),
        (_TOP.format(call="row_number()", order="y", where="3 >= r"), ("y", "id"), "LIMIT 3"),
        (_TOP.format(call="row_number()", order="y", where="r < 1"), ("y", "id"), "LIMIT 0"),
        (_TOP.format(call="rank()", order="y, dim", where="r <= 3"), ("y", "dim"), "FETCH FIRST 3 ROWS WITH TIES"),
        # The order of a text, or of two directions, is no index's.
        (_TOP.format(call="row_number()", order="y, x desc, id", where="r <= 3"), ("y",), "LIMIT 3"),
        (_TOP.format(call="row_number()", order="y nulls first", where="r <= 3"), (), "LIMIT 3"),
        (_TOP.format(call="row_number()", order="x + y", where="r <= 3"), (), "LIMIT 3"),
        # All rows of a part count.
        (_TOP.format(call="dense_rank()", order="y", where="r <= 3"), ("y",), ""),
        (_TOP.format(call="row_number()", order="y", where="r >= 3"), ("y", "id"), ""),
        (_TOP.format(call="row_number()", order="y", where="r <= 3 or y = 1"), ("y", "id"), ""),
        (_TOP.format(call="sum(y)", order="y", where="r <= 3"), ("y",), ""),
        (
            (
                "select id, n from (select id, count(*) over (partition by x) as n,"
                " row_number() over (partition by x order by y) as r from fact) q where r <= 3"
            ),
            ("y", "id"),
            "",
        ),
        ("select distinct on (x) id, y from fact order by x, y desc", ("y",), "LIMIT 1"),
        ("select distinct on (x) id, y from fact", ("id",), "LIMIT 1"),
        ("select id, y from fact order by y limit 3", ("y", "id"), ""),
    ],
)
def test_only_the_first_rows_of_a_part_are_read(text: str, order: tuple[str, ...], first: str) -> None:
    names = "id n" if ", n from" in text else "id y"
    partition = _plan(text, names)[0].partition
    assert partition is not None
    assert partition.order == order
    assert bool(partition.first) is bool(first)
    assert partition.first.endswith(f" {first}" if first else "")
