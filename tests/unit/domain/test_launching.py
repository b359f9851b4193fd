from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta

import pytest

from service.domain.launching import (
    KEPT_FOR,
    LEAVING,
    End,
    Facts,
    HeldUp,
    Hold,
    Launch,
    Over,
    Runs,
    Seen,
    Steps,
    decide,
)
from service.protocol.ids import DATABASE_GRAPH, GraphId, WorkerId
from tests.support.meta_store import NOW

SECOND = timedelta(seconds=1)
W, V, JOB = WorkerId("w"), WorkerId("v"), GraphId(7)
ASKED = Launch(W, DATABASE_GRAPH, 1, NOW - 20 * SECOND)
POSTED = replace(ASKED, posted_at=NOW - 20 * SECOND)
NO_ROOM = HeldUp("Unschedulable", "0/3 nodes are available")
GOING = HeldUp(LEAVING, "its pod is being deleted")


def facts(
    *launches: Launch,
    seen: Mapping[WorkerId, Seen] | HeldUp | None = None,
    wanted: tuple[GraphId, ...] = (DATABASE_GRAPH,),
    lived: timedelta | None = None,
    alive: bool = True,
    leaving: bool = False,
    successor: bool = False,
) -> Facts:
    """`lived`: since when the worker `W` is registered. `leaving`: it has said so. `successor`: `V` is alive, too."""
    registered = {} if lived is None else {W: NOW - lived}
    present = {launch.worker: launch.graph for launch in launches if launch.worker in registered and alive}
    if successor:
        registered, present = {**registered, V: NOW}, {**present, V: DATABASE_GRAPH}
    told = {W} if leaving else set[WorkerId]()
    return Facts(NOW, launches, {} if seen is None else seen, wanted, registered, present, told, 600 * SECOND)


def ended(launch: Launch, reason: str, failures: int = 1, wait: timedelta = SECOND / 2) -> Launch:
    return replace(launch, held=None, end=End(NOW, reason, failures, NOW + wait))


def held(launch: Launch, found: HeldUp) -> Launch:
    return replace(launch, held=Hold(found.cause, found.text, NOW))


LATE = replace(POSTED, posted_at=NOW - 600 * SECOND)
PAST = replace(POSTED, end=End(NOW - SECOND, "exit code 3", 2, NOW - SECOND / 2))
DUE_LATER = replace(PAST, end=End(NOW, "exit code 3", 2, NOW + SECOND))
NEXT = Launch(V, DATABASE_GRAPH, 2, NOW - SECOND, posted_at=NOW - SECOND)
OTHER = replace(POSTED, graph=JOB)
NEEDED_NO_MORE = replace(OTHER, end=End(NOW, "it is needed no more", 0, NOW))

