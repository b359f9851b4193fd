"""The barrier policy: a table of views and effects, and a small world in which it has to make progress."""

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.domain.backoff import GRAPHS
from service.domain.barrier import HANDED_OVER, STOPPED, Chore, after_commit, chores, decide, may_start
from service.domain.epochs import following
from service.domain.graph import (
    DATABASE_POLICY,
    Abandon,
    ApplyStops,
    Attach,
    BuildIndex,
    Commit,
    Effect,
    FailedIndex,
    GraphPolicy,
    GraphStatus,
    GraphView,
    InFlight,
    Inject,
    Line,
    Pace,
    Publish,
    Retire,
    RollBack,
    Wait,
)
from service.protocol.barrier import BarrierKind
from service.protocol.ids import Epoch, Generation, GraphId, WorkerId
from service.protocol.report import Failed

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)
W1, W2 = WorkerId("1"), WorkerId("2")
FAILED = Failed(worker=W1, graph=GraphId(1), generation=Generation(1), epoch=Epoch(9), error="bad cast")
PACE = Pace()
RUNNING = GraphView(
    graph=GraphId(1),
    status=GraphStatus.RUNNING,
    generation=Generation(1),
    committed=Epoch(5),
    published=Epoch(5),
    newest=Epoch(5),
    worker=W1,
    alive=frozenset({W1}),
    last_injected_at=NOW,
)
WAITING = replace(RUNNING, status=GraphStatus.WAITING, worker=None, last_injected_at=None)
BOTH = frozenset({W1, W2})
LEFT = replace(RUNNING, alive=BOTH, leaving=frozenset({W1}))
"""Its worker leaves, and another one stands by."""
FLYING = InFlight(Epoch(9), BarrierKind.CHECKPOINT, NOW)
SOON = NOW + timedelta(milliseconds=50)

