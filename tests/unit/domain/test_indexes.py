"""Which indexes are needed, and which of them serve the lookups of stages."""

from dataclasses import replace

import pytest

from service.domain.indexes import begun, lacking, needed
from service.protocol.columns import KeyColumn
from service.protocol.ids import RelationId
from service.protocol.relation import RelationKind
from service.protocol.stage import LookupIndex, lookup_index, user_index
from tests.support.state_store import relation

ORDERS = RelationId(1)
LOOKUP = LookupIndex(ORDERS, ("a", "b"))
USERS = LookupIndex(ORDERS, ("b", "a"), descending=("a",), included=("c",))
V, W = RelationId(7), RelationId(8)


@pytest.mark.parametrize(
    ("index", "serves"),
    [
        (LOOKUP, True),
        (USERS, True),
        (replace(USERS, relation=RelationId(2)), False),
        (LookupIndex(ORDERS, ("a",)), False),
        (LookupIndex(ORDERS, ("a", "b", "c")), False),
        (LookupIndex(ORDERS, ("a", "b"), hashed=True), False),
    ],
)
def test_an_index_of_the_same_columns_serves_a_lookup(index: LookupIndex, serves: bool) -> None:
    assert index.serves(LOOKUP) == serves
    assert lacking([LOOKUP], [index]) == (frozenset() if serves else {LOOKUP})


@pytest.mark.parametrize(
    ("asked", "created", "chosen"),
    [
        ([], [], LOOKUP),
        ([USERS], [], USERS),
        ([USERS], [USERS], USERS),
        ([USERS], [USERS, LOOKUP], USERS),
        ([USERS], [LOOKUP], LOOKUP),
        ([], [USERS], USERS),
        ([], [USERS, LOOKUP], LOOKUP),
    ],
    ids=[
        "nothing is there",
        "one index is built for both",
        "the user's serves",
        "the stage's goes when the user's is there",
        "the stage's stays until the user's is there",
        "the user's stays when only its name went",
        "then it goes when the stage's is there",
    ],
)
def test_what_is_there_is_not_given_up_before_its_successor_is(
    asked: list[LookupIndex], created: list[LookupIndex], chosen: LookupIndex
) -> None:
    found = needed(asked, {V: [LOOKUP], W: [LOOKUP]}, created)
    assert {one: views for one, views in found.items() if views} == {chosen: {V, W}}
    assert found.keys() == {chosen, *asked}


def test_a_users_index_leaves_long_values_out() -> None:
    """I13: no INSERT fails because a value does not fit into an index."""
    columns = {"a": "integer", "t": "text", "j": "jsonb", "b": "bigint"}
    made = relation(0, "i", columns).model_copy(update={"kind": RelationKind.INDEX})

    def of(*key: KeyColumn) -> LookupIndex:
        return user_index(made.model_copy(update={"key": key}), ORDERS)

    a, t = KeyColumn(name="a", descending=True), KeyColumn(name="t")
    assert of(t, a) == LookupIndex(ORDERS, ("a",), descending=("a",), included=("b",))
    assert of(t, KeyColumn(name="j")) == LookupIndex(ORDERS, ("t",), hashed=True)
    table = relation(1, "orders", columns)
    assert of(t).serves(lookup_index(table, ["t"]))


def test_f5_a_table_has_one_build_at_a_time() -> None:
    one, other = (LookupIndex(RelationId(1), (name,)) for name in "ab")
    elsewhere = LookupIndex(RelationId(2), ("a",))
    assert begun([one, other, elsewhere], [], [], {}) == [one, elsewhere]
    assert begun([other], [one], [one], {}) == [], "not even beside one that is held"


def test_f3_builds_that_somebody_holds_leave_their_places_until_there_are_too_many() -> None:
    every = [LookupIndex(RelationId(number), ("a",)) for number in range(20)]
    assert begun(every, [], [], {}) == every[:2]
    assert begun(every[2:], every[:2], [], {}) == []
    assert begun(every[2:], every[:2], every[:1], {}) == [every[2]]
    held = every[:4]
    assert begun(every[4:], held, held, {}) == []


def test_i13_builds_of_one_caller_leave_places_to_others() -> None:
    """One open transaction held eight builds of its caller, and everybody's CREATE waited for it, for a minute."""
    every = [LookupIndex(RelationId(number), ("a",)) for number in range(20)]
    callers = dict.fromkeys(every[:6], "a") | dict.fromkeys(every[6:12], "b")
    assert begun(every, [], [], callers) == [*every[:2], every[6]]
    assert begun(every[4:], every[:4], every[:4], callers) == [*every[6:8], every[12]]
    held = [*every[:4], *every[6:8]]
    assert begun(every[4:], held, held, callers) == [every[12]]