CASES: dict[str, tuple[Facts, Steps]] = {
    "the first one begins": (facts(), Steps(begun=((DATABASE_GRAPH, 1),), changing=True)),
    "each graph has its own": (
        facts(POSTED, seen={W: Runs()}, wanted=(DATABASE_GRAPH, JOB), lived=SECOND),
        Steps(begun=((JOB, 1),), changing=True),
    ),
    "one that serves is left alone": (facts(POSTED, seen={W: Runs()}, lived=SECOND), Steps()),
    "one that another launcher started is enough": (
        Facts(NOW, (), {}, (DATABASE_GRAPH,), {V: NOW}, {V: DATABASE_GRAPH}, (), SECOND),
        Steps(),
    ),
    "one that another launcher started, and that leaves, is not": (
        Facts(NOW, (), {}, (DATABASE_GRAPH,), {V: NOW}, {V: DATABASE_GRAPH}, {V}, SECOND),
        Steps(begun=((DATABASE_GRAPH, 1),), changing=True),
    ),
    "its pod is not created yet": (facts(ASKED), Steps(changing=True)),
    "its pod starts": (facts(POSTED, seen={W: Runs()}), Steps(changing=True)),
    "its pod is held up": (
        facts(POSTED, seen={W: NO_ROOM}),
        Steps(held=((POSTED, held(POSTED, NO_ROOM)),), changing=True),
    ),
    "by the same cause, with other numbers": (
        facts(replace(POSTED, held=Hold("Unschedulable", "0/2 nodes are available", NOW - SECOND)), seen={W: NO_ROOM}),
        Steps(
            held=(
                (
                    replace(POSTED, held=Hold("Unschedulable", "0/2 nodes are available", NOW - SECOND)),
                    replace(POSTED, held=Hold("Unschedulable", "0/3 nodes are available", NOW - SECOND)),
                ),
            ),
            changing=True,
        ),
    ),
    "no longer": (
        facts(held(POSTED, NO_ROOM), seen={W: Runs()}),
        Steps(held=((held(POSTED, NO_ROOM), POSTED),), changing=True),
    ),
    "a refused pod stays refused until it is tried again": (
        facts(held(ASKED, HeldUp("quota", "exceeded"))),
        Steps(changing=True),
    ),
    "the cluster does not answer": (
        facts(POSTED, seen=HeldUp("unavailable", "no answer")),
        Steps(held=((POSTED, held(POSTED, HeldUp("unavailable", "no answer"))),), changing=True),
    ),
    "the cluster does not answer, and the worker does": (
        facts(POSTED, seen=HeldUp("unavailable", "no answer"), lived=SECOND),
        Steps(),
    ),
    "it died young": (
        facts(POSTED, seen={W: Over("exit code 3")}, lived=SECOND),
        Steps(ended=(ended(POSTED, "exit code 3"),), changing=True),
    ),
    "and again": (
        facts(PAST, NEXT, seen={V: Over("exit code 3")}),
        Steps(ended=(ended(NEXT, "exit code 3", 3, 2 * SECOND),), deleted={}, changing=True),
    ),
    "it was healthy: the next one begins at once": (
        facts(POSTED, seen={W: Over("Evicted")}, lived=60 * SECOND),
        Steps(ended=(ended(POSTED, "Evicted", 0, 0 * SECOND),), begun=((DATABASE_GRAPH, 2),), changing=True),
    ),
    "its pod has vanished": (
        facts(POSTED, lived=SECOND),
        Steps(ended=(ended(POSTED, "its pod is gone"),), changing=True),
    ),
    "its pod has vanished as it was said": (
        facts(held(POSTED, GOING), lived=SECOND),
        Steps(ended=(ended(held(POSTED, GOING), f"its pod is gone: {GOING.text}"),), changing=True),
    ),
    "it is being deleted and still works: the next one begins": (
        facts(POSTED, seen={W: GOING}, lived=SECOND),
        Steps(held=((POSTED, held(POSTED, GOING)),), begun=((DATABASE_GRAPH, 2),), changing=True),
    ),
    "so does that of a job": (
        facts(OTHER, seen={W: GOING}, wanted=(DATABASE_GRAPH, JOB), lived=SECOND, successor=True),
        Steps(held=((OTHER, held(OTHER, GOING)),), begun=((JOB, 2),), changing=True),
    ),
    "one successor is enough": (
        facts(held(POSTED, GOING), NEXT, seen={W: GOING, V: Runs()}, lived=SECOND),
        Steps(changing=True),
    ),
    "its successor is there: it ends by itself": (
        facts(held(POSTED, GOING), NEXT, seen={W: GOING, V: Runs()}, lived=SECOND, successor=True),
        Steps(changing=True),
    ),
    "the next successor waits until it is due": (
        facts(held(POSTED, GOING), replace(DUE_LATER, worker=V, attempt=2), seen={W: GOING}, lived=SECOND),
        Steps(changing=True),
    ),
    "it has said that it leaves": (
        facts(POSTED, seen={W: Runs()}, lived=SECOND, leaving=True),
        Steps(begun=((DATABASE_GRAPH, 2),), changing=True),
    ),
    "and the cluster does not answer": (
        facts(POSTED, seen=HeldUp("unavailable", "no answer"), lived=SECOND, leaving=True),
        Steps(begun=((DATABASE_GRAPH, 2),), changing=True),
    ),
    "it has left as it said": (
        facts(POSTED, NEXT, seen={W: Over("exit code 0", failed=False), V: Runs()}, lived=SECOND, leaving=True),
        Steps(ended=(ended(POSTED, "exit code 0", 0, 0 * SECOND),), deleted={W: True}, changing=True),
    ),
    "its eviction is announced": (
        facts(POSTED, seen={W: Runs(evicted=True)}, lived=SECOND),
        Steps(begun=((DATABASE_GRAPH, 2),), changing=True),
    ),
    "its template has changed: it works until its successor is there": (
        facts(POSTED, seen={W: Runs(outdated=True)}, lived=SECOND),
        Steps(begun=((DATABASE_GRAPH, 2),), changing=True),
    ),
    "its successor is held up: it works on": (
        facts(POSTED, held(NEXT, NO_ROOM), seen={W: Runs(outdated=True), V: NO_ROOM}, lived=SECOND),
        Steps(changing=True),
    ),
    "its successor is there: it is given the time to leave": (
        facts(POSTED, NEXT, seen={W: Runs(outdated=True), V: Runs()}, lived=SECOND, successor=True),
        Steps(deleted={W: False}, changing=True),
    ),
    "its successor has an old template, too": (
        facts(POSTED, NEXT, seen={W: Runs(outdated=True), V: Runs(outdated=True)}, lived=SECOND, successor=True),
        Steps(begun=((DATABASE_GRAPH, 3),), changing=True),
    ),
    "a worker of another launcher replaces it": (
        facts(POSTED, seen={W: Runs(outdated=True)}, lived=SECOND, successor=True),
        Steps(deleted={W: False}, changing=True),
    ),
    "the template of jobs has changed: their workers stay": (
        facts(OTHER, seen={W: Runs(outdated=True)}, wanted=(JOB,), lived=SECOND),
        Steps(),
    ),
    "it is being deleted and is silent, as on a lost node": (
        facts(POSTED, seen={W: GOING}, lived=60 * SECOND, alive=False),
        Steps(ended=(ended(POSTED, GOING.text, 0, 0 * SECOND),), begun=((DATABASE_GRAPH, 2),), changing=True),
    ),
    "it hangs": (
        facts(POSTED, seen={W: Runs()}, lived=60 * SECOND, alive=False),
        Steps(
            ended=(ended(POSTED, "it was silent, or hung, and was evicted", 0, 0 * SECOND),),
            begun=((DATABASE_GRAPH, 2),),
            deleted={W: True},
            changing=True,
        ),
    ),
    "it hangs, and the cluster does not answer": (
        facts(POSTED, seen=HeldUp("unavailable", "no answer"), lived=60 * SECOND, alive=False),
        Steps(
            ended=(ended(POSTED, "it was silent, or hung, and was evicted", 0, 0 * SECOND),),
            begun=((DATABASE_GRAPH, 2),),
            changing=True,
        ),
    ),
    "it starts for too long": (
        facts(LATE, seen={W: Runs()}),
        Steps(ended=(ended(LATE, "it did not start within 600 s"),), deleted={W: True}, changing=True),
    ),
    "it is held up for too long": (
        facts(held(LATE, NO_ROOM), seen={W: NO_ROOM}),
        Steps(
            ended=(ended(held(LATE, NO_ROOM), f"it did not start within 600 s: {NO_ROOM.text}"),),
            deleted={W: True},
            changing=True,
        ),
    ),
    "the next one waits until it is due": (facts(DUE_LATER), Steps(changing=True)),
    "the next one is due": (facts(PAST), Steps(begun=((DATABASE_GRAPH, 2),), changing=True)),
    "its graph is retired": (
        facts(OTHER, seen={W: Runs()}, wanted=(), lived=SECOND),
        Steps(deleted={W: False}, changing=True),
    ),
    "its graph is retired, and it has said that it leaves": (
        facts(OTHER, seen={W: Runs()}, wanted=(), lived=SECOND, leaving=True),
        Steps(deleted={W: False}, changing=True),
    ),
    "its graph is retired, and it is ending": (facts(OTHER, seen={W: GOING}, wanted=(), lived=SECOND), Steps()),
    "its graph is retired, and it has ended": (
        facts(OTHER, wanted=(), lived=SECOND),
        Steps(ended=(NEEDED_NO_MORE,)),
    ),
    "its graph is retired before its pod was created": (
        facts(replace(OTHER, posted_at=None), wanted=()),
        Steps(ended=(replace(NEEDED_NO_MORE, posted_at=None),)),
    ),
    "a pod that nothing knows is deleted": (
        facts(POSTED, seen={W: Runs(), V: Runs()}, lived=SECOND),
        Steps(deleted={V: False}, changing=True),
    ),
    "a pod that came after its end is deleted": (
        facts(DUE_LATER, seen={W: Runs()}),
        Steps(deleted={W: True}, changing=True),
    ),
}


