"""A small world around the plain-data arrangement executor: DML, barriers, checkpoints, kills, recoveries, rescales.

The upstream is also kept as a plain dict per epoch, against which every epoch is checked; the world is driven by
hypothesis (`tests/property/test_arrangement.py`) or by a seed (`random_walk`), the latter so that planted bugs are
found fast and always (`tests/property/test_mutants.py`).
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from typing import Any

from service.domain.parallelism import blocks
from service.protocol.ids import ActorId, FragmentId, Vnode
from service.protocol.plan import (
    ActorPlan,
    PositionState,
    ScanType,
    TableScanPlan,
    VnodePosition,
)
from service.protocol.vnodes import vnodes_of
from tests.support.key_shapes import SHAPES, Dml, KeyShape, random_dml
from tests.support.model import Arrangement, Key, Passed, Reading, Row, VersionedTable, identity, order_python
from tests.support.projections import projection
from workers.backfill.order import key_of
from workers.backfill.scan import ScanState

INTERLEAVING = (ScanType.ARRANGEMENT_BACKFILL, ScanType.BACKFILL)
"""The strategies that merge history with live changes epoch by epoch."""
INTERVAL: float = 1.0
POINTS: tuple[str, ...] = (
    "before_forward",
    "after_forward",
    "page_read",
    "page_written",
    "after_pages",
    "before_commit",
)


@dataclass(frozen=True)
class Kill:
    """Die at the `nth` passing of `point`."""

    point: str
    nth: int = 0


class Killed(Exception):
    """The process is gone."""


Rows = dict[tuple[Any, ...], tuple[Key, Row]]
Mutation = tuple[str, int | None]


def view(row: Row) -> Row | None:
    """Q: `select id, v * 10 from t where v % 3 <> 0`."""
    return None if row[1] % 3 == 0 else (row[0], row[1] * 10)


@dataclass
class World:
    """The service's side in plain data: what is committed, what waits, what is fed to the executor."""

    shape: KeyShape
    vnode_count: int = 6
    actors: int = 2
    checkpoint_frequency: int = 1
    executor: type[Arrangement] = Arrangement
    preloaded: Sequence[Dml] = ()
    waiting: bool = False
    """The scan starts waiting for its place in a backfill order."""
    scan_type: ScanType = ScanType.ARRANGEMENT_BACKFILL

    rows: Rows = field(default_factory=dict[tuple[Any, ...], tuple[Key, Row]])
    history: dict[int, Rows] = field(default_factory=dict[int, Rows])
    stored: dict[int, VnodePosition] = field(default_factory=dict[int, VnodePosition])
    collected: dict[int, VnodePosition] = field(default_factory=dict[int, VnodePosition])
    settings: dict[str, int | None] = field(default_factory=dict[str, int | None])
    pending: deque[Mutation] = field(default_factory=deque[Mutation])
    carried: list[Mutation] = field(default_factory=list[Mutation])
    statements: list[Dml] = field(default_factory=list[Dml])
    run_statements: list[Dml] = field(default_factory=list[Dml])
    reads: list[tuple[ActorId, float, int]] = field(default_factory=list[tuple[ActorId, float, int]])
    fresh: dict[ActorId, int] = field(default_factory=dict[ActorId, int])
    bucket_since: float = 0.0
    passes: dict[str, int] = field(default_factory=dict[str, int])
    kill: Kill | None = None
    now: float = 0.0
    newest: int = 1
    committed: int = 1
    prev: int = 1
    uncommitted: int = 0
    next_row: int = 0
    next_actor: int = 0
    initial: bool = True
    """The next barrier starts a generation: it carries the plan, no other mutation and no statements."""
    finished: bool = False
    created: bool = False

    def __post_init__(self) -> None:
        self.settings = {"paused": 0, "limit": None, "actors": self.actors, "waiting": int(self.waiting)}
        key = key_of(self.shape.relation)
        self.upstream = VersionedTable(key, self.vnode_count)
        self.target = VersionedTable(key, self.vnode_count)
        for statement in self.preloaded:
            self._apply(statement, self.newest)
        self.history[self.newest] = dict(self.rows)
        self._start()

    # What drives the world.

    def queue(self, statement: Dml) -> None:
        self.statements.append(statement)

    def ask(self, verb: str, value: int | None = None) -> None:
        self.pending.append((verb, value))

    def barrier(self, *, page_rows: int, pages_max: int, elapsed: float, kill: Kill | None = None) -> None:
        """Run one epoch; with `kill` the process may die in it, and is recovered."""
        self.now += elapsed
        self.newest += 1
        curr, self.kill, self.passes = self.newest, kill, {}
        before = self._positions()
        if not self.initial:
            self._carry()
            self._run_statements(curr)
        self.initial, self.history[curr] = False, dict(self.rows)
        may_read = self.scan.scan.may_read(paused=bool(self.running["paused"]))
        reading = Reading(page_rows, pages_max, self.now, INTERVAL) if may_read else None
        try:
            finished = self.scan.epoch(self.prev, curr, reading)
            self._pass(Passed("before_commit", ActorId(0)))
        except Killed:
            self.recover()
            return
        self._collect(curr, finished, before)

    def recover(self) -> None:
        """Roll back to the last committed epoch and start again from what is stored (I3)."""
        self.upstream.roll_back(self.committed)
        self.target.roll_back(self.committed)
        self.rows = dict(self.history[self.committed])
        self.statements = self.run_statements + self.statements
        self.pending.extendleft(reversed(self.carried))
        self.run_statements, self.carried, self.collected = [], [], {}
        self.prev, self.uncommitted, self.finished = self.committed, 0, self.created
        self._start()
        self.check(self.committed)

    def settle(self) -> None:
        """Faults stop: within so many epochs the view is whole (liveness)."""
        self.ask("resume")
        self.ask("throttle", None)
        self.ask("start")
        rows_at_most = len(self.rows) + len(self.statements)
        for _ in range(rows_at_most + self.vnode_count + len(self.pending) + 2 * self.checkpoint_frequency + 4):
            if self.created and not self.statements and not self.pending:
                break
            self.barrier(page_rows=2, pages_max=1, elapsed=INTERVAL)
        assert self.created, "not finished"
        expected = {key: (k, out) for key, (k, row) in self.rows.items() if (out := view(row)) is not None}
        assert self.alive_at(self.target, self.newest) == expected

    # Steps.

    def plan(self) -> TableScanPlan:
        upstream = self.shape.relation
        return TableScanPlan(
            id=FragmentId(1),
            actors=self.actor_plans(self.settings["actors"] or 1),
            upstream=upstream,
            query=projection(upstream, upstream),
            scan_type=self.scan_type,
            rate_limit=self.settings["limit"],
            waiting=bool(self.settings["waiting"]),
        )

    def actor_plans(self, actors: int) -> tuple[ActorPlan, ...]:
        plans: list[ActorPlan] = []
        for runs in blocks(self.vnode_count, actors):
            self.next_actor += 1
            owned = tuple(self.stored[vnode] for vnode in vnodes_of(runs) if vnode in self.stored)
            plans.append(ActorPlan(id=ActorId(self.next_actor), vnodes=runs, positions=owned))
        return tuple(plans)

    def _start(self) -> None:
        previous = getattr(self, "scan", None)
        state = ScanState.of(self.plan(), now=self.now)
        if previous is not None and len(previous.scan.actors) == len(state.actors):
            # Actors keep their ids over a recovery, and their reads count on: that is what a limit is about.
            for old, new in zip(previous.scan.actors, state.actors, strict=True):
                new.id = old.id
        if previous is not None and self.running["limit"] != self.settings["limit"]:
            self.reads.clear()
        self.running = dict(self.settings)
        self.initial = True
        self._empty_buckets()
        self.scan = self.executor(self.upstream, self.target, view, state, self._pass)

    def _carry(self) -> None:
        """A barrier carries one mutation at most; it acts before anything else of the epoch (I4)."""
        if not self.pending:
            return
        verb, value = mutation = self.pending.popleft()
        self.carried.append(mutation)
        self.running |= _changed(mutation)
        if verb == "throttle":
            self.scan.scan.throttle(value, now=self.now)
            self.reads.clear()
            self._empty_buckets()
        elif verb == "rescale":
            assert value is not None
            before = self._positions()
            self.scan.scan.rescale(self.actor_plans(value), now=self.now)
            assert self._positions() == before, "I11: a rescale changed positions"
            self.reads.clear()
            self._empty_buckets()
        if verb == "start":
            self.scan.scan.waiting = False

    def _run_statements(self, curr: int) -> None:
        for statement in self.statements:
            self._apply(statement, curr)
        self.run_statements += self.statements
        self.statements = []

    def _apply(self, statement: Dml, epoch: int) -> None:
        alive = sorted(self.rows)
        chosen = alive[statement.pick % len(alive)] if alive else None
        match statement.verb:
            case "put":
                self.next_row += 1
                self._put(statement.key, (self.next_row, statement.value), epoch)
            case "update" if chosen is not None:
                key, row = self.rows[chosen]
                self._put(key, (row[0], statement.value), epoch)
            case "move" if chosen is not None:
                key, row = self.rows[chosen]
                self._remove(key, epoch)
                self._put(statement.key, row, epoch)
            case "delete" if chosen is not None:
                self._remove(self.rows[chosen][0], epoch)
            case "delete_all":
                for key, _ in list(self.rows.values()):
                    self._remove(key, epoch)
            case _:
                pass

    def _put(self, key: Key, row: Row, epoch: int) -> None:
        self.upstream.put(key, row, epoch)
        self.rows[identity(key)] = (key, row)

    def _remove(self, key: Key, epoch: int) -> None:
        self.upstream.remove(key, epoch)
        del self.rows[identity(key)]

    def _pass(self, passed: Passed) -> None:
        if passed.point == "page_read":
            assert not self.running["paused"], "I4: a page was read while paused"
            assert not self.running["waiting"], "I4: a page was read before its place in the order"
            assert self.running["limit"] != 0 or passed.rows == 0, "I4: a row was read at limit 0"
            self.reads.append((passed.actor, self.now, passed.rows))
            self._check_permits(passed.actor)
        nth = self.passes.get(passed.point, 0)
        self.passes[passed.point] = nth + 1
        if self.kill == Kill(passed.point, nth):
            raise Killed

    def _collect(self, curr: int, finished: frozenset[ActorId], before: dict[int, VnodePosition]) -> None:
        for actor in self.scan.scan.actors:
            for position in actor.positions.take_changed():
                self.collected[position.vnode] = position
            complete = all(v in before and before[v].key is None for v in vnodes_of(actor.positions.runs))
            assert (actor.id in finished) == complete, "the finish goes out one barrier after the last vnode"
        self.prev = curr
        self.uncommitted += 1
        self.finished = len(finished) == len(self.scan.scan.actors)
        self._check_progress(before)
        self._check_one_position()
        self.check(curr)
        if self.uncommitted >= self.checkpoint_frequency:
            self._commit(curr)

    def _commit(self, curr: int) -> None:
        self.stored.update(self.collected)
        assert self.stored == self._positions(), "what is stored is not where the actors are"
        for mutation in self.carried:
            self.settings |= _changed(mutation)
        self.committed, self.uncommitted = curr, 0
        self.carried, self.run_statements, self.collected = [], [], {}
        self.created = self.created or self.finished

    # What is always true.

    def check(self, epoch: int) -> None:
        """I1 at `epoch`, and the store's own rules."""
        self._check_store()
        assert self.alive_at(self.upstream, epoch) == self.history[epoch], "the upstream itself is wrong"
        expected: Rows = {}
        for alive, (key, row) in self.history[epoch].items():
            out = view(row)
            if out is not None and self._backfilled(key):
                expected[alive] = (key, out)
        assert self.alive_at(self.target, epoch) == expected, "I1: the view is not its query over the prefix"

    def _backfilled(self, key: Key) -> bool:
        position = self._positions().get(self.upstream.vnode(key))
        if position is None:
            return False
        if position.state is PositionState.COMPLETED:
            return True
        assert position.key is not None
        return order_python(self.upstream.key, key, self.upstream.values(position.key)) <= 0

    def _check_store(self) -> None:
        for table in (self.upstream, self.target):
            lives: dict[tuple[Any, ...], list[tuple[int, int]]] = {}
            for version in table.versions:
                assert version.start < version.end, "a life without length"
                lives.setdefault(identity(version.key), []).append((version.start, version.end))
            for spans in lives.values():
                spans.sort()
                assert all(end <= start for (_, end), (start, _) in pairwise(spans)), "a key with two lives at once"

    def _check_progress(self, before: dict[int, VnodePosition]) -> None:
        after = self._positions()
        for vnode, old in before.items():
            new = after[vnode]
            assert new.rows >= old.rows, "I6: rows went back"
            if old.key is None:
                assert new.key is None, "a completed vnode was reopened"
            elif new.key is not None:
                values = self.upstream.values
                assert order_python(self.upstream.key, values(old.key), values(new.key)) <= 0, "a position went back"

    def _check_one_position(self) -> None:
        """An actor of NoShuffle stands at one place: all before it is completed, and nothing after it has started."""
        if self.scan_type is not ScanType.BACKFILL:
            return
        for actor in self.scan.scan.actors:
            held = [actor.positions.by_vnode.get(vnode) for vnode in vnodes_of(actor.positions.runs)]
            passed = [2 if one is None else int(one.state is PositionState.IN_PROGRESS) for one in held]
            assert passed == sorted(passed), "an actor with a hole behind its position"
            assert passed.count(1) <= 1, "an actor with more than one position"

    def _check_permits(self, actor: ActorId) -> None:
        """I4: in any window of w seconds an actor reads at most n * w rows and one bucket (what may be saved up); since
        the bucket was made, by a start or a throttle, not even that.
        """
        limit = self.running["limit"]
        if limit is None:
            return
        mine = [(at, rows) for reader, at, rows in self.reads if reader == actor]
        read = sum(rows for _, rows in mine[self.fresh.get(actor, 0) :])
        assert read <= limit * (self.now - self.bucket_since) + 1e-6, "I4: a bucket did not start empty"
        for first, (start, _) in enumerate(mine):
            read = sum(rows for _, rows in mine[first:])
            assert read <= limit * (self.now - start) + max(1.0, limit * INTERVAL) + 1e-6, "I4: more than permitted"

    def _empty_buckets(self) -> None:
        """Every bucket is made anew: remember how many reads of each actor are older."""
        self.bucket_since = self.now
        readers = [reader for reader, _, _ in self.reads]
        self.fresh = {actor: readers.count(actor) for actor in set(readers)}

    def _positions(self) -> dict[int, VnodePosition]:
        return {
            vnode: position
            for actor in self.scan.scan.actors
            for vnode, position in actor.positions.by_vnode.items()
            if Vnode(vnode) in vnodes_of(actor.positions.runs)
        }

    @staticmethod
    def alive_at(table: VersionedTable, epoch: int) -> Rows:
        return {identity(version.key): (version.key, version.row) for version in table.at(epoch)}


