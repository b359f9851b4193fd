"""Back-offs: of graphs, of workers, and of items of a chore, which do not hold up the others (I13)."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise

from service.domain.backoff import CHORES, GRAPHS, HEALTHY_AFTER, WORKERS, Restarts, SetAside

NOW = datetime(2026, 1, 1, tzinfo=UTC)
YOUNG = timedelta(seconds=1)


def test_backoff_doubles_from_20_ms_to_5_s() -> None:
    first, longest = GRAPHS.first, GRAPHS.longest
    waits = [GRAPHS.after(attempts) for attempts in range(40)]
    assert waits[:4] == [timedelta(0), first, 2 * first, 4 * first]
    assert all(later in {2 * sooner, longest} for sooner, later in pairwise(waits[1:]))
    assert waits[-1] == GRAPHS.after(10**9) == longest
    assert GRAPHS.after(-1) == timedelta(0)


def test_one_that_fails_waits_and_the_others_go_on() -> None:
    aside = SetAside[str]()
    assert aside.failed("a", now=NOW) == 1
    assert aside.due(["a", "b"], now=NOW) == ["b"]
    assert aside.due(["a", "b"], now=NOW + CHORES.first) == ["a", "b"]


def test_its_wait_doubles_up_to_a_limit() -> None:
    aside = SetAside[str]()
    waits: list[timedelta] = []
    for failures in range(1, 20):
        assert aside.failed("a", now=NOW) == failures
        waits.append(aside.wait(now=NOW, longest=timedelta(hours=1)))
    assert waits[:3] == [CHORES.first, 2 * CHORES.first, 4 * CHORES.first]
    assert waits[-1] == CHORES.longest


def test_what_is_gone_is_forgotten() -> None:
    aside = SetAside[str]()
    aside.failed("a", now=NOW)
    aside.keep({"b"})
    assert aside.due(["a"], now=NOW) == ["a"]
    assert aside.wait(now=NOW, longest=CHORES.longest) == CHORES.longest


def test_the_first_worker_starts_at_once() -> None:
    assert Restarts().allow(0.0)


def test_a_crash_loop_waits_half_a_second_doubling_to_thirty() -> None:
    waits: list[float] = []
    restarts, now = Restarts(), 100.0
    for _ in range(9):
        restarts = restarts.after(YOUNG, now=now)
        waits.append(restarts.not_before - now)
        assert not restarts.allow(restarts.not_before - 0.001)
        assert restarts.allow(restarts.not_before)
        now = restarts.not_before
    assert waits == [0.5, 1, 2, 4, 8, 16, 30, 30, 30]


def test_a_healthy_run_forgets_the_young_dead() -> None:
    restarts = Restarts(died_young=9, not_before=50.0).after(HEALTHY_AFTER, now=200.0)
    assert restarts.allow(200.0)
    assert restarts.after(YOUNG, now=300.0).not_before == 300.5


def test_the_wait_stays_bounded_however_long_the_loop() -> None:
    assert Restarts(died_young=10_000).after(YOUNG, now=0.0).not_before == WORKERS.longest.total_seconds()
