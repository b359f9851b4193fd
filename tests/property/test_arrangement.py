"""The arrangement executor against plain data, whatever happens in whatever order (I1, I3, I4, I6, I11).

The rules only say what may happen; `tests.support.arrangement.World` checks every epoch. The teardown is liveness: once
the faults stop and the limits are lifted, the view is whole within a bounded number of epochs. That the machine can
fail is shown by `test_mutants`.
"""

from collections.abc import Sequence
from itertools import combinations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from service.protocol.plan import ScanType
from tests.support.arrangement import INTERLEAVING, POINTS, Kill, World, random_walk
from tests.support.key_shapes import SHAPES, Dml, KeyShape
from tests.support.model import identity, order_python
from tests.support.sampling import SHARE, sampled

EXAMPLES = 120
"""In `make soak`."""
VERBS = st.sampled_from(("put", "put", "update", "move", "delete"))


def keys(shape: KeyShape) -> st.SearchStrategy[tuple[object, ...]]:
    return st.tuples(*(st.sampled_from(domain) for domain in shape.domains))


def statements(shape: KeyShape) -> st.SearchStrategy[Dml]:
    return st.builds(Dml, VERBS, keys(shape), st.integers(0, 63), st.integers(0, 9))


class Arrangement(RuleBasedStateMachine):
    """Every rule is one thing a user, a clock or a fault does."""

    world: World

    @initialize(
        data=st.data(),
        shape=st.sampled_from(SHAPES),
        vnode_count=st.sampled_from((1, 2, 6)),
        checkpoint_frequency=st.integers(1, 3),
        size=st.sampled_from((0, 1, 3, 20)),
        waiting=st.booleans(),
        scan_type=st.sampled_from(INTERLEAVING),
    )
    def begin(
        self,
        data: st.DataObject,
        shape: KeyShape,
        vnode_count: int,
        checkpoint_frequency: int,
        size: int,
        waiting: bool,
        scan_type: ScanType,
    ) -> None:
        preloaded = data.draw(st.lists(statements(shape), min_size=size, max_size=size))
        actors = data.draw(st.integers(1, vnode_count)) if scan_type is ScanType.BACKFILL else 1
        self.world = World(
            shape,
            vnode_count,
            actors=actors,
            checkpoint_frequency=checkpoint_frequency,
            preloaded=preloaded,
            waiting=waiting,
            scan_type=scan_type,
        )

    @rule(data=st.data())
    def write(self, data: st.DataObject) -> None:
        for statement in data.draw(st.lists(statements(self.world.shape), min_size=1, max_size=4)):
            self.world.queue(statement)

    @rule()
    def delete_all(self) -> None:
        self.world.queue(Dml("delete_all"))

    @rule(
        page_rows=st.integers(1, 5),
        pages_max=st.sampled_from((1, 2, 99)),
        elapsed=st.sampled_from((0.0, 0.3, 1.0, 3.0)),
    )
    def barrier(self, page_rows: int, pages_max: int, elapsed: float) -> None:
        self.world.barrier(page_rows=page_rows, pages_max=pages_max, elapsed=elapsed)

    @rule(point=st.sampled_from(POINTS), nth=st.integers(0, 2), page_rows=st.integers(1, 5))
    def barrier_with_a_kill(self, point: str, nth: int, page_rows: int) -> None:
        self.world.barrier(page_rows=page_rows, pages_max=2, elapsed=0.3, kill=Kill(point, nth))

    @rule()
    def kill_between_barriers(self) -> None:
        self.world.recover()

    @precondition(lambda self: len(self.world.pending) < 3)
    @rule(verb=st.sampled_from(("pause", "resume", "start")))
    def pause_or_resume(self, verb: str) -> None:
        self.world.ask(verb)

    @precondition(lambda self: len(self.world.pending) < 3)
    @rule(limit=st.sampled_from((None, 0, 1, 3)))
    def throttle(self, limit: int | None) -> None:
        self.world.ask("throttle", limit)

    @precondition(lambda self: len(self.world.pending) < 3 and self.world.scan_type is not ScanType.BACKFILL)
    @rule(actors=st.integers(1, 6))
    def rescale(self, actors: int) -> None:
        self.world.ask("rescale", min(actors, self.world.vnode_count))

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "world"):
            self.world.check(self.world.prev)

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.settle()