TABLE: list[tuple[str, GraphView, timedelta, Effect]] = [
    ("publishes what is committed", replace(RUNNING, published=Epoch(4)), SECOND, Publish(Epoch(5))),
    ("rolls back", replace(RUNNING, status=GraphStatus.RECOVERING), SECOND, RollBack()),
    ("starts", WAITING, SECOND, Inject(BarrierKind.INITIAL, W1)),
    (
        "starts the same of several",
        replace(WAITING, alive=frozenset({W2, W1})),
        SECOND,
        Inject(BarrierKind.INITIAL, W1),
    ),
    ("has no worker", replace(WAITING, alive=frozenset()), SECOND, Wait(None, "no worker is alive")),
    ("stops without a worker", replace(WAITING, alive=frozenset(), stops_waiting=True), SECOND, ApplyStops()),
    (
        "backs off",
        replace(WAITING, recovering_since=NOW, attempts=3),
        timedelta(milliseconds=79),
        Wait(NOW + timedelta(milliseconds=80), "backing off after a failed start"),
    ),
    (
        "has backed off",
        replace(WAITING, recovering_since=NOW, attempts=3),
        timedelta(milliseconds=80),
        Inject(BarrierKind.INITIAL, W1),
    ),
    ("recovers as asked", replace(RUNNING, recover_asked="RECOVER"), SECOND, Abandon("RECOVER")),
    ("lost its worker", replace(RUNNING, alive=frozenset({W2})), SECOND, Abandon("worker lost")),
    (
        "lost a worker that told why",
        replace(RUNNING, alive=frozenset({W2}), in_flight=replace(FLYING, failure=FAILED)),
        SECOND,
        Abandon("bad cast", FAILED),
    ),
    ("hands over to a worker that stands by", LEFT, 0 * SECOND, Abandon(HANDED_OVER)),
    (
        "keeps a worker that leaves without another",
        replace(LEFT, leaving=BOTH),
        SECOND,
        Inject(BarrierKind.CHECKPOINT, W1),
    ),
    (
        "loses no worker that stands by",
        replace(LEFT, leaving=frozenset({W2})),
        0 * SECOND,
        Wait(NOW + SECOND, "barrier interval"),
    ),
    (
        "hands over between two barriers",
        replace(LEFT, in_flight=FLYING),
        SECOND,
        Wait(NOW + PACE.deadline, "waiting for the worker to collect"),
    ),
    ("hands over after the commit", replace(LEFT, in_flight=replace(FLYING, collected=True)), SECOND, Commit(Epoch(9))),
    ("hands over after the publication", replace(LEFT, published=Epoch(4)), SECOND, Publish(Epoch(5))),
    ("commits what it hands over", replace(LEFT, uncommitted=1), SECOND, Inject(BarrierKind.CHECKPOINT, W1)),
    ("starts on a worker that stays", replace(LEFT, status=WAITING.status), SECOND, Inject(BarrierKind.INITIAL, W2)),
    (
        "starts on one that leaves rather than on none",
        replace(LEFT, status=WAITING.status, leaving=BOTH),
        SECOND,
        Inject(BarrierKind.INITIAL, W1),
    ),
    ("keeps the interval", RUNNING, SECOND / 2, Wait(NOW + SECOND, "barrier interval")),
    ("makes a checkpoint", RUNNING, SECOND, Inject(BarrierKind.CHECKPOINT, W1)),
    (
        "makes the first at once",
        replace(RUNNING, last_injected_at=None),
        SECOND / 2,
        Inject(BarrierKind.CHECKPOINT, W1),
    ),
    ("is early for commands", replace(RUNNING, commands_waiting=True), 0 * SECOND, Inject(BarrierKind.CHECKPOINT, W1)),
    ("is early for rows", replace(RUNNING, statements_waiting=True), SOON - NOW, Inject(BarrierKind.CHECKPOINT, W1)),
    ("groups rows", replace(RUNNING, statements_waiting=True), 0 * SECOND, Wait(SOON, "barrier interval")),
    (
        "leaves a backfill its slice",
        replace(RUNNING, statements_waiting=True, backfilling=True),
        SECOND / 2,
        Wait(NOW + SECOND, "barrier interval"),
    ),
    (
        "hurries for a backfill without a limit",
        replace(RUNNING, statements_waiting=True, backfilling=True, hurries=True),
        SECOND / 2,
        Inject(BarrierKind.CHECKPOINT, W1),
    ),
    (
        "does not hurry without end",
        replace(RUNNING, statements_waiting=True, backfilling=True, hurries=True),
        SECOND / 4,
        Wait(NOW + SECOND / 2, "barrier interval"),
    ),
    (
        "waits for the worker",
        replace(RUNNING, in_flight=FLYING),
        SECOND,
        Wait(NOW + PACE.deadline, "waiting for the worker to collect"),
    ),
    (
        "gives a barrier up",
        replace(RUNNING, in_flight=FLYING),
        PACE.deadline,
        Abandon("barrier 9 was not collected within 300 s"),
    ),
    (
        "commits late answers",
        replace(RUNNING, in_flight=replace(FLYING, collected=True)),
        PACE.deadline,
        Commit(Epoch(9)),
    ),
    ("fails", replace(RUNNING, in_flight=replace(FLYING, failure=FAILED)), SECOND, Abandon("bad cast", FAILED)),
    (
        "commits a start",
        replace(RUNNING, in_flight=replace(FLYING, kind=BarrierKind.INITIAL, collected=True)),
        SECOND,
        Commit(Epoch(9)),
    ),
    (
        "attaches",
        replace(RUNNING, in_flight=replace(FLYING, kind=BarrierKind.BARRIER, collected=True)),
        SECOND,
        Attach(Epoch(9)),
    ),
    ("goes on when the clock went back", RUNNING, -3600 * SECOND, Inject(BarrierKind.CHECKPOINT, W1)),
    (
        "recovers when the clock went back",
        replace(WAITING, recovering_since=NOW, attempts=9),
        -3600 * SECOND,
        Inject(BarrierKind.INITIAL, W1),
    ),
]


