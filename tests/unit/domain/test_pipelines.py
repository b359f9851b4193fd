"""The plan of a project: a table of cases, the order of any graph, and runs that are cut off at any step."""

from collections.abc import Mapping
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.domain.errors import Conflict
from service.domain.pipelines import (
    Action,
    Asked,
    Dataset,
    Held,
    Reads,
    Step,
    cycle_of,
    cyclic,
    levels,
    numbered,
    place_of,
    planned,
    to_create,
    to_drop,
)
from service.protocol.relation import RelationKind

VIEW, TABLE, SINK = RelationKind.MATERIALIZED_VIEW, RelationKind.TABLE, RelationKind.SINK
ORDERS = {"orders": Held(TABLE)}
REPLACING = Asked(replace=True)


def view(name: str, *reads: str, kind: RelationKind = VIEW, fault: str | None = None) -> Dataset:
    return Dataset(name, kind, f"{name}.sql:1", frozenset(reads), fault=fault)


def there(*reads: str, same: bool = True, error: str | None = None, kind: RelationKind = VIEW) -> Held:
    return Held(kind, frozenset(reads), same, error=error)


A, B = view("a", "orders"), view("b", "a")
BUILT = ORDERS | {"a": there("orders"), "b": there("a")}
CASES: Mapping[str, tuple[list[Dataset], Mapping[str, Held], Asked, list[tuple[str, str, str]]]] = {
    "new": ([B, A], ORDERS, Asked(), [("a", "create", ""), ("b", "create", "")]),
    "the same": ([A, B], BUILT, REPLACING, [("a", "unchanged", ""), ("b", "unchanged", "")]),
    "partly there": ([A, B], ORDERS | {"a": there("orders")}, Asked(), [("a", "unchanged", ""), ("b", "create", "")]),
    "being created": (
        [A],
        ORDERS | {"a": Held(VIEW, creating=True)},
        Asked(),
        [("a", "unchanged", "it is being created")],
    ),
    "changed": (
        [A, B],
        BUILT | {"a": there("orders", same=False)},
        REPLACING,
        [("a", "replace", "its definition has changed"), ("b", "replace", "it reads a, which is replaced")],
    ),
    "changed above": (
        [A, B],
        BUILT | {"b": there("a", same=False)},
        REPLACING,
        [
            ("a", "unchanged", ""),
            ("b", "replace", "its definition has changed"),
        ],
    ),
    "changed without leave": (
        [A, B],
        BUILT | {"a": there("orders", same=False)},
        Asked(),
        [("a", "refuse", "--replace"), ("b", "refuse", 'it reads "a", which is refused')],
    ),
    "anew": (
        [A, B],
        BUILT,
        Asked(anew=frozenset({"a"})),
        [("a", "replace", "it is built anew"), ("b", "replace", "it reads a, which is replaced")],
    ),
    "anew above": (
        [A, B],
        BUILT,
        Asked(anew=frozenset({"b"})),
        [
            ("a", "unchanged", ""),
            ("b", "replace", "it is built anew"),
        ],
    ),
    "everything anew": (
        [A, B],
        BUILT,
        Asked(everything=True),
        [
            ("a", "replace", "it is built anew"),
            ("b", "replace", "it is built anew"),
        ],
    ),
    "failed": ([A], ORDERS | {"a": there(error="22P02")}, REPLACING, [("a", "replace", "it failed: 22P02")]),
    "failed without leave": ([A], ORDERS | {"a": there(error="22P02")}, Asked(), [("a", "refuse", "it failed: 22P02")]),
    "a stranger reads it": (
        [A],
        BUILT | {"a": there("orders", same=False)},
        REPLACING,
        [("a", "refuse", "b reads it, which is not of this project")],
    ),
    "a stranger reads what stays": ([A], BUILT, REPLACING, [("a", "unchanged", "")]),
    "of another kind": (
        [A],
        ORDERS | {"a": Held(TABLE)},
        REPLACING,
        [("a", "refuse", 'a.sql:1: there is a table called "a"')],
    ),
    "unknown": ([view("a", "nowhere")], ORDERS, Asked(), [("a", "refuse", 'it reads "nowhere", which neither')]),
    "reads a sink": (
        [view("s", "orders", kind=SINK), view("a", "s")],
        ORDERS,
        Asked(),
        [("s", "create", ""), ("a", "refuse", "that is a sink here")],
    ),
    "faulty": (
        [view("a", fault="syntax error"), B],
        ORDERS,
        Asked(),
        [("a", "refuse", "a.sql:1: syntax error"), ("b", "refuse", 'it reads "a", which is refused')],
    ),
    "twice": ([A, view("a")], ORDERS, Asked(), [("a", "refuse", "it is defined twice: see a.sql:1")]),
    "a cycle": (
        [view("a", "b"), B, view("c", "b")],
        ORDERS,
        Asked(),
        [
            ("a", "refuse", "it reads itself: a -> b -> a"),
            ("b", "refuse", "it reads itself: b -> a -> b"),
            ("c", "refuse", 'it reads "b", which is refused'),
        ],
    ),
    "itself": ([view("a", "a")], ORDERS, Asked(), [("a", "refuse", "it reads itself: a -> a")]),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_what_a_plan_does(
    case: tuple[list[Dataset], Mapping[str, Held], Asked, list[tuple[str, str, str]]],
) -> None:
    datasets, held, asked, wanted = case
    steps = planned(datasets, held, asked)
    assert [(step.name, step.action) for step in steps] == [(name, action) for name, action, _ in wanted]
    for step, (_, _, why) in zip(steps, wanted, strict=True):
        assert (why in step.why) if why else step.why == ""


def test_what_has_no_effect_is_said() -> None:
    noted = Dataset("a", VIEW, "a.sql:1", notes=("CLUSTER BY has no effect here",))
    assert planned([noted], {}, Asked())[0].why == "CLUSTER BY has no effect here"


@pytest.mark.parametrize(
    ("location", "number"),
    [("/l/a", 1), ("/l/a__2", 2), ("/l/a__12", 12), ("/l/a__1", None), ("/l/a__x", None), ("/l/ab", None), ("", None)],
)
def test_the_number_of_a_place(location: str, number: int | None) -> None:
    assert numbered(location, "/l/a") == number
    if number is not None:
        assert place_of("/l/a", number) == location


NAMES = [f"v{at}" for at in range(7)]
graphs = st.dictionaries(st.sampled_from(NAMES), st.frozensets(st.sampled_from([*NAMES, "orders"]), max_size=3))
acyclic = st.lists(st.frozensets(st.integers(0, 6), max_size=3), max_size=7).map(
    lambda found: {
        NAMES[at]: frozenset(NAMES[one] for one in reads if one < at) | {"orders"} for at, reads in enumerate(found)
    }
)


@given(graphs)
def test_levels_are_an_order_or_there_is_a_cycle(reads: Reads) -> None:
    inner = cyclic(reads)
    for name in inner:
        way = cycle_of(name, reads)
        assert way[0] == way[-1] == name
        assert all(after in reads[before] for before, after in pairwise(way))
        assert len(set(way)) == len(way) - 1
    if inner:
        with pytest.raises(Conflict):
            levels(reads)
        return
    found = levels(reads)
    place = {name: at for at, level in enumerate(found) for name in level}
    assert sorted(place) == sorted(reads)
    assert all(place[one] < place[name] for name, names in reads.items() for one in names if one in place)


class Catalog:
    """A service: it drops nothing that is read, and creates nothing that reads what is not there."""

    def __init__(self) -> None:
        self.objects: dict[str, tuple[frozenset[str], str]] = {"orders": (frozenset(), "")}

    def held(self, datasets: list[Dataset]) -> dict[str, Held]:
        wanted = {one.name: one.before for one in datasets}
        return {
            name: Held(TABLE if name == "orders" else VIEW, reads, text == wanted.get(name))
            for name, (reads, text) in self.objects.items()
        }

    def run(self, datasets: list[Dataset], *, steps_max: int) -> tuple[Step, ...]:
        """Carry out a plan, and stop after some statements."""
        held = self.held(datasets)
        steps = planned(datasets, held, REPLACING)
        statements = [("drop", name) for name in to_drop(steps, held)]
        made = {one.name: one for level in to_create(steps) for one in level}
        statements += [("create", name) for name in made]
        for what, name in statements[:steps_max]:
            if what == "drop":
                assert not [reader for reader, (reads, _) in self.objects.items() if name in reads]
                del self.objects[name]
            else:
                assert name not in self.objects
                assert made[name].reads <= self.objects.keys()
                self.objects[name] = made[name].reads, made[name].before
        return steps


versions = st.lists(
    st.tuples(acyclic, st.dictionaries(st.sampled_from(NAMES), st.integers(0, 2))), min_size=1, max_size=4
)


@given(versions, st.lists(st.integers(0, 9), max_size=4))
def test_a_run_that_is_cut_off_is_continued_by_the_next(
    history: list[tuple[Reads, Mapping[str, int]]], cuts: list[int]
) -> None:
    catalog = Catalog()
    for reads, texts in history:
        kept = {
            **reads,
            **{name: one for name, (one, _) in catalog.objects.items() if name not in reads and name != "orders"},
        }
        if cyclic(kept):
            continue
        datasets = [
            Dataset(name, VIEW, "", names, f"{sorted(names)} {texts.get(name, 0)}") for name, names in kept.items()
        ]
        for cut in cuts:
            catalog.run(datasets, steps_max=cut)
        catalog.run(datasets, steps_max=100)
        assert {step.action for step in catalog.run(datasets, steps_max=0)} <= {Action.UNCHANGED}
        assert catalog.objects.keys() == {*kept, "orders"}
