"""UNION ALL: branches in order, keys that share columns, types that hold what every branch gives."""

import pytest

from service.domain.errors import Invalid
from service.protocol.ids import RelationId
from service.sql.queries.drafts import Draft
from service.sql.queries.finishing import description, finished
from service.sql.queries.plan import plan_query
from tests.support.expressions import query_of, table

RELATIONS = {
    name: table(f"create table {name} {columns}").model_copy(update={"id": RelationId(number), "name": name})
    for number, (name, columns) in enumerate(
        {
            "orders": "(id bigint primary key, amount int)",
            "archive": "(amount smallint, id bigint primary key)",
            "named": "(k text, id bigint, amount bigint, primary key (k desc, id))",
            "loose": "(amount numeric(10,2))",
        }.items(),
        1,
    )
}


def planned(query: str, names: str = "amount") -> tuple[Draft, ...]:
    return plan_query(query_of(query), RELATIONS, {}, names.split())


def test_branches_come_in_order_however_they_are_grouped() -> None:
    one, two, three = "select amount from orders", "select amount from archive where id > 1", "select 1 from orders"
    for query in (
        f"{one} union all {two} union all {three}",
        f"{one} union all ({two} union all {three})",
        f"(({one})) union all {two} union all ({three})",
    ):
        drafts = planned(query)
        assert [draft.joins[0].inputs[0].relation for draft in drafts] == [1, 2, 1]
        assert [[one.sql.rpartition(".")[2] for one in draft.joins[0].on] for draft in drafts] == [
            [],
            ['"id" > 1)'],
            [],
        ]
        assert [draft.rows[0].sql.rpartition(".")[2] for draft in drafts] == ['"amount"', '"amount"', "1"]


def test_a_view_has_so_many_branches_and_no_more() -> None:
    """I13: each costs every barrier a job of its own."""
    assert len(planned(" union all ".join(["select id from orders"] * 64))) == 64
    with pytest.raises(Invalid, match="the view has more than 64 SELECTs in one UNION ALL"):
        planned(" union all ".join(["select id from orders"] * 65))


def test_a_row_is_known_by_its_branch_and_its_key_there() -> None:
    """Keys of one type share a column, also where the query passes them on; NULL stands where a branch has none."""
    # The first branch names the columns, so that the others may name one twice.
    passing = "select id, amount from orders union all select id, amount from named"
    drafts = planned(f"{passing} union all select 1 as x, 2 as x from loose", "id amount")
    assert {draft.columns for draft in drafts} == {("id", "amount", "_key_branch", "_key_0", "_key_1")}
    assert {draft.visible for draft in drafts} == {2}
    key = ("_key_branch", "_key_0", "_key_1")
    assert {tuple(part.name for part in draft.key) for draft in drafts} == {key}
    assert {draft.distribution for draft in drafts} == {key}
    assert [[value.sql for value in draft.rows[2:]] for draft in drafts] == [
        ["CAST(0 AS SMALLINT)", '"i0"."id"', "NULL"],
        ["CAST(1 AS SMALLINT)", '"i1"."id"', '"i1"."k"'],
        ["CAST(2 AS SMALLINT)", '"i3"."_row_id"', "NULL"],
    ]


def test_a_column_has_the_type_in_which_postgres_describes_all_branches() -> None:
    known = {one.id: one for one in RELATIONS.values()}
    drafts = planned("select amount from orders union all select amount from named union all select amount from loose")
    assert all("values (" in description(draft, known) for draft in drafts)
    made = [finished(draft, ["numeric", "smallint", "bigint", "text"], known) for draft in drafts]
    assert [one.stage.rows[0].sql for one in made] == [
        'CAST("i0"."amount" AS DECIMAL)',
        'CAST("i1"."amount" AS DECIMAL)',
        'CAST("i3"."amount" AS DECIMAL)',
    ]
    for one in made:
        columns = [f"{c.name} {c.type} {c.nullable}" for c in one.relation.columns]
        assert columns == [
            "amount numeric True",
            "_key_branch smallint False",
            "_key_0 bigint True",
            "_key_1 text True",
        ]
    assert made[0].relation.columns == made[1].relation.columns


@pytest.mark.parametrize(
    ("one", "other", "values"),
    [
        ("int", "int", ['("i0"."c" / 2)', '("i1"."d" / 2)']),
        ("smallint", "bigint", ['(CAST("i0"."c" AS BIGINT) / 2)', '("i1"."d" / 2)']),
        ("int", "numeric(4,2)", ['(CAST("i0"."c" AS DECIMAL) / 2)', '(CAST("i1"."d" AS DECIMAL) / 2)']),
        ("real", "double precision", ['(CAST("i0"."c" AS DOUBLE PRECISION) / 2)', '("i1"."d" / 2)']),
        # Where a type is not known, the union is stored before.
        ("int", "double precision", ['("i2"."c" / 2)']),
    ],
)
def test_what_is_computed_over_a_union_has_the_type_of_the_union(one: str, other: str, values: list[str]) -> None:
    relation = table(f"create table t (id bigint primary key, c {one}, d {other})")
    text = "select id, c / 2 as h from (select id, c from t union all select id, d from t) q"
    drafts = plan_query(query_of(text), {"t": relation}, {}, ["id", "h"])
    assert [draft.rows[1].sql for draft in drafts if draft.final] == values
