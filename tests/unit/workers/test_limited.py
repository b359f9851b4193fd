"""Calls in processes whose memory is bounded (I13)."""

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Generator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from tests.support.waiting import until
from workers.connectors import limited as limited_module
from workers.connectors.limited import EndedError, MemoryShares, Standing, limited
from workers.connectors.port import RefusedTableError
from workers.memory import half_of_memory


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


class OddError(Exception):
    """An error that cannot be pickled, as those of delta-rs."""

    def __reduce__(self) -> str:
        return "nothing"


def odd() -> None:
    print("not an answer")  # noqa: T201 - what libraries do
    raise OddError("it is odd")


Made = Callable[[Standing], Standing]


@pytest.fixture
def made() -> Generator[Made]:
    """Have standing processes ended."""
    with ExitStack() as stack:

        def ending(standing: Standing) -> Standing:
            stack.callback(standing.end)
            return standing

        yield ending


def test_a_standing_process_answers_one_call_after_the_other(made: Made) -> None:
    standing = made(Standing(1 << 30))
    first = standing.call(60, os.getpid)
    assert standing.call(60, added, 1, second=2) == 3
    with pytest.raises(RefusedTableError, match="no"):
        standing.call(60, refused)
    with pytest.raises(EndedError, match="OddError: it is odd"):
        standing.call(60, odd)
    assert standing.call(60, os.getpid) == first != os.getpid()


def test_i13_a_standing_process_that_ends_is_another_one_for_the_next_call(made: Made) -> None:
    standing = made(Standing(512 << 20))
    known = {standing.call(60, os.getpid)}
    for raised, seconds, call in (
        (MemoryError, 60, partial(filled, 1 << 30)),
        (MemoryError, 60, partial(ended, signal.SIGABRT)),
        (MemoryError, 60, partial(len, b"x" * (1 << 30))),
        (EndedError, 60, partial(ended, signal.SIGKILL)),
        (subprocess.TimeoutExpired, 1, waiting),
    ):
        with pytest.raises(raised):
            standing.call(seconds, call)
        known.add(standing.call(60, os.getpid))
    assert len(known) == 6
    assert not standing.call(60, threading.active_count) > 2, "nothing is left of a call"


def test_a_standing_process_without_calls_ends(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limited_module, "IDLE_SECONDS", 0.01)
    standing = made(Standing(1 << 30))
    first = standing.call(60, os.getpid)
    until(lambda: not Path(f"/proc/{first}/cmdline").read_bytes(), what="it has ended")
    assert standing.call(60, os.getpid) != first
