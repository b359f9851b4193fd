"""Calls in processes whose memory is bounded (I13)."""

import os
import signal
import subprocess
import threading

import pytest

from workers.connectors.limited import EndedError, MemoryShares, half_of_memory, limited
from workers.connectors.port import RefusedTableError


def added(first: int, *, second: int) -> int:
    return first + second


def filled(size: int) -> int:
    return len(bytes(size))


def refused() -> None:
    raise RefusedTableError("no")


def ended(number: int) -> None:
    os.kill(os.getpid(), number)


def waiting() -> None:
    threading.Event().wait(60)


def test_a_call_returns_what_it_returns_and_raises_what_it_raises() -> None:
    assert limited(1 << 30, 60, added, 1, second=2) == 3
    with pytest.raises(RefusedTableError, match="no"):
        limited(1 << 30, 60, refused)


def test_i13_a_call_ends_alone() -> None:
    assert limited(512 << 20, 60, filled, 64 << 20) == 64 << 20
    with pytest.raises(MemoryError):
        limited(512 << 20, 60, filled, 1 << 30)
    with pytest.raises(MemoryError):
        limited(100 << 20, 60, len, b"x" * (200 << 20))
    # A library ends its process in this way where it gets no memory; somebody else ends it in the other one.
    with pytest.raises(MemoryError):
        limited(512 << 20, 60, ended, signal.SIGABRT)
    with pytest.raises(EndedError, match="ended with -9"):
        limited(512 << 20, 60, ended, signal.SIGKILL)
    with pytest.raises(subprocess.TimeoutExpired):
        limited(512 << 20, 1, waiting)


def test_i13_a_caller_has_half_of_what_others_leave() -> None:
    shares = MemoryShares(800, least=50)
    with shares.share("a") as first, shares.share("b") as second, shares.share("c") as third:
        assert (first, second, third, shares.most) == (400, 200, 100, 400)
        with shares.share("d") as fourth, shares.share("e") as fifth:
            assert (fourth, fifth) == (50, 50)
    with shares.share("b") as again:
        assert again == 400


def test_i13_a_caller_waits_for_its_own_only() -> None:
    shares, had = MemoryShares(800, least=50), list[int]()

    def another() -> None:
        with shares.share("a") as memory:
            had.append(memory)

    with shares.share("a"):
        waits = threading.Thread(target=another)
        waits.start()
        with shares.share("b"):
            waits.join(0.1)
            assert not had
    waits.join(10)
    assert had == [400]


def test_half_of_the_memory_is_no_more_than_the_machine_has() -> None:
    assert 0 < half_of_memory() <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
