"""The cost of a view of stages by the statistics. A figure that they do not have is unknown."""

from dataclasses import replace

import pytest

from service.domain.fan_out import ColumnStatistics, Statistics, TableStatistics, fan_out, index_bytes, lookups_from
from service.protocol.ids import RelationId
from service.protocol.relation import Relation
from service.protocol.stage import (
    Aggregate,
    Condition,
    Input,
    Join,
    JoinKind,
    LookupIndex,
    Partition,
    Side,
    Stage,
    Value,
    lookups,
)
from service.sql.views.explain_costs import Known, costs, index_state, rows_of, warnings
from tests.support.state_store import relation

ORDERS = relation(1, "orders", {"id": "bigint", "customer": "bigint", "day": "date"})
CUSTOMERS = relation(2, "customers", {"id": "bigint", "region": "integer"})
VIEW = relation(0, "m", {"id": "bigint", "region": "integer"})
RELATIONS: dict[RelationId, Relation] = {one.id: one for one in (ORDERS, CUSTOMERS, VIEW)}
OF = {"o": ORDERS, "c": CUSTOMERS}


def column(distinct: float, nulls: float = 0, width: float = 8) -> ColumnStatistics:
    return ColumnStatistics(distinct, nulls, width)


STATISTICS: Statistics = {
    ORDERS.id: TableStatistics(12_345_678, {"customer": column(500, 0.5), "day": column(3650, width=4)}),
    CUSTOMERS.id: TableStatistics(500, {"region": column(5)}),
}
BY_CUSTOMER = LookupIndex(ORDERS.id, ("customer",))


def equal(one: str, other: str) -> Condition:
    sides = [
        Side(sql=f'"{a}"."{name}"', inputs=(a,), alias=a, column=name) for a, name in (one.split("."), other.split("."))
    ]
    return Condition(sql=f"{sides[0].sql} = {sides[1].sql}", inputs=("o", "c"), equal=(sides[0], sides[1]))


def joined(kind: JoinKind = JoinKind.LEFT, *on: Condition) -> Stage:
    driver = Join(kind=JoinKind.INNER, inputs=(Input(alias="o", relation=ORDERS.id),))
    other = Join(kind=kind, inputs=(Input(alias="c", relation=CUSTOMERS.id),), on=on or (equal("o.customer", "c.id"),))
    return Stage(joins=(driver, other), rows=(Value(name="id", sql='"o"."id"'),))


def rows(stage: Stage, alias: str, statistics: Statistics = STATISTICS) -> float | None:
    return fan_out(lookups_from(stage, OF, statistics, alias))


def test_a_changed_row_rewrites_the_rows_that_show_it() -> None:
    stage = joined()
    assert rows(stage, "o") == 1
    assert rows(stage, "c") == 12_345_678 * 0.5 / 500
    assert list(costs(stage, RELATIONS, Known(STATISTICS))) == [
        "one changed row of orders o: looks up customers c by its key; rewrites at most 1 row",
        (
            "one changed row of customers c: looks up orders o by (customer), about 12,000 rows; rewrites at most about"
            " 12,000 rows"
        ),
    ]
    assert list(warnings([stage], RELATIONS, lookups(stage, RELATIONS), Known(STATISTICS))) == [
        (
            "Warning: columns of customers in about 12,000,000 rows of orders: one changed row rewrites about 12,000"
            " rows. A logical view that joins customers rewrites none"
        )
    ]


def test_an_input_is_looked_up_by_what_was_looked_up_before_it() -> None:
    """Whatever the order in which the query names its inputs."""
    inputs = tuple(Input(alias=alias, relation=OF[alias[0]].id) for alias in ("o", "c3", "c2", "c1"))
    on = (equal("o.customer", "c1.id"), equal("c1.region", "c2.id"), equal("c2.region", "c3.id"))
    stage = Stage(joins=(Join(kind=JoinKind.INNER, inputs=inputs, on=on),), rows=(Value(name="id", sql='"o"."id"'),))
    of = {one.alias: OF[one.alias[0]] for one in inputs}
    found = lookups_from(stage, of, STATISTICS, "o")
    assert [(one.input.alias, one.columns, one.keyed) for one in found] == [
        ("c1", ("id",), True),
        ("c2", ("id",), False),
        ("c3", ("id",), False),
    ]