@pytest.mark.parametrize(("view", "passed", "effect"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_table(view: GraphView, passed: timedelta, effect: Effect) -> None:
    assert decide(view, now=NOW + passed, pace=PACE) == effect


@pytest.mark.parametrize("uncommitted", range(1, 3))
def test_the_barrier_before_a_hand_over_is_a_checkpoint(uncommitted: int) -> None:
    effect = decide(replace(LEFT, uncommitted=uncommitted), now=NOW + SECOND, pace=Pace(checkpoint_frequency=9))
    assert effect == Inject(BarrierKind.CHECKPOINT, W1)


@pytest.mark.parametrize("uncommitted", range(4))
def test_every_third_barrier_is_a_checkpoint(uncommitted: int) -> None:
    view = replace(RUNNING, uncommitted=uncommitted)
    kind = BarrierKind.CHECKPOINT if uncommitted >= 2 else BarrierKind.BARRIER
    effect = decide(view, now=NOW + SECOND, pace=Pace(checkpoint_frequency=3))
    assert effect == Inject(kind, W1)
    asked = decide(replace(view, commands_waiting=True), now=NOW, pace=Pace(checkpoint_frequency=3))
    assert asked == Inject(BarrierKind.CHECKPOINT, W1)


INSTANTS = st.sampled_from([NOW - 3600 * SECOND, NOW - SECOND, NOW, NOW + 3600 * SECOND])
FLIGHTS = st.builds(
    InFlight,
    epoch=st.integers(6, 9).map(Epoch),
    kind=st.sampled_from(BarrierKind),
    injected_at=INSTANTS,
    collected=st.booleans(),
    failure=st.none() | st.just(FAILED),
)
VIEWS = st.builds(
    GraphView,
    graph=st.just(GraphId(1)),
    status=st.sampled_from(GraphStatus),
    generation=st.just(Generation(1)),
    committed=st.integers(4, 5).map(Epoch),
    published=st.integers(3, 4).map(Epoch),
    newest=st.just(Epoch(9)),
    worker=st.sampled_from([None, W1, W2]),
    alive=st.frozensets(st.sampled_from([W1, W2])),
    leaving=st.frozensets(st.sampled_from([W1, W2])),
    in_flight=st.none() | FLIGHTS,
    uncommitted=st.integers(0, 3),
    last_injected_at=st.none() | INSTANTS,
    attempts=st.integers(0, 20),
    recovering_since=st.none() | INSTANTS,
    commands_waiting=st.booleans(),
    stops_waiting=st.booleans(),
    statements_waiting=st.booleans(),
    backfilling=st.booleans(),
    hurries=st.booleans(),
    recover_asked=st.none() | st.just("RECOVER"),
    cleanups_waiting=st.booleans(),
)


@settings(max_examples=300, derandomize=True)
@given(VIEWS)
def test_what_holds_for_every_view(view: GraphView) -> None:
    view = replace(view, leaving=view.leaving & view.alive)
    effect = decide(view, now=NOW, pace=PACE)
    running, shown = view.status is GraphStatus.RUNNING, view.published == view.committed
    assert shown or effect == Publish(view.committed)
    if shown and running and view.worker not in view.alive:
        assert isinstance(effect, Abandon)
    if isinstance(effect, Inject):
        assert effect.worker in view.alive
        assert not (running and view.in_flight is not None), "one barrier at a time"
        assert (effect.kind is BarrierKind.INITIAL) is (view.status is GraphStatus.WAITING)
        if effect.worker in view.leaving:
            assert view.leaving == view.alive or (running and view.uncommitted > 0), "nobody else is there"
    if isinstance(effect, Abandon):
        assert running
    if isinstance(effect, Commit | Attach):
        assert view.in_flight is not None
        assert view.in_flight.collected
        assert view.in_flight.failure is None
    if isinstance(effect, Wait):
        assert effect.until is None or effect.until > NOW, "a wait that is over would spin"
        assert effect.until is not None or not view.alive


@pytest.mark.parametrize(
    ("line", "permits", "starts"),
    [
        (Line(), 0, False),
        (Line(held=3), 0, False),
        (Line(new=True), 0, True),
        (Line(new=True, held=2), 2, True),
        (Line(queued=True, held=9), 0, True),
        (Line(queued=True, held=1), 2, True),
        (Line(queued=True, held=2), 2, False),
        (Line(queued=True, held=3), 2, False),
    ],
)
def test_a_job_starts_while_permits_last(line: Line, permits: int, *, starts: bool) -> None:
    """A new one is looked at in any case: it starts, or has to be told that there is a queue."""
    assert may_start(line, permits) == starts


@pytest.mark.parametrize(
    ("view", "due"),
    [
        (RUNNING, ()),
        (replace(RUNNING, line=Line(new=True)), (Chore.START_JOBS,)),
        (replace(WAITING, alive=frozenset[WorkerId](), line=Line(new=True)), (Chore.START_JOBS,)),
        (replace(RUNNING, published=Epoch(4), line=Line(new=True)), (Chore.START_JOBS,)),
        (replace(RUNNING, cleanups_waiting=True), (Chore.CLEAN_UP,)),
        (replace(WAITING, cleanups_waiting=True), (Chore.CLEAN_UP,)),
        # Not fenced yet.
        (replace(RUNNING, status=GraphStatus.RECOVERING, cleanups_waiting=True), ()),
        (replace(RUNNING, cleanups_waiting=True, line=Line(new=True)), (Chore.START_JOBS, Chore.CLEAN_UP)),
    ],
)
def test_chores_are_due_whatever_the_barriers_do(view: GraphView, due: tuple[Chore, ...]) -> None:
    """I13: no chore is a step of the barriers, and none waits for them."""
    assert chores(view, PACE) == due
    effect = decide(view, now=NOW, pace=PACE)
    assert effect == decide(replace(view, line=Line(), cleanups_waiting=False), now=NOW, pace=PACE)


@dataclass
class Environment:
    """Applies effects to the view as the service and a worker would. Faults come from outside, between two looks."""

    view: GraphView
    pace: Pace
    now: datetime = NOW
    healthy: bool = True
    committed: list[Epoch] = field(default_factory=list[Epoch])

    def step(self) -> Effect:
        effect = decide(self.view, now=self.now, pace=self.pace)
        before = self.view
        self.view = self._applied(effect)
        assert self.view.committed >= before.committed, "committed went back"
        assert self.view.published <= self.view.committed, "shown before it was committed (I2)"
        assert self.view.newest >= before.newest
        assert (self.view.generation > before.generation) is isinstance(effect, Abandon)
        return effect

    def _applied(self, effect: Effect) -> GraphView:
        match effect:
            case Inject():
                return self._injected(effect)
            case Wait(until, _):
                return self._waited(until)
            case Commit(epoch):
                self.committed.append(epoch)
                return replace(self.view, committed=epoch, in_flight=None, uncommitted=0, attempts=0)
            case Abandon():
                return self._abandoned()
            case _:
                return replace(self.view, **self._changes(effect))

    def _changes(self, effect: Effect) -> dict[str, Any]:
        match effect:
            case Publish(epoch):
                return {"published": epoch}
            case Attach():
                return {"in_flight": None, "uncommitted": self.view.uncommitted + 1}
            case RollBack():
                return {"status": GraphStatus.WAITING}
            case ApplyStops():
                return {"stops_waiting": False, "cleanups_waiting": True}
            case _:
                raise AssertionError(effect)

    def _abandoned(self) -> GraphView:
        view = self.view
        return replace(
            view, status=GraphStatus.RECOVERING, generation=Generation(view.generation + 1), in_flight=None,
            uncommitted=0, worker=None, recovering_since=self.now, recover_asked=None, attempts=view.attempts + 1,
        )  # fmt: skip

    def _injected(self, effect: Inject) -> GraphView:
        view = self.view
        assert view.in_flight is None, "two barriers in flight"
        epoch = following(view.newest, now=self.now)
        assert epoch > view.newest
        assert effect.worker in view.alive
        return replace(
            view, status=GraphStatus.RUNNING, worker=effect.worker, newest=epoch, last_injected_at=self.now,
            in_flight=InFlight(epoch, effect.kind, self.now), commands_waiting=False, statements_waiting=False,
        )  # fmt: skip

    def _waited(self, until: datetime | None) -> GraphView:
        view = self.view
        if view.in_flight is not None and self.healthy:
            return replace(view, in_flight=replace(view.in_flight, collected=True))
        if not view.alive and self.healthy:
            return replace(view, alive=frozenset({W2}))
        self.now = until or self.now + SECOND
        return view

    def fault(self, fault: str) -> None:
        """Something happens that the policy did not choose."""
        view = self.view
        flying = view.in_flight
        changes: dict[str, dict[str, Any]] = {
            "worker dies": {"alive": frozenset[WorkerId]()},
            "worker comes": {"alive": view.alive | {W1}},
            "another worker": {"alive": frozenset({W2})},
            "recover": {"recover_asked": "RECOVER"},
            "command": {"commands_waiting": True},
            "stop": {"stops_waiting": True, "commands_waiting": True},
            "statement": {"statements_waiting": True},
            "cleanup": {"cleanups_waiting": True},
            "fails": {"in_flight": flying and replace(flying, failure=FAILED)},
        }
        self.view = replace(view, **changes.get(fault, {}))
        if fault == "clock goes back":
            self.now -= 7200 * SECOND
        elif fault == "worker hangs":
            self.healthy = False


FAULTS = st.sampled_from(
    [
        "none", "none", "none", "worker dies", "worker comes", "another worker", "recover", "command", "stop",
        "statement", "cleanup", "fails", "clock goes back", "worker hangs",
    ]
)  # fmt: skip


@settings(max_examples=150, derandomize=True, deadline=None)
@given(st.lists(FAULTS, max_size=60), st.integers(1, 3), st.booleans())
def test_epochs_go_on_once_faults_end(faults: list[str], frequency: int, fresh: bool) -> None:
    """Safety at every step; and liveness: three more epochs are committed and shown, each greater than the last."""
    pace = Pace(checkpoint_frequency=frequency)
    environment = Environment(WAITING if fresh else RUNNING, pace)
    for fault in faults:
        environment.fault(fault)
        environment.step()
    environment.healthy = True
    start, before = environment.now, len(environment.committed)
    for _ in range(24 + 12 * frequency):
        environment.step()
    assert len(environment.committed) >= before + 3, environment.view
    assert environment.committed == sorted(set(environment.committed))
    assert environment.view.published >= environment.committed[-2]
    # A hung barrier's deadline may have been on a clock that was ahead by two hours for each time it went back.
    patience = pace.deadline + GRAPHS.longest + 100 * SECOND
    assert environment.now - start <= patience + faults.count("clock goes back") * 7200 * SECOND


def test_a_hung_worker_is_given_up_at_the_deadline() -> None:
    environment = Environment(RUNNING, PACE, healthy=False)
    while not isinstance(environment.step(), Abandon):
        assert environment.now - NOW <= PACE.deadline + 2 * SECOND
    assert environment.now - NOW >= PACE.deadline


NO_SPACE = FailedIndex(1, "no space", NOW)
OWN = replace(RUNNING, graph=GraphId(2), published=Epoch(0), policy=GraphPolicy())


@pytest.mark.parametrize(
    ("view", "effect"),
    [
        # It publishes nothing, and keeps the interval while a limit or a pause holds its history.
        (OWN, Wait(NOW + PACE.interval, "barrier interval")),
        (replace(OWN, hurries=True), Inject(BarrierKind.CHECKPOINT, W1)),
        (replace(OWN, policy=GraphPolicy(unindexed=True)), BuildIndex()),
        (replace(OWN, policy=GraphPolicy(unindexed=True, index_failed=NO_SPACE)), BuildIndex()),
        (
            replace(OWN, policy=GraphPolicy(unindexed=True, index_failed=replace(NO_SPACE, due=NOW + SECOND))),
            Wait(NOW + PACE.interval, "barrier interval"),
        ),
        (
            replace(OWN, policy=GraphPolicy(unindexed=True), in_flight=replace(FLYING, collected=True)),
            Commit(Epoch(9)),
        ),
        # A stop needs no barrier, whatever is in flight.
        (replace(OWN, stops_waiting=True, commands_waiting=True, in_flight=FLYING), Abandon(STOPPED)),
        (replace(OWN, stops_waiting=True, status=GraphStatus.RECOVERING), RollBack()),
        (replace(OWN, stops_waiting=True, status=GraphStatus.WAITING), ApplyStops()),
        (replace(OWN, policy=GraphPolicy(merged=True)), Wait(None, "its job goes on in the database graph")),
        (replace(OWN, policy=GraphPolicy(over=True, merged=True)), Retire()),
        (replace(OWN, policy=GraphPolicy(over=True), status=GraphStatus.RECOVERING), Retire()),
    ],
)
def test_the_graph_of_a_snapshot_job(view: GraphView, effect: Effect) -> None:
    """I9, I10."""
    assert decide(view, now=NOW, pace=PACE) == effect


IN_FLIGHT = replace(RUNNING, in_flight=replace(FLYING, collected=True))
STIRRED: dict[str, GraphView] = {
    "a command": replace(IN_FLIGHT, commands_open=True),
    "a statement": replace(IN_FLIGHT, statements_queued=True),
    "a backfill": replace(IN_FLIGHT, unsettled=True),
    "a job that holds a permit": replace(IN_FLIGHT, line=Line(held=1)),
    "a clean-up": replace(IN_FLIGHT, cleanups_waiting=True),
    "a new job": replace(IN_FLIGHT, line=Line(new=True)),
    "a queued job": replace(IN_FLIGHT, line=Line(queued=True)),
    "an operator's recovery": replace(IN_FLIGHT, recover_asked="by hand"),
    "a snapshot job's graph": replace(IN_FLIGHT, policy=GraphPolicy()),
}


@pytest.mark.parametrize("policy", [DATABASE_POLICY, GraphPolicy(stays=True, created=True)])
def test_a_graph_at_rest_waits_for_the_interval_after_its_commit(policy: GraphPolicy) -> None:
    at_rest = replace(IN_FLIGHT, policy=policy)
    assert after_commit(at_rest, Epoch(9), now=SOON, pace=PACE) == Wait(NOW + SECOND, "barrier interval")


@pytest.mark.parametrize("stirred", STIRRED)
def test_a_graph_that_somebody_waits_for_is_looked_at_again_after_its_commit(stirred: str) -> None:
    assert after_commit(STIRRED[stirred], Epoch(9), now=SOON, pace=PACE) is None


def test_i13_the_graphs_of_jobs_that_stay_make_twenty_barriers_a_second_together() -> None:
    """Those that a job leaves, and the database graph, keep the interval that was asked for."""
    staying = GraphPolicy(stays=True, created=True, graphs=60)
    assert staying.interval(SECOND) == 3 * SECOND
    assert replace(staying, graphs=20).interval(SECOND) == replace(staying, created=False).interval(SECOND) == SECOND
    assert DATABASE_POLICY.interval(SECOND) == SECOND