def _changed(mutation: Mutation) -> dict[str, int | None]:
    match mutation:
        case "throttle", limit:
            return {"limit": limit}
        case "rescale", actors:
            return {"actors": actors}
        case "start", _:
            return {"waiting": 0}
        case verb, _:
            return {"paused": int(verb == "pause")}


def random_walk(
    seed: int,
    *,
    world: type[World] = World,
    executor: type[Arrangement] = Arrangement,
    scan_type: ScanType = ScanType.ARRANGEMENT_BACKFILL,
) -> World:
    """Live through one schedule. Raises AssertionError where an invariant does not hold."""
    random = Random(seed)
    shape = random.choice(SHAPES)
    vnode_count = random.choice((1, 2, 6))
    tied = scan_type is ScanType.BACKFILL
    here = world(
        shape,
        vnode_count=vnode_count,
        actors=min(1 + seed % 3, vnode_count),
        checkpoint_frequency=random.choice((1, 1, 2, 3)),
        executor=executor,
        preloaded=[random_dml(random, shape) for _ in range(random.choice((0, 3, 30, 60, 120)))],
        waiting=seed % 5 == 0,
        scan_type=scan_type,
    )
    steps: tuple[Callable[[], None], ...] = (
        lambda: here.ask("pause"),
        lambda: here.ask("resume"),
        lambda: here.ask("throttle", random.choice((None, 0, 1, 3, 5))),
        # Often to one actor, whose vnodes then stand where several have led them.
        lambda: None if tied else here.ask("rescale", random.choice((1, random.randint(1, here.vnode_count)))),
    )
    kill_every = random.choice((2, 4, 16))
    hasty = random.choice((0.1, 1.0))
    page_rows = random.choice((1, 2, 5))
    if not random.randrange(3):
        here.ask("throttle", random.choice((1, 3, 5)))
    for step in range(30):
        if step == seed % 17:
            here.ask("start")
        if not random.randrange(6):
            random.choice(steps)()
        for _ in range(random.choice((0, 1, 1, 4))):
            here.queue(random_dml(random, shape))
        kill = Kill(random.choice(POINTS), random.randrange(2)) if not random.randrange(kill_every) else None
        elapsed = hasty * random.choice((1, 1, 3))
        pages_max = random.choice((1, 1, 1, 2, 9))
        here.barrier(page_rows=page_rows, pages_max=pages_max, elapsed=elapsed, kill=kill)
    here.settle()
    return here