@pytest.mark.parametrize("kind", [JoinKind.SEMI, JoinKind.ANTI])
def test_existence_multiplies_nothing(kind: JoinKind) -> None:
    assert lookups_from(joined(kind), OF, STATISTICS, "o") == ()
    assert rows(joined(kind), "c") == 12_345_678 * 0.5 / 500


def test_without_an_equality_all_rows_are_looked_up() -> None:
    stage = joined(JoinKind.LEFT, Condition(sql="o.id > c.id", inputs=("o", "c")))
    assert rows(stage, "o") == 500
    assert "looks up all of customers c, about 500 rows" in next(iter(costs(stage, RELATIONS, Known(STATISTICS))))


def test_of_several_columns_the_one_with_most_values_counts() -> None:
    stage = joined(JoinKind.INNER, equal("o.customer", "c.region"), equal("o.day", "c.region"))
    assert rows(stage, "c") == 12_345_678 / 3650


@pytest.mark.parametrize(
    "statistics",
    [
        {},
        {ORDERS.id: TableStatistics(10)},
        {ORDERS.id: TableStatistics(10, {"day": column(4)})},
    ],
    ids=["none", "not analysed", "another column's"],
)
def test_what_no_statistic_tells_is_unknown(statistics: Statistics) -> None:
    stage = joined()
    assert rows(stage, "c", statistics) is None
    known = Known(statistics)
    assert list(costs(stage, RELATIONS, known))[1].endswith(
        "looks up orders o by (customer), unknown rows; rewrites an unknown number of rows"
    )
    assert list(warnings([stage], RELATIONS, lookups(stage, RELATIONS), known)) == []
    assert index_state(known, BY_CUSTOMER, {BY_CUSTOMER}) == "to be built, unknown size"
    assert rows_of(Known(), ORDERS.id) == "unknown rows"


def test_groups_and_parts() -> None:
    summed = joined().model_copy(update={"aggregate": Aggregate(keys=("id",), measures=("n",))})
    assert list(costs(summed, RELATIONS, Known(STATISTICS)))[1].endswith(
        "adds to the sums of at most about 12,000 groups"
    )
    parted = Stage(joins=joined().joins[:1], partition=Partition(columns=("customer",), sql="select * from part"))
    known = Known(STATISTICS)
    assert list(costs(parted, RELATIONS, known)) == ["one changed row: computes a part of about 12,000 rows again"]
    assert list(warnings([parted, summed], RELATIONS, (), known)) == [
        "Warning: each change of orders computes a part of about 12,000 rows again"
    ]
    whole = parted.model_copy(update={"partition": Partition(columns=(), sql="select * from part")})
    assert list(costs(whole, RELATIONS, known)) == ["one changed row: computes a part of about 12,000,000 rows again"]


def test_sizes_of_indexes() -> None:
    known = Known(
        STATISTICS, {replace(BY_CUSTOMER, descending=("customer",)): 3 << 20, LookupIndex(ORDERS.id, ("x",)): None}
    )
    assert index_state(known, BY_CUSTOMER, ()) == "exists, about 3 MB"
    assert index_state(known, LookupIndex(ORDERS.id, ("x",)), ()) == "exists, unknown size"
    assert index_bytes(STATISTICS, BY_CUSTOMER) == pytest.approx(12_345_678 * 28 / 0.9)
    assert index_state(known, BY_CUSTOMER, {BY_CUSTOMER}) == "to be built, about 370 MB"


def test_many_indexes_of_a_relation_are_worth_a_warning() -> None:
    there = {LookupIndex(ORDERS.id, (name,)): None for name in ("a", "b", "customer")}
    needed = {BY_CUSTOMER, LookupIndex(ORDERS.id, ("day",))}
    assert list(warnings([], RELATIONS, {BY_CUSTOMER}, Known({}, there))) == []
    assert list(warnings([], RELATIONS, needed, Known({}, there))) == [
        "Warning: orders has 4 lookup indexes: every change of a row writes to each"
    ]
