"""The backfill order against the reference's state machine: it remembers what happened, ours looks at what is recorded.

The machine is its section 3.4, said again: nodes with the actors and the dependencies they have left, those that run,
those that remain. Whatever finishes in whatever order, also by hand and too early, both let the same scans read.
"""

from dataclasses import dataclass
from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from service.domain.order import Order, OrderedScan, awaited, dependents
from service.protocol.ids import FragmentId, RelationId


@dataclass
class Node:
    actors: set[int]
    dependencies: set[int]
    children: set[int]


class Machine:
    """Told of every scan that finishes; says which relations may read."""

    def __init__(self, order: Order, scans: dict[int, int]) -> None:
        self.nodes = {
            relation: Node(
                {scan for scan, reads in scans.items() if reads == relation},
                {before for before, after in order if after == relation},
                {after for before, after in order if before == relation},
            )
            for relation in set(scans.values())
        }
        self.current = {relation for relation, node in self.nodes.items() if not node.dependencies}

    def finished(self, scan: int) -> None:
        for relation, node in self.nodes.items():
            if scan in node.actors:
                node.actors.remove(scan)
                if not node.actors and relation in self.current:
                    self._finish(relation)

    def _finish(self, relation: int) -> None:
        for child in self.nodes[relation].children:
            node = self.nodes[child]
            node.dependencies.remove(relation)
            if not node.dependencies:
                self.current.add(child)
                if not node.actors:
                    self._finish(child)


def edges(relations: int) -> st.SearchStrategy[Order]:
    """Any order without a cycle: edges go from a lower to a higher relation."""
    possible = [(RelationId(one), RelationId(other)) for one, other in combinations(range(relations), 2)]
    return st.lists(st.sampled_from(possible), max_size=2 * relations).map(tuple) if possible else st.just(())


@st.composite
def jobs(draw: st.DrawFn) -> tuple[Order, dict[int, int]]:
    """An order over up to five relations, each scanned once to three times."""
    relations = draw(st.integers(1, 5))
    times = draw(st.lists(st.integers(1, 3), min_size=relations, max_size=relations))
    reads = [relation for relation, many in enumerate(times) for _ in range(many)]
    return draw(edges(relations)), dict(enumerate(draw(st.permutations(reads))))


def free(order: Order, scans: dict[int, int], finished: set[int]) -> set[int]:
    recorded = [OrderedScan(FragmentId(one), RelationId(reads), one in finished) for one, reads in scans.items()]
    return scans.keys() - awaited(order, recorded).keys()


@settings(max_examples=200, deadline=None, derandomize=True)
@given(jobs(), st.data())
def test_it_lets_read_what_the_reference_lets_read(job: tuple[Order, dict[int, int]], data: st.DataObject) -> None:
    order, scans = job
    machine, finished = Machine(order, scans), set[int]()
    # Any order of finishing: what a user starts by hand may be through before what it should wait for.
    for one in data.draw(st.permutations(sorted(scans))):
        assert free(order, scans, finished) == {scan for scan, reads in scans.items() if reads in machine.current}
        machine.finished(one)
        finished.add(one)
    assert free(order, scans, finished) == scans.keys()


@settings(max_examples=100, deadline=None, derandomize=True)
@given(jobs(), st.data())
def test_it_never_stops_and_keeps_the_order(job: tuple[Order, dict[int, int]], data: st.DataObject) -> None:
    """Only what may read finishes: then each relation begins after all before it, and all of them end."""
    order, scans = job
    finished: set[int] = set()
    assert scans.keys() - free(order, scans, finished) == {
        scan for scan, reads in scans.items() if reads in dependents(order)
    }, "what waits at first are the dependents"
    while left := scans.keys() - finished:
        reading = free(order, scans, finished) & left
        assert reading, "nobody may read, and not all have finished"
        one = data.draw(st.sampled_from(sorted(reading)))
        before = {other for other, after in order if after == scans[one]}
        assert all(other in finished for other, reads in scans.items() if reads in before)
        finished.add(one)
