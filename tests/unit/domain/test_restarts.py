from datetime import timedelta

from service.domain.restarts import BACKOFF_MAX, HEALTHY_AFTER, Restarts

YOUNG = timedelta(seconds=1)


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
    assert Restarts(died_young=10_000).after(YOUNG, now=0.0).not_before == BACKOFF_MAX.total_seconds()
