"""A worker is given up by a process that could have heard it (C7)."""

from datetime import timedelta

from service.domain.attention import Attention

LEASE = timedelta(seconds=10)


def _awake(attention: Attention, *times: float) -> Attention:
    for time in times:
        attention.awake(time)
    return attention


def test_c7_a_process_that_was_frozen_waits_as_much_longer() -> None:
    attention = _awake(Attention(), 0.0, 0.1, 16.1, 16.2)
    assert attention.patience(LEASE, now=16.2) == timedelta(seconds=26)


def test_c7_after_a_whole_lease_awake_nothing_is_added() -> None:
    attention = _awake(Attention(), 0.0, 16.0)
    assert attention.patience(LEASE, now=25.9) == timedelta(seconds=26)
    assert attention.patience(LEASE, now=26.1) == LEASE


def test_c7_a_meta_store_that_was_away_counts_as_well() -> None:
    attention = Attention()
    attention.missed(5.0, 19.0)
    assert attention.patience(LEASE, now=19.1) == timedelta(seconds=24)


def test_c7_gaps_between_which_no_sign_of_life_had_its_whole_lease_add_up() -> None:
    attention = Attention()
    attention.missed(0.0, 8.0)
    attention.missed(12.0, 20.0)
    assert attention.patience(LEASE, now=21.0) == timedelta(seconds=26)


def test_c7_short_delays_do_not_count() -> None:
    assert _awake(Attention(), 0.0, 0.9, 1.8).patience(LEASE, now=1.8) == LEASE


def test_a_process_that_starts_owes_nobody_patience() -> None:
    assert _awake(Attention(), 500.0).patience(LEASE, now=500.0) == LEASE