@pytest.mark.parametrize(("given", "expected"), CASES.values(), ids=CASES)
def test_what_a_cluster_needs_is_decided(given: Facts, expected: Steps) -> None:
    assert decide(given) == expected


def past(attempt: int, ago: timedelta) -> Launch:
    at = NOW - ago
    return Launch(WorkerId(f"w{attempt}"), DATABASE_GRAPH, attempt, at, posted_at=at, end=End(at, "exit code 3", 1, at))


def test_the_last_three_failed_pods_stay_for_an_hour() -> None:
    launches = [past(attempt, timedelta(minutes=70 - 10 * attempt)) for attempt in range(1, 6)]
    seen: dict[WorkerId, Seen] = {one.worker: Over("exit code 3") for one in launches}
    assert decide(facts(*launches, seen=seen)).deleted == {WorkerId("w1"): True, WorkerId("w2"): True}
    assert WorkerId("w4") in decide(replace(facts(*launches, seen=seen), now=NOW + timedelta(minutes=31))).deleted
    seen[WorkerId("w5")] = Over("it ended by itself", failed=False)
    assert decide(facts(*launches, seen=seen)).deleted.keys() == {WorkerId("w1"), WorkerId("w5")}


def test_old_launches_are_forgotten_once_their_pods_are_gone_except_the_newest_of_a_graph() -> None:
    launches = [past(1, 2 * KEPT_FOR), past(2, KEPT_FOR), past(3, KEPT_FOR - SECOND), past(4, SECOND)]
    assert decide(facts(*launches)).forgotten == (WorkerId("w1"), WorkerId("w2"))
    assert decide(facts(*launches, seen={WorkerId("w1"): Over("exit code 3")})).forgotten == (WorkerId("w2"),)
    assert decide(facts(*launches, seen=HeldUp("unavailable", "no answer"))).forgotten == ()
    assert decide(facts(past(1, KEPT_FOR))).forgotten == ()
    assert decide(facts(past(1, KEPT_FOR), wanted=())).forgotten == (WorkerId("w1"),)