def drawn(examples: int) -> settings:
    return settings(
        max_examples=examples,
        stateful_step_count=30,
        deadline=None,
        derandomize=True,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


def test_no_sequence_of_events_breaks_it() -> None:
    run_state_machine_as_test(Arrangement, settings=drawn(EXAMPLES // SHARE))


@pytest.mark.soak
def test_no_sequence_of_many_breaks_it() -> None:
    run_state_machine_as_test(Arrangement, settings=drawn(EXAMPLES))


@pytest.mark.parametrize("scan_type", INTERLEAVING)
@pytest.mark.parametrize("seeds", sampled(range(start, start + 100) for start in range(0, 400, 100)), ids=str)
def test_random_walks(seeds: Sequence[int], scan_type: ScanType) -> None:
    """I1, I3, I4, I6, I11 over long schedules; the same walks find every planted bug of `test_mutants`."""
    for seed in seeds:
        random_walk(seed, scan_type=scan_type)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_an_empty_upstream_finishes_at_its_second_barrier(shape: KeyShape) -> None:
    world = World(shape, actors=3)
    world.barrier(page_rows=5, pages_max=1, elapsed=0.0)
    assert not world.finished
    assert world.scan.scan.finished, "no history is left after the first barrier"
    world.barrier(page_rows=5, pages_max=1, elapsed=0.0)
    assert world.finished
    assert world.created


def test_a_scan_that_waits_reads_nothing_not_even_an_empty_upstream() -> None:
    """I4: it finishes only once it was started, and a recovery does not start it."""
    world = World(SHAPES[0], waiting=True)
    for _ in range(3):
        world.barrier(page_rows=5, pages_max=1, elapsed=1.0)
        world.recover()
    assert not world.scan.scan.finished
    world.ask("start")
    for _ in range(3):
        world.barrier(page_rows=5, pages_max=1, elapsed=1.0)
    assert world.created


def test_a_throttled_empty_upstream_finishes_once_a_permit_is_there() -> None:
    """The bucket starts empty: no permit, no page, also where the page would be empty."""
    world = World(SHAPES[0])
    world.settings["limit"] = 1
    world.recover()
    world.barrier(page_rows=5, pages_max=1, elapsed=0.0)
    assert not world.scan.scan.finished
    for _ in range(2):
        world.barrier(page_rows=5, pages_max=1, elapsed=1.0)
    assert world.created


def test_a_finish_in_an_uncommitted_epoch_is_reported_again() -> None:
    """I6: created only after the checkpoint that holds the finish has committed."""
    world = World(SHAPES[0], checkpoint_frequency=3)
    for _ in range(2):
        world.barrier(page_rows=5, pages_max=1, elapsed=0.0)
    assert world.finished
    assert not world.created
    world.recover()
    assert not world.finished
    for _ in range(3):
        world.barrier(page_rows=5, pages_max=1, elapsed=0.0)
    assert world.created


def test_a_kill_resumes_from_the_committed_position() -> None:
    """I3: from the last committed epoch, not from the start."""
    world = World(SHAPES[0], vnode_count=1, actors=1, preloaded=[Dml("put", (key,)) for key in range(6)])
    world.barrier(page_rows=2, pages_max=1, elapsed=0.0)
    world.barrier(page_rows=2, pages_max=1, elapsed=0.0, kill=Kill("page_written"))
    position = world.scan.scan.actors[0].positions.by_vnode[0]
    assert (position.key, position.rows) == (("1",), 2)


@pytest.mark.parametrize("page_rows", [1, 2, 5])
@pytest.mark.parametrize("scan_type", INTERLEAVING)
def test_a_page_that_reaches_the_end_loses_no_change_of_its_epoch(scan_type: ScanType, page_rows: int) -> None:
    """Reference 2.1, step 9: rows beyond the position that arrive in the epoch that ends it, and none of them twice."""
    rows = [Dml("put", (key,), value=1) for key in (1, 2, 3)]
    world = World(SHAPES[0], vnode_count=1, actors=1, preloaded=rows, scan_type=scan_type)
    world.barrier(page_rows=2, pages_max=1, elapsed=0.0)
    assert world.scan.scan.actors[0].positions.by_vnode[0].key == ("2",)
    for key in (0, 7, 8, 9):
        world.queue(Dml("put", (key,), value=1))
    world.queue(Dml("delete", pick=3))
    world.barrier(page_rows=page_rows, pages_max=99, elapsed=0.0)
    assert world.scan.scan.finished
    assert sorted(key for key, _ in world.alive_at(world.target, world.committed).values()) == [
        (0,), (1,), (2,), (7,), (8,), (9,)
    ]  # fmt: skip
    world.settle()


def test_an_actor_with_one_position_reads_its_vnodes_one_after_the_other() -> None:
    """NoShuffle: at every epoch one vnode at most is in progress; also after a kill."""
    rows = [Dml("put", (key,), value=1) for key in range(20)]
    world = World(SHAPES[0], vnode_count=6, actors=2, preloaded=rows, scan_type=ScanType.BACKFILL)
    started: list[list[int]] = []
    while not world.created:
        world.barrier(page_rows=2, pages_max=1, elapsed=0.0)
        world.recover()
        started.append(sorted(world.stored))
    assert len({len(vnodes) for vnodes in started}) > 2, "little by little"
    for vnodes in started:
        first, second = [[vnode for vnode in vnodes if vnode in owned] for owned in (range(3), range(3, 6))]
        assert first == list(range(len(first)))
        assert second == list(range(3, 3 + len(second)))
    assert started[-1] == [0, 1, 2, 3, 4, 5]


def test_a_key_that_moves_over_the_position_is_neither_lost_nor_doubled() -> None:
    """Half-visible updates: away from the prefix is a delete, into it an insert."""
    world = World(SHAPES[0], vnode_count=1, actors=1, preloaded=[Dml("put", (key,), value=1) for key in (1, 2, 3, 4)])
    world.barrier(page_rows=2, pages_max=1, elapsed=0.0)
    world.queue(Dml("move", (8,), pick=0))
    world.queue(Dml("move", (0,), pick=2))
    world.barrier(page_rows=1, pages_max=1, elapsed=0.0)
    assert {key for key, _ in world.alive_at(world.target, world.committed).values()} == {(0,), (2,), (3,)}
    world.settle()


def test_null_and_nan_are_largest_and_descending_turns_all_round() -> None:
    parts = World(SHAPES[4]).upstream.key
    nan, inf = float("nan"), float("inf")
    ordered = [
        (None, True),
        (nan, False),
        (nan, True),
        (inf, True),
        (-0.0, False),
        (0.0, True),
        (-1.5, True),
        (-inf, True),
    ]
    for before, after in combinations(ordered, 2):
        assert order_python(parts, before, after) < 0 < order_python(parts, after, before)
    assert order_python(parts, (nan, True), (float("nan"), True)) == 0
    assert order_python(parts, (0.0, True), (-0.0, True)) == 0
    assert identity((nan, -0.0)) == identity((float("nan"), 0.0))
