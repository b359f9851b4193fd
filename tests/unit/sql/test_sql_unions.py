"""UNION ALL: branches in order, keys that share columns, types that hold what every branch gives."""

import pytest

from service.domain.errors import Invalid
from service.protocol.columns import Column, ColumnType
from service.protocol.relation import Relation
from service.sql.parse import parse
from service.sql.statements.tables import CreateTable, table_relation
from service.sql.statements.views import CreateMaterializedView
from service.sql.views.bind import BoundView, bind_view, view_relation


def table(definition: str) -> Relation:
    statement = parse(f"create table {definition}")
    assert isinstance(statement, CreateTable)
    return table_relation(statement).model_copy(update={"name": statement.name})


RELATIONS = {
    relation.name: relation
    for relation in (
        table("orders (id bigint primary key, amount int)"),
        table("archive (amount smallint, id bigint primary key)"),
        table("named (k text, id bigint, amount bigint, primary key (k desc, id))"),
        table("loose (amount numeric(10,2))"),
    )
}


def bound(query: str) -> BoundView:
    statement = parse(f"create materialized view m as {query}")
    assert isinstance(statement, CreateMaterializedView)
    return bind_view(statement, RELATIONS)


def test_branches_come_in_order_however_they_are_grouped() -> None:
    one, two, three = "select amount from orders", "select amount from archive where id > 1", "select 1 from orders"
    for query in (
        f"{one} union all {two} union all {three}",
        f"{one} union all ({two} union all {three})",
        f"(({one})) union all {two} union all ({three})",
    ):
        view = bound(query)
        assert [scan.upstream.name for scan in view.scans] == ["orders", "archive", "orders"]
        assert [scan.query.predicate for scan in view.scans] == [None, "(`id` > 1)", None]
        assert [scan.query.projection[0] for scan in view.scans] == ["`amount`", "`amount`", "1"]


def test_a_view_has_so_many_branches_and_no_more() -> None:
    """I13: each costs every barrier a job of its own."""
    assert len(bound(" union all ".join(["select id from orders"] * 64)).scans) == 64
    with pytest.raises(Invalid, match="the view has more than 64 scans, one for each SELECT of UNION ALL"):
        bound(" union all ".join(["select id from orders"] * 65))


def test_a_row_is_known_by_its_branch_and_its_key_there() -> None:
    """Keys that agree share a column, also where the query passes them on; NULL stands where a branch has none."""
    # The first branch names the columns, so that the others may name one twice.
    passing = "select id, amount from orders union all select id, amount from named"
    view = bound(f"{passing} union all select 1 as x, 2 as x from loose")
    assert view.names == ("id", "amount", "_key_branch", "_key_0", "_key_1")
    assert view.hidden == 3
    assert [(part.name, part.descending) for part in view.key] == [
        *(("_key_branch", False), ("_key_0", False), ("_key_1", True)),
    ]
    assert [scan.query.projection[2:] for scan in view.scans] == [
        ("cast(0 as smallint)", "`id`", "cast(null as string)"),
        ("cast(1 as smallint)", "`id`", "`k`"),
        ("cast(2 as smallint)", "`_row_id`", "cast(null as string)"),
    ]


def test_branches_that_only_pass_columns_on_are_pushed_down() -> None:
    view = bound("select id, amount from orders union all select id, amount from named where amount > 3")
    assert [scan.query.pushdown and scan.query.pushdown.columns for scan in view.scans] == [
        ("id", "amount", 0, "id", None),
        ("id", "amount", 1, "id", "k"),
    ]
    mixed = bound("select id, amount from orders union all select id, amount + 1 from named")
    assert [scan.query.pushdown is None for scan in mixed.scans] == [False, True]


def test_a_column_holds_what_every_branch_gives() -> None:
    view = bound("select amount from orders union all select amount from named union all select amount from loose")
    kinds = ("int", "smallint", "bigint", "text")
    spark = [
        [
            Column(name=name, type=ColumnType.parse(kind), nullable=name == "_key_1" and number != 1)
            for name, kind in zip(view.names, kinds, strict=True)
        ]
        for number in range(3)
    ]
    relation = view_relation(view, spark, "m")
    assert [f"{c.name} {c.type} {c.nullable}" for c in relation.columns] == [
        "amount numeric(22,2) True",
        "_key_branch smallint False",
        "_key_0 bigint False",
        "_key_1 text True",
    ]


@pytest.mark.parametrize(
    ("one", "other", "common"),
    [
        ("int", "int", "integer"),
        ("smallint", "bigint", "bigint"),
        ("real", "double precision", "double precision"),
        ("numeric(12,2)", "numeric(6,4)", "numeric(14,4)"),
        ("numeric(12,2)", "int", "numeric(12,2)"),
        ("bigint", "numeric(4,2)", "numeric(22,2)"),
        ("int[]", "int[]", "integer[]"),
        ("int", "text", None),
        ("int", "real", None),
        ("int[]", "bigint[]", None),
        ("numeric(38,0)", "numeric(38,1)", None),
        ("date", "timestamp", None),
    ],
)
def test_types_are_matched_exactly_or_refused(one: str, other: str, common: str | None) -> None:
    view = bound("select amount from orders union all select amount + 0 from orders")
    hidden = [Column(name=name, type=ColumnType.parse("bigint"), nullable=True) for name in view.names[1:]]
    view = BoundView(
        tuple(
            type(scan)(scan.upstream, scan.query, (None, *scan.sources[1:]), scan.types, scan.places)
            for scan in view.scans
        ),
        view.names,
        view.hidden,
        view.key,
    )
    typed = [[Column(name="amount", type=ColumnType.parse(kind), nullable=True), *hidden] for kind in (one, other)]
    if common is not None:
        for sides in (typed, typed[::-1]):
            assert str(view_relation(view, sides, "m").columns[0].type) == common
        return
    with pytest.raises(Invalid) as refused:
        view_relation(view, typed, "m")
    assert str(refused.value).startswith("UNION types ")
    assert refused.value.position == 74
